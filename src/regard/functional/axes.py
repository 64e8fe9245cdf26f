"""Tensors brought to the four axes (L, heads, T, E) that kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from torch import Tensor

__all__ = ["broadcast", "four_axes"]


def four_axes(tensor: Tensor) -> Tensor:
    """Return (..., heads, T, E) as (L, heads, T, E)."""
    if tensor.ndim <= 4:
        return tensor[(None,) * (4 - tensor.ndim)] if tensor.ndim < 4 else tensor
    return tensor.reshape(-1, *tensor.shape[-3:])


@overload
def broadcast(tensor: Tensor, shape: Sequence[int]) -> Tensor: ...
@overload
def broadcast(tensor: None, shape: Sequence[int]) -> None: ...
@overload
def broadcast(tensor: Tensor | None, shape: Sequence[int]) -> Tensor | None: ...


def broadcast(tensor: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Return a tensor that broadcasts to ``shape`` (..., heads, Tq, Tk) so that it broadcasts to (L, heads, Tq, Tk)."""
    if tensor is None:
        return None
    if tensor.ndim > 4 and any(size != 1 for size in tensor.shape[:-3]):
        tensor = tensor.expand(*shape[:-3], *tensor.shape[-3:])
    return four_axes(tensor)
