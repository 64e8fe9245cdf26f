"""Attention, multi-head layers, encoders and cached decoding, compared with torch's own: milliseconds and ratios.

    python benchmarks/transformer.py [operator|layer|encoder|cache] [--threads N] [--seconds X]

Without a name, run all parts. Compare the values first, then time both sides in turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.bench.measure import interleaved
from regard.nn import BlockConfig, KeyValueCache, MultiHeadAttention, TransformerEncoder

DIM, HEADS, LAYERS = 512, 8, 6
BATCH, STEPS = 4, 32


def check(ours: Tensor, theirs: Tensor, case: str) -> None:
    """Exit if values differ, so that wrong ones are never timed."""
    error = ((ours - theirs).norm() / theirs.norm()).item()
    if not error < 1e-5:
        sys.exit(f"{case}: values differ by {error:.1e}; nothing is timed")


def table(title: str) -> None:
    print(f"\n{title}\n\n| case | regard, ms | torch, ms | regard / torch |\n|---|---|---|---|", flush=True)


def compare(case: str, ours: Callable[[], Tensor], theirs: Callable[[], Tensor], seconds: float) -> None:
    """Compare the values, time both calls in turns, and print one row of the table."""
    check(ours(), theirs(), case)
    taken = interleaved({"ours": ours, "theirs": theirs}, seconds)
    print(
        f"| {case} | {taken['ours'] * 1e3:.3f} | {taken['theirs'] * 1e3:.3f} | {taken['ours'] / taken['theirs']:.3f} |",
        flush=True,
    )


def with_backward(call: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Tensor]:
    """Return a function that runs the call and its backward pass and returns the gradient of the first input."""
    grad_output = torch.ones_like(call(*inputs)).detach() / 100

    def run() -> Tensor:
        gradients = torch.autograd.grad(call(*inputs), [x for x in inputs if x.requires_grad], grad_output)
        return gradients[0]

    return run


def operator(seconds: float) -> None:
    """Compare `regard.attention` with scaled_dot_product_attention."""
    table("`regard.attention` and scaled_dot_product_attention, 8 heads of 64, 2,048 tokens in total")
    for B, T in ((1, 8), (8, 256), (4, 512), (2, 1024), (1, 2048)):
        q, k, v = torch.randn(3, B, HEADS, T, 64).unbind()
        keep = torch.arange(T).expand(B, T) < T - 1
        masks = {
            "": ({}, {}),
            ", causal": ({"mask": regard.causal()}, {"is_causal": True}),
            ", padding": ({"mask": regard.padding(keep)}, {"attn_mask": keep[:, None, None]}),
        }
        for name, (mask, their_mask) in masks.items():

            def ours(q: Tensor, k: Tensor, v: Tensor, mask: dict[str, object] = mask) -> Tensor:
                return regard.attention(q, k, v, **mask)

            def theirs(q: Tensor, k: Tensor, v: Tensor, mask: dict[str, object] = their_mask) -> Tensor:
                return scaled_dot_product_attention(q, k, v, **mask)

            case = f"B={B}, T={T}{name}"
            compare(case, lambda: ours(q, k, v), lambda: theirs(q, k, v), seconds)  # noqa: B023
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            compare(f"{case}, with backward", with_backward(ours, *leaves), with_backward(theirs, *leaves), seconds)


def layer(seconds: float) -> None:
    """Compare `MultiHeadAttention`, returning its weights, with torch's layer with need_weights=True."""
    table(f"A layer that returns the weights of every head: {DIM} features, {HEADS} heads")
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    ours = MultiHeadAttention(DIM, HEADS)
    ours.load_state_dict(theirs.state_dict())
    observe = regard.Observe(weights=True)
    for B, T in ((16, 64), (8, 128), (4, 512), (1, 2048)):
        x = torch.randn(B, T, DIM)
        for average in (False, True):
            name = "mean over heads" if average else "each head"

            def mine(x: Tensor, average: bool = average) -> Tensor:
                weights = ours(x, observe=observe)[1].weights
                return weights.mean(1) if average else weights

            def torchs(x: Tensor, average: bool = average) -> Tensor:
                return theirs(x, x, x, need_weights=True, average_attn_weights=average)[1]

            with torch.no_grad():
                compare(f"B={B}, T={T}, {name}", lambda: mine(x), lambda: torchs(x), seconds)  # noqa: B023


