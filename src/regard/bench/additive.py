"""Benchmark of additive attention against other implementations: time, peak memory, and error against float64.

Peers, all in this process and called in turn: the formula in plain PyTorch, torch.compile of it, Keras's
AdditiveAttention as it computes, and KeOps where `pykeops` is installed. A peer whose values are wrong has no time.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import regard
from regard._kernels.cpu.prepared_inputs import scratch
from regard.bench.bound import report
from regard.bench.measure import interleaved, peak_megabytes

__all__ = ["main"]

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Compute softmax(w . tanh(q + k)) v, by broadcasting."""
    scores = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ weight
    return torch.softmax(scores, -1) @ value


def keras(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Compute it as `keras.layers.AdditiveAttention`: an elementwise product with the weight, then a sum."""
    scores = (weight * torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))).sum(-1)
    return torch.softmax(scores, -1) @ value


def keops(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Compute it from a symbolic tensor that is never built; KeOps has no tanh, so it is written with exponentials."""
    from pykeops.torch import LazyTensor

    q, k, v = LazyTensor(query.unsqueeze(-2)), LazyTensor(key.unsqueeze(-3)), LazyTensor(value.unsqueeze(-3))
    tanh = 1 - 2 / (1 + (2 * (q + k)).exp())
    scores = (tanh * LazyTensor(weight.view(1, 1, 1, -1))).sum(-1)
    output: Tensor = scores.sumsoftmaxweight(v, dim=2)
    return output


def ours(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, mask: regard.Mask | None = None) -> Tensor:
    """Compute it by `regard.attention`, with one head."""
    query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    return regard.attention(query, key, value, score=regard.Additive(weight), mask=mask).squeeze(1)


def peers() -> dict[str, Attend]:
    """Return the implementations that can be measured here, regard's first."""
    found: dict[str, Attend] = {
        "regard": ours,
        "PyTorch": plain,
        "torch.compile": torch.compile(plain, dynamic=False),
        "Keras's formula": keras,
    }
    if importlib.util.find_spec("pykeops"):
        found["KeOps"] = keops
    return found


class Case(NamedTuple):
    """The sizes of one measurement."""

    name: str
    B: int
    Tq: int
    Tk: int
    H: int
    Ev: int

    def inputs(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Return query, key, value, weight, and the gradient of the output; the same numbers each time."""
        generator = torch.Generator().manual_seed(0)
        shapes = [(self.B, self.Tq, self.H), (self.B, self.Tk, self.H), (self.B, self.Tk, self.Ev), (self.H,)]
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float32) for shape in shapes]
        drawn[3] /= math.sqrt(self.H)
        grad_output = torch.randn(self.B, self.Tq, self.Ev, generator=generator)
        return (*(x.to(dtype).requires_grad_() for x in drawn), grad_output.to(dtype))


SQUARE = Case("B=4, T=256, H=Ev=128", 4, 256, 256, 128, 128)
STEP = Case("decoder step B=256, Tq=1, Tk=12, H=256", 256, 1, 12, 256, 256)
LONG = [Case(f"B=1, T={T:,}, H=Ev=128", 1, T, T, 128, 128) for T in (1024, 2048, 4096, 8192, 16384)]


def forward(attend: Attend, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """Return a call of the forward pass alone."""

    def run() -> object:
        with torch.no_grad():
            return attend(*inputs[:4])

    return run


def backward(attend: Attend, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """Return a call of the forward and the backward pass."""
    return lambda: torch.autograd.grad(attend(*inputs[:4]), inputs[:4], inputs[4])


def errors(attend: Attend, case: Case, exact: list[Tensor]) -> list[float]:
    """Return the relative errors of the output and of each gradient."""
    inputs = case.inputs()
    output = attend(*inputs[:4])
    found = [output, *torch.autograd.grad(output, inputs[:4], inputs[4])]
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]


def compare(case: Case, seconds: float, attends: dict[str, Attend]) -> list[str]:
    """Return the lines of the table for one case."""
    wide = case.inputs(torch.float64)
    output = plain(*wide[:4])
    exact = [output.detach(), *torch.autograd.grad(output, wide[:4], wide[4])]
    found = {name: errors(attend, case, exact) for name, attend in attends.items()}
    # Law 8, fourfold; one rounding is free, as some errors may happen to be tiny.
    limit = [4 * error + torch.finfo(torch.float32).eps for error in found["PyTorch"]]
    right = {name for name, list_ in found.items() if all(e <= most for e, most in zip(list_, limit, strict=True))}
    inputs = case.inputs()
    kept = {name: attend for name, attend in attends.items() if name in right}
    once = interleaved({name: forward(attend, inputs) for name, attend in kept.items()}, seconds)
    both = interleaved({name: backward(attend, inputs) for name, attend in kept.items()}, seconds)
    lines = []
    for name, attend in attends.items():
        error = max(found[name])
        if name not in right:
            lines.append(f"| {case.name} | {name} | wrong | | | | | {error:.1e} |")
            continue
        scratch.kept.clear()
        peak = peak_megabytes(backward(attend, inputs))
        ratios = [f"{taken[name] / taken['regard']:.1f}" if "regard" in right else "" for taken in (once, both)]
        lines.append(
            f"| {case.name} | {name} | {once[name] * 1e3:.2f} | {ratios[0]} | {both[name] * 1e3:.2f} | {ratios[1]} "
            f"| {peak:.0f} | {error:.1e} |"
        )
    return lines


def long(case: Case, seconds: float) -> str:
    """Return the line of the table for one length: time, memory, and the ratio of time with a mask to time without."""
    inputs, window = case.inputs(), regard.causal() & regard.window(256)
    masks = {"full": None, "causal": regard.causal(), "window": window}

    def masked(mask: regard.Mask | None) -> Callable[[], object]:
        return backward(lambda query, key, value, weight: ours(query, key, value, weight, mask), inputs)

    taken = interleaved({name: masked(mask) for name, mask in masks.items()}, seconds, least=1)
    held = 2 * sum(x.numel() for x in inputs[:4]) + 2 * inputs[4].numel()  # inputs, output, and the gradients of both
    megabytes = held * 4 / 2**20
    scratch.kept.clear()  # buffers that a thread reuses between calls count too
    peak = peak_megabytes(masked(None))
    total = megabytes / 2 + peak  # the inputs were allocated before; all other tensors are within the peak
    return (
        f"| {case.Tq:,} | {taken['full'] * 1e3:.0f} | {taken['causal'] / taken['full']:.2f} "
        f"| {taken['window'] / taken['full']:.3f} | {total:.0f} | {total / megabytes:.1f} |"
    )


def main(seconds: float = 5.0, threads: int | None = None, longest: int = 16384) -> None:
    """Print the tables: some ``seconds`` for each measurement, the second table up to the length ``longest``."""
    if threads is not None:
        torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32; medians of interleaved calls\n")
    print("| case | implementation | forward, ms | ratio | with backward, ms | ratio | peak, MB | error |")
    print("|---|---|---|---|---|---|---|---|")
    for case in (SQUARE, STEP):
        print("\n".join(compare(case, seconds, peers())), flush=True)
    print("\nForward and backward by length; memory counts inputs, output and all gradients, which are the unit.\n")
    print("| T | full, ms | causal / full | window of 256 / full | memory, MB | units |\n|---|---|---|---|---|---|")
    for case in LONG:
        if case.Tq <= longest:
            print(long(case, seconds), flush=True)
    print(f"\n{report()}")
