"""Training speed of a recurrent encoder-decoder: target symbols a second with the plain loop and with fused kernels.

    python benchmarks/training.py [--batch N] [--threads N]

Compare the losses first, then time updates of both in turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch

from regard.bench.measure import interleaved
from regard.models import RecurrentConfig, RecurrentSeq2Seq


def updates(impl: str, batch: int, source: int, target: int) -> Callable[[], float]:
    """Return a function that updates a model with attention by ``impl`` on random pairs of these lengths."""
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(RecurrentConfig(40, 45, dropout=0.0))
    model.attention.impl = impl
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    sources, targets = torch.randint(4, 40, (batch, source)), torch.randint(4, 45, (batch, target + 1))
    lengths = torch.full((batch,), source)

    def update() -> float:
        logits = model(sources, lengths, targets[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return update


def main() -> None:
    """Time the updates and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, batch {options.batch}, GRU, H=256, E=128\n")
    print("| source, target length | reference, tokens/s | kernels, tokens/s | ratio |\n|---|---|---|---|")
    for source, target in ((9, 8), (30, 30), (100, 30)):
        functions = {impl: updates(impl, options.batch, source, target) for impl in ("reference", "cpu")}
        first, second = (function() for function in functions.values())
        if abs(first - second) > 1e-5 * abs(first):
            sys.exit(f"losses differ: {first} and {second}; nothing is timed")
        taken = interleaved(functions, options.seconds)
        speed = {impl: options.batch * target / seconds for impl, seconds in taken.items()}
        print(
            f"| {source}, {target} | {speed['reference']:,.0f} | {speed['cpu']:,.0f} "
            f"| {speed['cpu'] / speed['reference']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