def encoder(seconds: float) -> None:
    """Compare `TransformerEncoder` with nn.TransformerEncoder."""
    table(f"An encoder of {LAYERS} layers, {DIM} features, {HEADS} heads, feed-forward 2,048; 2,048 tokens in total")
    for norm_first in (False, True):
        block = nn.TransformerEncoderLayer(DIM, HEADS, dropout=0.0, batch_first=True, norm_first=norm_first)
        final = nn.LayerNorm(DIM) if norm_first else None
        theirs = nn.TransformerEncoder(block, LAYERS, norm=final, enable_nested_tensor=False)
        ours = TransformerEncoder(BlockConfig(DIM, HEADS, 2048, dropout=0.0, norm_first=norm_first), LAYERS)
        ours.load_state_dict(theirs.state_dict())
        for B, T in ((16, 128), (4, 512), (1, 2048)):
            case, x = f"{'pre' if norm_first else 'post'}-norm, B={B}, T={T}", torch.randn(B, T, DIM)
            for model in (ours, theirs):
                model.eval()
            with torch.no_grad():
                compare(f"{case}, forward", lambda: ours(x), lambda: theirs(x), seconds)  # noqa: B023
            for model in (ours, theirs):
                model.train()
            x.requires_grad_()
            parameters = [[x, *model.parameters()] for model in (ours, theirs)]
            backward = [
                lambda m=model, p=some: torch.autograd.grad(m(x).square().mean(), p)[0]  # noqa: B023
                for model, some in zip((ours, theirs), parameters, strict=True)
            ]
            compare(f"{case}, with backward", *backward, seconds)


def cache(seconds: float) -> None:
    """Compare one more token through two layers with a cache and by re-feeding the whole prefix."""
    print(f"\nOne more token, {BATCH} sequences, 2 layers, with a cache ({STEPS} tokens in turn) and by re-feeding\n")
    print("| tokens before | cached, ms | re-fed, ms | re-fed / cached |\n|---|---|---|---|", flush=True)
    model = TransformerEncoder(BlockConfig(DIM, HEADS, 2048, dropout=0.0, norm_first=True), 2).eval()
    causal, rows = regard.causal(), torch.arange(BATCH)
    with torch.inference_mode():
        for T in (256, 512, 1024, 2048, 4096):
            x = torch.randn(BATCH, T + STEPS, DIM)
            read = [KeyValueCache() for _ in range(2)]
            model(x[:, :T], mask=causal, caches=read)

            def cached(read: list[KeyValueCache] = read, x: Tensor = x, T: int = T) -> Tensor:
                caches = [kept.select(rows) for kept in read]  # copies, so that each turn starts from the same state
                for t in range(T, T + STEPS):
                    output = model(x[:, t : t + 1], mask=causal, caches=caches)
                return output

            def fed(x: Tensor = x) -> Tensor:
                return model(x, mask=causal)[:, -1:]

            check(cached(), fed(), f"{T} tokens")
            taken = interleaved({"cached": cached, "fed": fed}, seconds, least=1)
            one = taken["cached"] / STEPS
            print(f"| {T:,} | {one * 1e3:.2f} | {taken['fed'] * 1e3:.1f} | {taken['fed'] / one:.0f} |", flush=True)


def main() -> None:
    """Run the parts and print their tables."""
    parts = {part.__name__: part for part in (operator, layer, encoder, cache)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=parts)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.threads} threads, float32; medians of calls in turns")
    for name, part in parts.items():
        if options.part in (None, name):
            part(options.seconds)


if __name__ == "__main__":
    main()
