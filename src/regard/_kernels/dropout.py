"""Dropout, whose random numbers are drawn four at a time on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level

__all__ = ["dropout"]

_LEVELS = 2**16  # of a 16-bit number, one of which decides: the probability is p within 2^-17


def dropout(x: Tensor, p: float) -> Tensor:
    """m * x / (1 - p), with m 0 with probability p and else 1, independently for each element.

    One 64-bit number serves four elements, where torch draws one for each, and spends more time on that than on all
    else. On other devices, where code is compiled, and under torch.func, it is torch's.
    """
    dropped = round(p * _LEVELS)
    if not dropped:
        return x
    if not x.is_cpu or torch.compiler.is_compiling() or maybe_current_level() is not None:
        return torch.nn.functional.dropout(x, p)
    drawn = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = drawn[: x.numel()].view(x.shape) > dropped - _LEVELS // 2 - 1
    return x * kept.to(x.dtype).mul_(0.0 if p == 1 else 1 / (1 - p))
