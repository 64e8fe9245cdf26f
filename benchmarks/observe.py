"""Cost of the statistics of dot scores, beside plain scaled_dot_product_attention and beside the matrix of weights.

    python benchmarks/observe.py [time|memory] [--threads N] [--seconds X]

Without a name, run both parts. Check all values against float64 first, then time the calls in turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import Mask, Observe
from regard.bench.measure import interleaved, peak_megabytes

HEADS, FEATURES = 8, 64
BOTH = Observe(entropy=True, received=True)
MORE = Observe(entropy=True, received=True, top=8, distance=True, offsets=(0, -1))  # the defaults of `watch`
Answer = tuple[Tensor, Tensor, Tensor]  # output, entropy, received


def observed(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, observe: Observe) -> Answer:
    """Return output and statistics from `regard.attention`."""
    output, statistics = regard.attention(q, k, v, mask=mask, observe=observe)
    return output, statistics.entropy, statistics.received


def dense(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Answer:
    """Return the same from the matrix of weights; with float64 inputs, these are the expected values."""
    scores = q @ k.mT / FEATURES**0.5
    if mask is not None:
        scores.masked_fill_(~mask.allowed(scores.shape), -torch.inf)
    weights = scores.softmax(-1)
    return weights @ v, torch.special.entr(weights).sum(-1), weights.sum(-2)


def check(found: Answer, expected: Answer, case: str) -> None:
    """Exit if values differ, so that wrong ones are never timed."""
    for name, ours, theirs in zip(("output", "entropy", "received"), found, expected, strict=True):
        error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        if not error < 1e-5:
            sys.exit(f"{case}: {name} differs from float64 by {error:.1e}; nothing is timed")


def time(seconds: float) -> None:
    """Time all ways in turns and print a table."""
    print(f"\n{HEADS} heads of {FEATURES}, B = 1: milliseconds, and multiples of plain scaled_dot_product_attention\n")
    print("| T | mask | plain | + entropy, received | + defaults of `watch` | both from the matrix |")
    print("|---|---|---|---|---|---|", flush=True)
    for T in (1024, 2048, 4096):
        q, k, v = torch.randn(3, 1, HEADS, T, FEATURES).unbind()
        keep = torch.arange(T).expand(1, T) < T - T // 8
        kinds: dict[str, tuple[Mask | None, dict[str, object]]] = {
            "none": (None, {}),
            "causal": (regard.causal(), {"is_causal": True}),
            "padding": (regard.padding(keep), {"attn_mask": keep[:, None, None]}),
        }
        for name, (mask, theirs) in kinds.items():
            expected = dense(q.double(), k.double(), v.double(), mask)
            ways: dict[str, Callable[[], object]] = {
                "plain": lambda: scaled_dot_product_attention(q, k, v, **theirs),  # noqa: B023
                "both": lambda: observed(q, k, v, mask, BOTH),  # noqa: B023
                "more": lambda: observed(q, k, v, mask, MORE),  # noqa: B023
                "dense": lambda: dense(q, k, v, mask),  # noqa: B023
            }
            for observe in (BOTH, MORE):
                check(observed(q, k, v, mask, observe), expected, f"T={T}, {name}")
            check(dense(q, k, v, mask), expected, f"T={T}, {name}, matrix")
            del expected
            taken = interleaved(ways, seconds)
            plain = taken.pop("plain")
            rest = " | ".join(f"{x * 1e3:.0f} ({x / plain:.2f}×)" for x in taken.values())
            print(f"| {T:,} | {name} | {plain * 1e3:.0f} | {rest} |", flush=True)


def memory(seconds: float) -> None:
    """Measure the peak memory of one call each way and print a table."""
    print("\nPeak memory of a call in megabytes, above the memory in use before it\n")
    print("| T | plain | with entropy, received | these add | defaults of `watch` add | the matrix alone |")
    print("|---|---|---|---|---|---|", flush=True)
    for T in (2048, 8192, 32768):
        inputs = torch.randn(3, 1, HEADS, T, FEATURES).unbind()
        ways: dict[str, Callable[..., object]] = {
            "plain": scaled_dot_product_attention,
            "both": lambda q, k, v: observed(q, k, v, None, BOTH),
            "more": lambda q, k, v: observed(q, k, v, None, MORE),
        }
        peaks = []
        for way in ways.values():
            way(*(x[:, :, :1024] for x in inputs))  # so that the peak excludes loading and compilation
            peaks.append(peak_megabytes(lambda: way(*inputs)))  # noqa: B023
        plain, both, more = peaks
        matrix = HEADS * T * T * 4 / 2**20
        print(
            f"| {T:,} | {plain:.0f} | {both:.0f} | {both - plain:.0f} | {more - plain:.0f} | {matrix:,.0f} |",
            flush=True,
        )


def main() -> None:
    """Run the parts and print their tables."""
    parts = {part.__name__: part for part in (time, memory)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=parts)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.threads} threads, float32; medians of calls in turns")
    with torch.inference_mode():
        for name, part in parts.items():
            if options.part in (None, name):
                part(options.seconds)


if __name__ == "__main__":
    main()
