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
from torch._C._functorch import maybe_current_level

from regard.functional.masks import Mask

__all__ = ["Shielded", "shield"]


class Shielded(NamedTuple):
    """What a kernel may be given: finite where it matters, and a table of what is allowed without an empty row."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    allowed: Tensor | None  # (..., Tq, Tk) bool, broadcasts; rows of nothing but False are opened; None: all, or causal
    empty: Tensor | None = None  # (..., Tq, 1) bool, broadcasts: the rows that may attend to nothing
    spoiled: Tensor | None = None  # (..., Hq, Tq, 1) bool: the rows that attend to what is not finite

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
) -> Shielded:
    """``causal`` says that the kernel itself applies the mask, which then has no empty row."""
    look = _may_look(query, key, value)
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
    if look and _tame(query, key, value):
        return Shielded(query, key, value, bias, opened, empty)
    bad = _not_finite(query)
    spoiled = bad.unsqueeze(-1) if empty is None else bad.unsqueeze(-1) & ~empty
    query = _keep_rows(query, ~bad)
    if mask.sees_by_key and bias is None:
        kept = mask.kept_keys(shape, query.device)
        if kept is not None:  # what is left may stay as it is: every query of the example attends to it
            key, value = _keep_rows(key, kept), _keep_rows(value, kept)
        return Shielded(query, key, value, bias, opened, empty, spoiled)
    bad = _not_finite(key) | _not_finite(value)
    key, value = _keep_rows(key, ~bad), _keep_rows(value, ~bad)
    if bad.ndim > 1 and bad.shape[-2] != query.shape[-3]:
        bad = bad.repeat_interleave(query.shape[-3] // bad.shape[-2], -2)
    table = allowed if bias is not None else None
    reached = mask.reaches(bad, shape) if table is None else (table & bad.unsqueeze(-2)).any(-1)
    return Shielded(query, key, value, bias, opened, empty, spoiled | reached.unsqueeze(-1))


def _allowed(mask: Mask, bias: Tensor | None, shape: Sequence[int], device: torch.device) -> Tensor:
    """What may be attended, as a bool tensor that broadcasts against the scores: a bias of -inf masks."""
    table = mask.table(shape, device)
    return table if bias is None else table & (bias.detach() != -torch.inf)


def _may_look(*tensors: Tensor) -> bool:
    """Whether a branch on values is free: eager, on the CPU, no subclass that only traces, no function transform."""
    if torch.compiler.is_compiling() or maybe_current_level() is not None:
        return False
    return all(type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_cpu for tensor in tensors)


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
