"""Dropout, which on the CPU draws one random number a call, and makes the others of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard._eager import accepts_cpu_loop

__all__ = ["dropout"]

_NUMBER = 2.4  # nanoseconds, a quarter of which it takes: torch's threads are awake, as it mostly follows a product


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: Tensor) -> Tensor:
        from regard._kernels.cpu import additive as cpu
        from regard._kernels.cpu.loops.dropout import drop

        ctx.p, ctx.seed = p, seed
        x = x.detach().contiguous()
        out = torch.empty_like(x)
        drop(_NUMBER * x.numel(), x.view(-1).numpy(), out.view(-1).numpy(), cpu.dropout(p, seed))
        return out

    @staticmethod
    def backward(ctx: Any, of_output: Tensor) -> tuple[Tensor, None, None]:
        return _Dropout.apply(of_output, ctx.p, ctx.seed), None, None  # type: ignore[no-untyped-call]


def dropout(x: Tensor, p: float) -> Tensor:
    """m * x / (1 - p), with m 0 with probability p and else 1, independently for each element.

    The numbers that decide are made of a seed and the element's place, again on the way back, where torch draws one
    for each, and spends more time on that than on all else. On other devices and for other types than float32 and
    float64, where code is compiled, and under torch's transforms, it is torch's.
    """
    if not p:
        return x
    if not accepts_cpu_loop(x):
        return torch.nn.functional.dropout(x, p)
    made: Tensor = _Dropout.apply(x, p, torch.randint(2**62, (), dtype=torch.int64))  # type: ignore[no-untyped-call]
    return made
