"""The dtype in which kernels accumulate."""

from __future__ import annotations

import torch

__all__ = ["accumulation_dtype"]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64 and float32 for all other dtypes: half precision accumulates in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
