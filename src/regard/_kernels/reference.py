"""The plain formula in PyTorch, with the matrix of scores; in float64 it is the oracle of every other kernel.

P = softmax_j(score(q_i, k_j) + bias_ij) over the keys that i may attend to
output = dropout(P) v

Half precision is computed in float32. All of it can be differentiated twice, forward and backward, and vmapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard._kernels.dropout import dropout
from regard._kernels.dtypes import widen

__all__ = ["Attended", "attend", "dot_scores", "dot_weights_in_place", "weights_and_scores"]

ScoreMatrix = Callable[[Tensor, Tensor], Tensor]  # of query (..., Hq, Tq, E) and key (..., Hkv, Tk, E)


class Attended(NamedTuple):
    """Output in the value's dtype; weights before dropout, and scores with -inf where masked, in the wider dtype."""

    output: Tensor
    weights: Tensor
    scores: Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
    *,
    scores: ScoreMatrix,
    dropout_p: float = 0.0,
    dropout_by_numba: bool = False,
) -> Attended:
    """Attend with the matrix that ``scores`` computes from query and key; ``bias`` and ``allowed`` broadcast.

    Each query must be allowed one key or more, as softmax over nothing is NaN. Numba and torch drop the same weights.
    """
    weights, masked = weights_and_scores(query, key, bias, allowed, scores=scores)
    kept = dropout(weights, dropout_p, by_numba=dropout_by_numba)
    return Attended(_mix(kept, widen(value)).to(value.dtype), weights, masked)


def weights_and_scores(
    query: Tensor, key: Tensor, bias: Tensor | None, allowed: Tensor | None, *, scores: ScoreMatrix
) -> tuple[Tensor, Tensor]:
    """Return the weights, and the scores with -inf where masked."""
    masked = scores(widen(query), widen(key))
    if bias is not None:
        masked = masked + bias
    if allowed is not None:
        masked = masked.masked_fill(~allowed, -torch.inf)
    return torch.softmax(masked, -1), masked


def dot_weights_in_place(
    query: Tensor, key: Tensor, bias: Tensor | None, allowed: Tensor | None, *, scale: float, logsumexp: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the weights of dot products, in the memory of their scores, and the logsumexp of each row if requested."""
    scores = dot_scores(widen(query), widen(key), scale)
    if bias is not None:
        scores += bias
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    sums = scores.logsumexp(-1) if logsumexp else None
    # A row is read whole before it is written, so that its weights may take its place
    return (scores.softmax(-1) if torch.compiler.is_compiling() else torch.softmax(scores, -1, out=scores)), sums


def dot_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return scale * q_i . k_j, in one product for all query heads of a key head."""
    q, k = _by_key_head(query, key), _by_key_head(key, key)
    return torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=scale).view(*query.shape[:-1], key.shape[-2])


def _mix(weights: Tensor, value: Tensor) -> Tensor:
    mixed = _by_key_head(weights, value) @ _by_key_head(value, value)
    return mixed.view(*weights.shape[:-1], value.shape[-1])


def _by_key_head(rows: Tensor, keys: Tensor) -> Tensor:
    """Reshape (..., Hq, Tq, n) to (all key heads, their rows, n)."""
    if rows.ndim == 2:
        return rows.unsqueeze(0)
    if rows.shape[-3] != keys.shape[-3]:
        group = rows.shape[-3] // keys.shape[-3]
        rows = rows.reshape(*rows.shape[:-3], keys.shape[-3], group * rows.shape[-2], rows.shape[-1])
    return rows.flatten(0, -3)
