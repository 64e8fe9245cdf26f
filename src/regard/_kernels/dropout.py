"""Dropout that on the CPU draws one random number a call, and hashes those of all elements from it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard._eager import accepts_cpu_loop
from regard._kernels.dropout_mask import ROW, DropoutMask

__all__ = ["dropout"]

_NUMBER = 2.4  # nanoseconds, a quarter of which it takes: torch's threads are awake, as it mostly follows a product
_32_BITS = 2**32 - 1


def dropout(x: Tensor, p: float, *, by_numba: bool = True) -> Tensor:
    """Return m * x / (1 - p), with m 0 with probability p and else 1, independently for each element.

    m is a hash of a seed and the element's position, and is computed again in the backward pass. torch draws a random
    number for each element, which takes longer than all else; it does so on other devices, for other dtypes than
    float32 and float64, in compiled code, and under torch's transforms. Without ``by_numba`` torch's operators compute
    the same hash.
    """
    if not p:
        return x
    if not accepts_cpu_loop(x):
        return torch.nn.functional.dropout(x, p)
    seed = torch.randint(2**62, (), dtype=torch.int64)
    if not by_numba:
        return x * _factors(x, DropoutMask.of(p, seed))
    output: Tensor = _Dropout.apply(x, p, seed)  # type: ignore[no-untyped-call]
    return output


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: Tensor) -> Tensor:
        from regard._kernels.cpu.loops.dropout import drop

        ctx.p, ctx.seed = p, seed
        x = x.detach().contiguous()
        out = torch.empty_like(x)
        drop(_NUMBER * x.numel(), x.view(-1).numpy(), out.view(-1).numpy(), DropoutMask.of(p, seed))
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        return _Dropout.apply(grad_output, ctx.p, ctx.seed), None, None  # type: ignore[no-untyped-call]


def _factors(x: Tensor, mask: DropoutMask) -> Tensor:
    """Return the factor of each element, as `loops.dropout.drop` has it."""
    position = torch.arange(x.numel(), device=x.device)
    row, column = position // ROW, position % ROW
    low = _hash32((mask.seed & _32_BITS) ^ row)
    of_row = _hash32((low ^ ((mask.seed >> 32) & 0x7FFFFFFF)) + (row >> 32) & _32_BITS)
    kept = _hash32(column ^ of_row) >= mask.threshold
    return (kept.to(x.dtype) * mask.scale).view(x.shape)


def _hash32(x: Tensor) -> Tensor:
    """Scatter 32 bits, which 64 hold: `loops.rows.mixed` in torch's operators."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _32_BITS
    x = (x ^ (x >> 15)) * 0x846CA68B & _32_BITS
    return x ^ (x >> 16)
