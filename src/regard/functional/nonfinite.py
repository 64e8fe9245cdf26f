"""Keep what is masked out of the arithmetic, though it be NaN or inf: 0 * NaN is NaN, in the output and in gradients.

Rows of query, key and value that must not be felt are set to zero before a kernel sees them. A row that is not finite
and *is* attended is zeroed as well, so that it cannot leak through a kernel into rows that do not attend to it, and the
rows that do are made NaN afterwards: a fault stays to be seen where it counts. No step of this depends on a value, so
it can be compiled, exported and vmapped. Where values can be read at no cost, in eager mode on the CPU, `shield` first
looks whether there is anything to do: mostly there is not, and that saves several passes over the inputs and copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard._eager import is_eager_on_cpu
from regard.functional.masks import Mask

__all__ = ["Shielded", "shield", "spoiled_rows"]


class Shielded(NamedTuple):
    """What a kernel may be given: finite where it matters, and a table of what is allowed without an empty row."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    allowed: Tensor | None  # (..., Tq, Tk) bool, broadcasts; rows of nothing but False are opened; None: all, or causal
    empty: Tensor | None = None  # (..., Tq, 1) bool, broadcasts: the rows that may attend to nothing
    spoiled: Tensor | None = None  # (..., Hq, Tq, 1) bool: the rows that attend to what is not finite
    trusted: bool = False  # nobody looked whether the inputs are finite: the output will tell

    def finish(self, rows: Tensor) -> Tensor:
        """Put 0 into the empty rows and NaN into the spoiled rows of a kernel's output (..., Tq, Ev)."""
        if self.empty is not None:
            rows = _keep_rows(rows, ~self.empty.squeeze(-1))
        return rows if self.spoiled is None else rows.masked_fill(self.spoiled, torch.nan)


def shield(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Mask,
    shape: Sequence[int],
    *,
    causal: bool,
    trust: bool,
) -> Shielded:
    """``causal`` says that the kernel itself applies the mask, which then has no empty row.

    With ``trust``, where values can be read, the inputs are taken to be finite: whatever masked NaN or inf does to an
    output (not to gradients) can be seen in it, and to look at the output alone is a third of the work.
    """
    look = is_eager_on_cpu(query, key, value)
    allowed = empty = None
    if not causal:
        allowed = _allowed(mask, bias, shape, query.device)
        if look and bool(allowed.all()):
            return Shielded(query, key, value, bias, None)
        empty = ~allowed.any(-1, keepdim=True)
        if look and not bool(empty.any()):
            empty = None
    opened = allowed
    if allowed is not None and empty is not None:
        opened = allowed | empty
        bias = None if bias is None else bias.masked_fill(~allowed, 0.0)
    given = Shielded(query, key, value, bias, opened, empty)
    if look and trust:
        return given._replace(trusted=True)
    return given if look and _tame(query, key, value) else _keep_out(given, allowed, mask, shape)


def _keep_out(given: Shielded, allowed: Tensor | None, mask: Mask, shape: Sequence[int]) -> Shielded:
    """Zero what nobody may feel: rows that are not finite, keys that no query sees, queries that see no key."""
    query, key, value, bias, _, empty = given[:6]
    group = 1 if query.ndim == 2 else query.shape[-3] // max(key.shape[-3], 1)
    bad, bad_keys = _not_finite(query), _not_finite(key) | _not_finite(value)
    marked = bad_keys if group == 1 else bad_keys.repeat_interleave(group, -2)
    if allowed is not None and bias is not None:
        reached = (allowed & marked.unsqueeze(-2)).any(-1)
    else:
        reached = mask.reaches(marked, shape)
    spoiled, used = (bad | reached).unsqueeze(-1), ~bad
    if empty is not None:
        spoiled, used = spoiled & ~empty, used & ~empty.squeeze(-1)
    usable = _seen_keys(allowed, shape, group, query.device) & ~bad_keys
    return given._replace(
        query=_keep_rows(query, used), key=_keep_rows(key, usable), value=_keep_rows(value, usable), spoiled=spoiled
    )


def spoiled_rows(query: Tensor, key: Tensor, mask: Mask, shape: Sequence[int]) -> Tensor | None:
    """Which rows attend to what is not finite, (..., Tq, 1), in linear memory where the mask has no tables.

    That is all of `shield` that statistics need: they hide scores, whatever these are.
    """
    if is_eager_on_cpu(query, key) and _tame(query, key):
        return None
    group = 1 if query.ndim == 2 else query.shape[-3] // max(key.shape[-3], 1)
    bad_keys = _not_finite(key)
    reached = mask.reaches(bad_keys if group == 1 else bad_keys.repeat_interleave(group, -2), shape)
    sees = mask.reaches(torch.ones(shape[-1], dtype=torch.bool, device=key.device), shape)
    return (reached | (_not_finite(query) & sees)).unsqueeze(-1)


def _seen_keys(allowed: Tensor | None, shape: Sequence[int], group: int, device: torch.device) -> Tensor:
    """Which keys any query may attend to, (..., Hkv, Tk) bool, broadcasts; without a table the mask is j <= i."""
    if allowed is None:
        return torch.arange(shape[-1], device=device) < shape[-2]
    seen = allowed.any(-2)
    if group > 1 and seen.ndim > 1 and seen.shape[-2] > 1:
        seen = seen.view(*seen.shape[:-2], seen.shape[-2] // group, group, seen.shape[-1]).any(-2)
    return seen


def _allowed(mask: Mask, bias: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor:
    """What may be attended, as a bool tensor that broadcasts against the scores: a bias of -inf masks."""
    table = mask.table(shape, device)
    return table if bias is None else table & (bias.detach() != -torch.inf)


def _tame(*tensors: Tensor) -> bool:
    """Whether everything is finite, and so small that a product with it, even one that is masked, stays finite."""
    return all(torch.linalg.vector_norm(tensor.detach()).item() < torch.inf for tensor in tensors)


def _not_finite(rows: Tensor) -> Tensor:
    """Which rows of (..., T, E) hold a NaN or inf: (..., T) bool. Times zero they are NaN, all else is 0."""
    return rows.detach().mul(0).sum(-1).ne(0)


def _keep_rows(rows: Tensor, keep: Tensor) -> Tensor:
    """Zero the rows of (..., T, E) where ``keep`` (..., T) is False, and their gradients.

    ``rows.where(keep[..., None], 0)``, by an operator that selects likewise and is six times as fast on the CPU.
    """
    kept: Tensor = torch.ops.aten.threshold_backward(rows, keep.unsqueeze(-1).to(rows.dtype), 0)
    return kept
