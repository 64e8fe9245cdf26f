"""Time of first calls, in a fresh installation and in a fresh process.

    python benchmarks/first_call.py [--threads 2]

Run each case in two processes: one with an empty folder for compiled code, as in a fresh installation, and one that
finds the code that the first compiled. The time of `import torch, regard` is not included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

SETUP = """
import logging, time, torch, regard
from regard.models import RecurrentConfig
logging.disable()
torch.set_num_threads({threads})
query, key, value = (torch.randn(4, 1, 256, 128, requires_grad=True) for _ in range(3))
long = torch.randn(1, 8, 2048, 64)
score, observe = regard.Additive(torch.randn(128)), regard.Observe(entropy=True, received=True, top=4)
"""
CASES = {
    "additive attention, forward": "regard.attention(query, key, value, score=score)",
    "additive attention, forward and backward": "regard.attention(query, key, value, score=score).sum().backward()",
    "additive attention, one step of a decoder": "regard.attention(query[:, :, :1], key, value, score=score)",
    "additive attention with statistics": "regard.attention(query, key, value, score=score, observe=observe)",
    "statistics of dot scores": "regard.attention(long, long, long, observe=observe)",
}


def seconds(call: str, threads: int, folder: str) -> float:
    """Time a call in a new process that keeps compiled code in ``folder``; return seconds."""
    code = SETUP.format(threads=threads)
    code += f"start = time.perf_counter()\n{call}\nprint(time.perf_counter() - start)"
    settings = {**os.environ, "NUMBA_CACHE_DIR": folder}
    ended = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    return float(ended.stdout)


def main() -> None:
    """Time the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(f"{options.threads} threads; seconds of the first call\n")
    print(f"{'':42} fresh installation   fresh process")
    for name, call in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            first, second = (seconds(call, options.threads, folder) for _ in range(2))
        print(f"{name:42} {first:18.1f} {second:15.2f}", flush=True)


if __name__ == "__main__":
    main()
