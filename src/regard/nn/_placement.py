"""Positions of queries and keys, under padding, with a cache, and within its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.functional import Mask, window

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

__all__ = ["Placement", "check_cached", "placement", "within_window"]


class Placement(NamedTuple):
    """The positions of queries and keys: integers (Tq,) and (Tk,), or (B, Tq) and (B, Tk) with padding."""

    query: Int[Tensor, "*B Tq"]
    key: Int[Tensor, "*B Tk"]


def placement(
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, shape: Sequence[int], device: torch.device, *, own: bool
) -> Placement:
    """Number the keys that are not padding, and give the queries their positions.

    Queries that are ``own`` belong to the last keys; others have the last positions that are not padding.

    >>> from regard import padding
    >>> query, key = placement(padding(lengths=[3, 1]), (2, 1, 2, 4), torch.device("cpu"), own=False)
    >>> query.tolist(), key.tolist()
    ([[1, 2], [-1, 0]], [[0, 1, 2, 2], [0, 0, 0, 0]])
    """
    queries, keys = shape[-2:]
    kept = None
    if isinstance(mask, Mask) and mask.has_padding:
        if len(shape) != 4:
            raise ArgumentError("padding with positions needs a batch: expected (B, T, D), got (T, D)")
        mask.check(shape, device)
        kept = mask.kept_keys(shape, device)
    if kept is None:
        at = torch.arange(keys, device=device)
        return Placement(torch.arange(keys - queries, keys, device=device), at)
    kept = kept.flatten(1)
    at = (kept.cumsum(-1) - 1).clamp(min=0)  # padding has the position of the token before it
    last = torch.arange(-queries, 0, device=device) + kept.sum(-1, keepdim=True)
    return Placement(at[:, keys - queries :] if own else last, at)


def check_cached(
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, shape: Sequence[int], device: torch.device, size: int | None
) -> None:
    """Check that the mask fits scores of this shape, and is causal if the cache has a window of ``size`` tokens."""
    if isinstance(mask, Mask):
        mask.check(shape, device)
    if size is not None and not (isinstance(mask, Mask) and mask.is_causal):
        raise ArgumentError(
            f"a cache with window={size} drops old tokens: use a layer with causal=True or a mask of causal() & ..."
        )


def within_window(
    size: int,
    mask: Mask,
    bias: Float[Tensor, "*biased Tq Tk"] | None,
    places: Placement | None,
    total: int,
    keys: int,
) -> tuple[Mask, Float[Tensor, "*biased Tq Tk"] | None, Placement | None]:
    """Restrict mask, bias and positions to the last ``keys`` keys of ``total``, those within the window."""
    if bias is not None and bias.shape[-1] == total:
        bias = bias[..., total - keys :]
    if places is not None:
        places = places._replace(key=places.key[..., total - keys :])
    return mask.of_last_keys(keys, total) & window(size), bias, places
