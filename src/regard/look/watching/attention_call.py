"""One call of an attention as data, whichever function computed it: four axes each, (B, heads, T, E)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import UnsupportedError
from regard.functional.mask import Mask
from regard.functional.observe import Observe
from regard.functional.observed import observed
from regard.functional.scores import Score

__all__ = ["AttentionCall", "CachePosition"]

_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Query (B, Hq, Tq, E), key (B, Hkv, Tk, E), and the tensors that broadcast to (B, Hq, Tq, Tk).

    - ``weights``: the probabilities, if the function returned them; ``hidden`` then marks the masked positions, and
      ``is_softmax`` is False if they are known to differ from the softmax of the scores
    - ``cross``: whether the keys belong to another sequence, None if unknown
    - ``heads``: the numbers of the heads, if they are some of the layer's
    """

    query: Tensor
    key: Tensor
    score: Score
    mask: Mask | None = None
    bias: Tensor | None = None
    weights: Tensor | None = None
    hidden: Tensor | None = None
    is_softmax: bool = True
    cross: bool | None = None
    heads: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, Hq, Tq, Tk."""
        B, Hq, Tq, _ = self.query.shape
        return B, Hq, Tq, self.key.shape[2]

    def of_heads(self, heads: Sequence[int]) -> AttentionCall:
        """Return the call of these heads of the query alone."""
        Hq = self.query.shape[1]
        at = torch.tensor(heads, device=self.query.device)

        def select(tensor: Tensor) -> Tensor:
            return tensor if tensor.shape[1] == 1 else tensor.index_select(1, at)

        query, key = self.query.index_select(1, at), self.key.index_select(1, at // (Hq // self.key.shape[1]))
        return replace(self.map_scores(select), query=query, key=key, score=self.score.of_heads(at))

    def of_first_keys(self, keys: int) -> AttentionCall:
        """Return the call without the keys after the first ``keys``: slots of a cache that are not yet filled."""
        total = self.key.shape[2]
        if keys >= total:
            return self

        def cut(tensor: Tensor) -> Tensor:
            return tensor[..., :keys] if tensor.shape[-1] == total else tensor

        mask = None if self.mask is None else self.mask.of_first_keys(keys, total)
        return replace(self.map_scores(cut), key=self.key[:, :, :keys], mask=mask)

    def map_scores(self, change: Callable[[Tensor], Tensor]) -> AttentionCall:
        """Return the call with all tensors that broadcast to (B, Hq, Tq, Tk) changed, except tables (Tq, Tk)."""
        bias, weights, hidden = (None if x is None else change(x) for x in (self.bias, self.weights, self.hidden))
        mask = None if self.mask is None else self.mask.map_tables(change)
        return replace(self, mask=mask, bias=bias, weights=weights, hidden=hidden)

    def padded_queries(self) -> Tensor | None:
        """Return which queries (B, 1 or Hq, Tq) are padding: in self-attention, those that are hidden as keys."""
        B, _, Tq, Tk = self.shape
        if self.cross is not False or Tq != Tk or Tq == 0:
            return None
        hidden = self.hidden
        if hidden is None and self.mask is not None and not self.mask.is_banded:
            hidden = ~self.mask.table(self.shape, self.query.device)
        if hidden is None and self.bias is not None:
            hidden = self.bias <= torch.finfo(self.bias.dtype).min
        if hidden is None or hidden.shape[-1] != Tk:
            return None
        hidden = hidden.expand(*hidden.shape[:-2], Tq, Tk) if hidden.shape[-2] != Tq else hidden
        alone = hidden.all(-2)
        alone = alone[(None,) * (3 - alone.ndim)]
        return alone.expand(B, -1, -1) if bool(alone.any()) else None

    def without_weights(self) -> AttentionCall:
        """Return the call from which the weights can be computed again; UnsupportedError if they cannot.

        Query and key must give the weights that the function returned, as tried at the first and the last query.
        """
        if self.weights is None:
            return self
        call = replace(self, weights=None, hidden=None)
        if not (self.is_softmax and call._gives(self.weights)):
            raise UnsupportedError(
                "its weights are not the softmax of scaled products of query and key, so that neither its inputs "
                "(keep_inputs=True) nor its logsumexp can be recorded"
            )
        return call

    def _gives(self, weights: Tensor) -> bool:
        """Return whether query and key give these weights."""
        if not self.shape[2] or not self.shape[3]:
            return True
        ends = Observe(rows=[0, -1])
        rows = observed(self.query, self.key, ends, score=self.score, mask=self.mask, bias=self.bias).rows
        return rows is not None and bool((rows - weights[:, :, [0, -1]]).abs().max() <= _TOLERANCE)


class CachePosition(NamedTuple):
    """The position of a call in the sequence that a cache holds, in absolute positions.

    ``roomy``: the cache returns all its slots as keys, including those not yet filled.
    """

    cache: weakref.ref[Any]
    first_query: int
    first_key: int
    cross: bool
    roomy: bool = False

    def fit(self, call: AttentionCall) -> tuple[AttentionCall, CachePosition | None]:
        """Return the call without the cache's unfilled slots; the position is None if its keys are not the cache's."""
        _, _, Tq, Tk = call.shape
        if self.cross:
            return call, self._replace(first_query=self.first_query - Tq)
        keys = self.first_query + Tq - self.first_key
        if keys == Tk or (keys < Tk and self.roomy):
            return call.of_first_keys(keys), self
        return call, None
