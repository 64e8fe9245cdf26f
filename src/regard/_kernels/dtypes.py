"""The dtype in which kernels accumulate."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accumulation_dtype", "widen"]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64 and float32 for all other dtypes: half precision accumulates in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in the dtype in which kernels accumulate."""
    dtype = accumulation_dtype(tensor.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)  # `to` takes a microsecond to do nothing
