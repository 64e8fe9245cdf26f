"""Speed of two checkouts of this repository, compared call by call, in turns.

    python benchmarks/before_after.py PATH/TO/OTHER/CHECKOUT [--rounds 15] [--threads 2]

One process for each checkout runs the same calls, one after the other, so that other load on the machine affects both.
Print the ratio of the two times, this checkout over the other: its median and quartiles over the rounds. The cases are
those of benchmarks/additive.py, observe.py, watch.py and transformer.py, at one size each.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def cases() -> dict[str, tuple[int, Callable[[], object]]]:
    """Return for each case the number of calls in one measurement, and the call; each process makes its own."""
    import torch

    import regard
    from regard.nn import BlockConfig, KeyValueCache, MultiHeadAttention, TransformerEncoder

    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 1, 256, 128, requires_grad=True) for _ in range(3))
    step, score = torch.randn(64, 1, 1, 128, requires_grad=True), regard.Additive(torch.randn(128, requires_grad=True))
    keys = torch.randn(64, 1, 24, 128, requires_grad=True)
    long = torch.randn(1, 8, 2048, 64)
    tiny, middle = torch.randn(2, 2, 8, 16), torch.randn(2, 8, 256, 64)
    mask = regard.causal() & regard.padding(lengths=[8, 5])
    encoder = TransformerEncoder(BlockConfig(256, 4, 1024, dropout=0.0), num_layers=2)
    x = torch.randn(8, 128, 256, requires_grad=True)
    layer, token = MultiHeadAttention(256, 4, causal=True).eval(), torch.randn(1, 1, 256)
    cache = KeyValueCache()
    torchs = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2).eval()
    words = torch.randn(4, 256, 128)
    both = regard.Observe(entropy=True, received=True)

    def gradients(*inputs: torch.Tensor, **options: object) -> None:
        regard.attention(*inputs, **options).sum().backward()

    def decode() -> None:
        with torch.no_grad():
            layer(token, cache=cache)

    def watched() -> None:
        with regard.watch(torchs), torch.no_grad():
            torchs(words)

    return {
        "additive, forward": (3, lambda: regard.attention(q.detach(), k.detach(), v.detach(), score=score)),
        "additive, forward and backward": (2, lambda: gradients(q, k, v, score=score)),
        "additive, a decoder's step and its gradients": (20, lambda: gradients(step, keys, keys, score=score)),
        "observe, T=2048": (1, lambda: regard.attention(long, long, long, observe=both)),
        "observe, T=2048, causal": (1, lambda: regard.attention(long, long, long, observe=both, mask=regard.causal())),
        "watch, an encoder": (3, watched),
        "attention, 8 tokens": (300, lambda: regard.attention(tiny, tiny, tiny)),
        "attention, 8 tokens, causal and padded": (200, lambda: regard.attention(tiny, tiny, tiny, mask=mask)),
        "attention, 256 tokens": (10, lambda: regard.attention(middle, middle, middle)),
        "an encoder, forward and backward": (1, lambda: encoder(x).sum().backward()),
        "a cached token": (100, decode),
    }


def work(threads: int) -> None:
    """For each name of a case on standard input, print the seconds that its calls take."""
    import torch

    torch.set_num_threads(threads)
    known = cases()
    for name in map(str.strip, sys.stdin):
        count, call = known[name]
        start = time.perf_counter()
        for _ in range(count):
            call()
        print(time.perf_counter() - start, flush=True)


def main() -> None:
    """Compare both checkouts and print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    workers = []
    for checkout in (HERE, options.other.resolve()):
        code = f"import sys; sys.path[:0] = [{str(checkout / 'src')!r}, {str(HERE / 'benchmarks')!r}]; "
        code += f"import before_after; before_after.work({options.threads})"
        command = [sys.executable, "-c", code]
        workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def seconds(worker: subprocess.Popen[str], name: str) -> float:
        print(name, file=worker.stdin, flush=True)
        return float(worker.stdout.readline())  # type: ignore[union-attr]

    print(f"{options.threads} threads; this checkout over {options.other}, median [quartiles] of {options.rounds}\n")
    for name in cases():
        for worker in workers:
            seconds(worker, name)  # unmeasured: the first call compiles
        ratios = []
        for round_ in range(options.rounds):
            taken = {id(worker): seconds(worker, name) for worker in (workers if round_ % 2 else workers[::-1])}
            ratios.append(taken[id(workers[0])] / taken[id(workers[1])])
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:46} {middle:5.2f}  [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
