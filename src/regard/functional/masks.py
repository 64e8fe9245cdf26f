"""Masks: which query may attend to which key, composed by ``&``. ``True`` means *may attend*, everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.functional.mask import Band, Mask, size_of

__all__ = ["causal", "dense", "from_torch", "padding", "window"]


def causal(offset: int | None = None) -> Mask:
    """Allow each query to attend to the keys up to its own position: ``j <= i + offset``, default offset = Tk - Tq.

    The default aligns the last query with the last key (bottom-right), as a cache of earlier keys needs; with Tq > Tk
    the first queries may attend to no key and give 0. ``offset=0`` aligns the first query with the first key.

    >>> print(causal().draw(3, 5))
    ■ ■ ■ · ·
    ■ ■ ■ ■ ·
    ■ ■ ■ ■ ■
    >>> print(causal(offset=0).draw(3, 5))
    ■ · · · ·
    ■ ■ · · ·
    ■ ■ ■ · ·
    """
    _check_int("offset", offset, optional=True)
    return Mask(bands=(Band(None, 1, offset),))


def window(size: int, offset: int | None = None) -> Mask:
    """Allow each query to attend to fewer than ``size`` positions on each side of its own: ``|j - i - offset| < size``.

    The size counts the token itself; with ``causal() & window(size)`` a query has at most ``size`` keys, the usual
    sliding window (Beltagy et al. 2020, Longformer, section 3.1; Jiang et al. 2023, Mistral 7B, section 2).
    Offset as in `causal`. Raises ArgumentError for a size below 1.

    >>> print(window(2).draw(4, 4))
    ■ ■ · ·
    ■ ■ ■ ·
    · ■ ■ ■
    · · ■ ■
    """
    _check_int("size", size, optional=False)
    _check_int("offset", offset, optional=True)
    if size < 1:
        raise ArgumentError(f"window size must be at least 1 (it counts the token itself), got {size}")
    return Mask(bands=(Band(size, size, offset),))


def padding(keep: Tensor | None = None, *, lengths: Tensor | Sequence[int] | None = None) -> Mask:
    """Hide the padding of each example: ``keep`` (B, Tk) bool marks the real keys, or ``lengths`` (B,) counts them.

    B is the first axis of the query, which has three axes or more. Raises ArgumentError for other ranks and dtypes.

    >>> print(padding(lengths=[3, 1]).draw(1, 4))
    ■ ■ ■ ·
    <BLANKLINE>
    ■ · · ·
    """
    if (keep is None) == (lengths is None):
        raise ArgumentError("padding takes either keep (B, Tk) bool or lengths (B,), one of the two")
    if keep is not None:
        _check_bool("padding(keep)", keep)
        if keep.ndim != 2:
            raise ArgumentError(f"padding keep must be (B, Tk), got {size_of(keep)}; for (Tq, Tk) use dense(table)")
        return Mask(keeps=(keep,))
    counts = lengths if isinstance(lengths, Tensor) else torch.tensor(lengths, dtype=torch.int64)
    if counts.ndim != 1 or counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool:
        raise ArgumentError(f"padding lengths must be (B,) integers, got {counts.dtype} {size_of(counts)}")
    return Mask(lengths=(counts,))


def dense(table: Tensor) -> Mask:
    """Use a table as a mask: bool (Tq, Tk), or of the query's rank with sizes 1 or equal, such as (B, 1, Tq, Tk).

    Raises ArgumentError unless it is a bool tensor of two axes or more.

    >>> print(dense(torch.eye(3, dtype=torch.bool)))
    dense(3 x 3)
    ■ · ·
    · ■ ·
    · · ■
    """
    _check_bool("dense(table)", table)
    if table.ndim < 2:
        raise ArgumentError(f"dense table must be (Tq, Tk) or of the query's rank, got {size_of(table)}")
    return Mask(tables=(table,))


def from_torch(key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None, *, num_heads: int = 1) -> Mask:
    """Convert the bool arguments of torch.nn.MultiheadAttention, where ``True`` hides a key, to a mask.

    ``key_padding_mask`` (B, Tk), ``attn_mask`` (Tq, Tk) or (B * num_heads, Tq, Tk). A float attn_mask raises
    ArgumentError: pass it as ``bias=``. (The attn_mask of scaled_dot_product_attention already means *may attend*.)

    >>> above = torch.ones(3, 3, dtype=torch.bool).triu(1)
    >>> torch.equal(from_torch(attn_mask=above).allowed((3, 3)), causal().allowed((3, 3)))
    True
    """
    mask = Mask()
    if key_padding_mask is not None:
        _check_bool("key_padding_mask", key_padding_mask)
        mask &= padding(~key_padding_mask)
    if attn_mask is not None:
        _check_bool("attn_mask", attn_mask)
        if attn_mask.ndim == 3:
            if num_heads < 1 or attn_mask.shape[0] % num_heads:
                raise ArgumentError(
                    f"attn_mask must be (B * num_heads, Tq, Tk) with num_heads={num_heads}, got {size_of(attn_mask)}"
                )
            attn_mask = attn_mask.reshape(-1, num_heads, *attn_mask.shape[1:])
        mask &= dense(~attn_mask)
    return mask


def _check_int(name: str, value: object, *, optional: bool) -> None:
    if isinstance(value, bool) or not (isinstance(value, int | torch.SymInt) or (optional and value is None)):
        raise ArgumentError(f"{name} must be an int, got {type(value).__name__}")


def _check_bool(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{name} must be a bool tensor, got {type(tensor).__name__}")
    if tensor.is_floating_point():
        raise ArgumentError(f"{name} must be bool (True = may attend), got {tensor.dtype}: pass scores to add as bias=")
    if tensor.dtype != torch.bool:
        raise ArgumentError(f"{name} must be bool (True = may attend), got {tensor.dtype}: use .bool()")
