"""Positions of tokens, and the joining of encodings and embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Mode = Literal["add", "concat"]

__all__ = ["check_options", "frequencies", "join", "places"]


def check_options(dim: int, mode: str) -> None:
    """Check the size and the mode of an encoding."""
    if dim < 1:
        raise ArgumentError(f"a position encoding needs dim >= 1, got {dim}")
    if mode not in ("add", "concat"):
        raise ArgumentError(f'mode must be "add" or "concat", got {mode!r}')


def places(
    x: Float[Tensor, "*batch T D"], keep: Bool[Tensor, "*batch T"] | None, offset: int | Int[Tensor, "*batch"]
) -> Int[Tensor, "*batch T"] | Int[Tensor, " T"]:
    """Number the tokens that are not padding: 0, 1, 2, …, after ``offset`` earlier ones.

    Padding has the position of the token before it (or the first position): a valid index, whose encoding has no
    influence.
    """
    if x.dim() < 2 or not x.is_floating_point():
        raise ArgumentError(f"positions expect float embeddings (..., T, D), got {x.dtype} of shape {tuple(x.shape)}")
    if keep is None:
        counted = torch.arange(x.shape[-2], device=x.device)
    elif keep.dtype != torch.bool or keep.shape != x.shape[:-1]:
        raise ArgumentError(
            f"keep must be bool of shape {tuple(x.shape[:-1])} (True = a token, False = padding), "
            f"got {keep.dtype} of shape {tuple(keep.shape)}"
        )
    else:
        counted = (keep.cumsum(-1) - 1).clamp(min=0)
    if isinstance(offset, Tensor):
        if offset.is_floating_point() or offset.dtype == torch.bool or offset.shape != x.shape[:-2]:
            raise ArgumentError(
                f"offset must be an int, or integers of shape {tuple(x.shape[:-2])}, one a sequence, "
                f"got {offset.dtype} of shape {tuple(offset.shape)}"
            )
        return counted + offset.unsqueeze(-1)
    if offset < 0:
        raise ArgumentError(f"offset counts the tokens that came before, so it is 0 or more; got {offset}")
    return counted + offset


def frequencies(dim: int, base: float, device: torch.device) -> Float[Tensor, " pairs"]:
    """Return the angle by which each pair of features turns in one step, ω_j = base^(−2j/dim), in radians."""
    # float32 angles are off by 5e-4 at position 10,000; float64 costs nothing at this size. (Apple's MPS has none.)
    pairs = torch.arange((dim + 1) // 2, device=device, dtype=torch.float32 if device.type == "mps" else torch.float64)
    return base ** (-2 * pairs / dim)


def join(
    x: Float[Tensor, "*batch T D"], encoding: Float[Tensor, "*places E"], mode: Mode
) -> Float[Tensor, "*batch T _"]:
    """Add the encoding to the embeddings or append it to their features, in the dtype of the embeddings."""
    if mode == "concat":
        return torch.cat([x, encoding.to(x.dtype).expand(*x.shape[:-1], -1)], dim=-1)
    if x.shape[-1] != encoding.shape[-1]:
        raise ArgumentError(
            f"embeddings of size {x.shape[-1]} cannot be added to positions of size {encoding.shape[-1]}: "
            'make the sizes equal, or use mode="concat"'
        )
    # The sum is formed in the wider of both dtypes and rounded once.
    return (x + encoding).to(x.dtype)
