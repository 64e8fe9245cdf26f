"""Argument checks of `attention`: each raises ArgumentError with one line."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.functional.mask import Mask
from regard.functional.masks import dense
from regard.functional.observe import Observe
from regard.functional.scores import Score

__all__ = ["autocast_dtype", "check_arguments", "check_bias", "check_observe"]


def autocast_dtype(query: Tensor) -> torch.dtype | None:
    """Return the dtype to which autocast casts the inputs; None outside autocast, and for float64 (never cast)."""
    kind = query.device.type
    if query.dtype == torch.float64 or kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Score,
    mask: Mask | Tensor | None,
    bias: Tensor | None,
    dropout_p: float,
    observe: Observe | None,
) -> tuple[tuple[int, ...], Mask | None]:
    """Check all arguments, and return the shape (..., Hq, Tq, Tk) of the scores and the mask as a `Mask`."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not isinstance(score, Score):
        raise ArgumentError(f"score must be a score such as ScaledDot(), got {score!r}")
    q, k, v = query.shape, key.shape, value.shape
    if not (len(q) == len(k) == len(v) >= 2 and q[:-3] == k[:-3] and k[:-1] == v[:-1] and _heads_divide(q, k)):
        raise ArgumentError(_shape_fault(q, k, v))
    if 0 in (q[-1], k[-1]):
        raise ArgumentError(f"query and key need at least one feature, got query {tuple(q)} and key {tuple(k)}")
    score.check(q, k)
    shape = (*q[:-1], k[-2])
    if bias is not None:
        check_bias(bias, shape)
    others = (key, value, *score.tensors()) if bias is None else (key, value, *score.tensors(), bias)
    _check_dtypes_and_devices(query, others)
    if not 0.0 <= dropout_p <= 1.0:
        raise ArgumentError(f"dropout_p must be a probability within 0..1, got {dropout_p}")
    if observe is not None:
        check_observe(observe, shape)
    return shape, None if mask is None else _check_mask(mask, shape, query.device)


def check_observe(observe: Observe, shape: Sequence[int]) -> None:
    """Check that ``observe`` is an `Observe` whose statistics scores of this shape have."""
    if not isinstance(observe, Observe):
        raise ArgumentError(f"observe must be an Observe such as Observe(entropy=True), got {observe!r}")
    observe.check(shape)


def _check_mask(mask: Mask | Tensor, shape: tuple[int, ...], device: torch.device) -> Mask:
    if isinstance(mask, Tensor):
        table = dense(mask)
        if mask.ndim != len(shape):
            raise ArgumentError(
                f"a mask tensor must have the query's {len(shape)} axes, {shape} with sizes 1 or equal, got "
                f"{tuple(mask.shape)}: use padding(m) for (B, Tk), dense(m) for (Tq, Tk)"
            )
        mask = table
    elif not isinstance(mask, Mask):
        raise ArgumentError(f"mask must be a Mask such as causal(), or a bool tensor, got {type(mask).__name__}")
    mask.check(shape, device)
    return mask


def _heads_divide(q: torch.Size, k: torch.Size) -> bool:
    if len(q) < 3 or q[-3] == k[-3]:
        return True
    return k[-3] > 0 and q[-3] % k[-3] == 0


def _shape_fault(q: torch.Size, k: torch.Size, v: torch.Size) -> str:
    got = f"got query {tuple(q)}, key {tuple(k)}, value {tuple(v)}"
    if not len(q) == len(k) == len(v) >= 2:
        return f"query, key and value must have the same number of axes, at least (T, E), {got}"
    if k[:-1] != v[:-1]:
        return f"key and value must agree in all axes but the last, {got}"
    if q[:-3] != k[:-3]:
        return f"query and key must agree in the axes before (heads, T, E), {got}: use .expand where one is shared"
    return f"the query's heads (third axis from the end) must be a multiple of the key's, {got}"


def _check_dtypes_and_devices(query: Tensor, others: tuple[Tensor, ...]) -> None:
    """Check that there is one floating dtype (any under autocast, which casts them) and one device."""
    dtype, device = query.dtype, query.device
    if not dtype.is_floating_point:
        raise ArgumentError(f"query must have a floating dtype, got {dtype}")
    for other in others:
        if other.device != device:
            raise ArgumentError(f"all tensors must be on one device, got {device} (query) and {other.device}")
        if other.dtype != dtype and (not other.is_floating_point() or autocast_dtype(query) is None):
            raise ArgumentError(
                f"query, key, value, bias and the score's weight must have one dtype, got {dtype} (query) and "
                f"{other.dtype}: cast with .to({dtype}), or use torch.autocast"
            )


def check_bias(bias: Tensor, shape: Sequence[int]) -> None:
    """Check that ``bias`` can be added to scores of this shape."""
    if not isinstance(bias, Tensor):
        raise ArgumentError(f"bias must be a tensor, got {type(bias).__name__}")
    if not bias.is_floating_point():
        raise ArgumentError(f"bias must be floating, to be added to the scores, got {bias.dtype}: pass a bool as mask=")
    if bias.ndim != len(shape) or any(size not in (1, full) for size, full in zip(bias.shape, shape, strict=True)):
        raise ArgumentError(
            f"bias must have the query's {len(shape)} axes, {tuple(shape)} with sizes 1 or equal, "
            f"got {tuple(bias.shape)}"
        )
