"""One attention as it was called, whoever computed it: brought to four axes, (B, heads, T, E)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import UnsupportedError
from regard.functional.masks import Mask, causal, dense
from regard.functional.scores import Additive, Dot, General, ScaledDot, Score

__all__ = ["CachePosition", "Call", "of_attention", "of_product", "of_sdpa"]


@dataclass(frozen=True, eq=False)
class Call:
    """Query (B, Hq, Tq, E), key (B, Hkv, Tk, E), and what broadcasts to (B, Hq, Tq, Tk).

    ``weights`` is the matrix of probabilities, where that alone tells what was computed; ``hidden`` are then the
    places that may not be attended. ``cross`` says whether the keys are another sequence's, None where nobody knows;
    ``numbers`` are those of the heads, where these are some of a layer's.
    """

    query: Tensor
    key: Tensor
    score: Score
    mask: Mask | None = None
    bias: Tensor | None = None
    weights: Tensor | None = None
    hidden: Tensor | None = None
    cross: bool | None = None
    numbers: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, Hq, Tq, Tk."""
        B, Hq, Tq, _ = self.query.shape
        return B, Hq, Tq, self.key.shape[2]

    def of_heads(self, heads: Sequence[int]) -> Call:
        """The call of these heads of the query alone."""
        Hq = self.query.shape[1]
        at = torch.tensor(heads, device=self.query.device)

        def of(tensor: Tensor) -> Tensor:
            return tensor if tensor.shape[1] == 1 else tensor.index_select(1, at)

        score = self.score
        if isinstance(score, General | Additive) and score.weight.ndim == (3 if isinstance(score, General) else 2):
            score = type(score)(score.weight.index_select(0, at))
        key = self.key.index_select(1, at // (Hq // self.key.shape[1]))
        return replace(self.each(of), query=self.query.index_select(1, at), key=key, score=score)

    def of_first_keys(self, keys: int) -> Call:
        """The call without what stands behind so many keys: room in a cache that nothing has filled yet."""
        total = self.key.shape[2]
        if keys >= total:
            return self

        def of(tensor: Tensor) -> Tensor:
            return tensor[..., :keys] if tensor.shape[-1] == total else tensor

        call = self.each(of)
        if call.mask is not None:
            call = replace(call, mask=replace(call.mask, keeps=tuple(map(of, call.mask.keeps))))
        return replace(call, key=self.key[:, :, :keys])

    def each(self, of: Callable[[Tensor], Tensor]) -> Call:
        """The call with all that broadcasts to (B, Hq, Tq, Tk), but for tables (Tq, Tk), replaced."""
        bias, weights, hidden = (None if x is None else of(x) for x in (self.bias, self.weights, self.hidden))
        mask = self.mask
        if mask is not None:
            mask = replace(mask, tables=tuple(table if table.ndim < 4 else of(table) for table in mask.tables))
        return replace(self, mask=mask, bias=bias, weights=weights, hidden=hidden)

    def padded_queries(self) -> Tensor | None:
        """Which queries (B, 1 or Hq, Tq) are padding: of a sequence that attends to itself, keys that no query sees."""
        B, _, Tq, Tk = self.shape
        if self.cross is not False or Tq != Tk or Tq == 0:
            return None
        hidden = self.hidden
        if hidden is None and self.mask is not None and (self.mask.keeps or self.mask.lengths or self.mask.tables):
            hidden = ~self.mask.table(self.shape, self.query.device)
        if hidden is None and self.bias is not None:
            hidden = self.bias <= torch.finfo(self.bias.dtype).min
        if hidden is None or hidden.shape[-1] != Tk:
            return None
        hidden = hidden.expand(*hidden.shape[:-2], Tq, Tk) if hidden.shape[-2] != Tq else hidden
        alone = hidden.all(-2)
        alone = alone[(None,) * (3 - alone.ndim)]
        return alone.expand(B, -1, -1) if bool(alone.any()) else None


class CachePosition(NamedTuple):
    """The position of a call in the sequence that a cache holds, in absolute positions.

    ``roomy``: the cache hands out all its slots as keys, including those not yet filled.
    """

    cache: weakref.ref[Any]
    first_query: int
    first_key: int
    cross: bool
    roomy: bool = False

    def fit(self, call: Call) -> tuple[Call, CachePosition | None]:
        """Return the call without the cache's unfilled slots; the position is None if its keys are not the cache's."""
        _, _, Tq, Tk = call.shape
        if self.cross:
            return call, self._replace(first_query=self.first_query - Tq)
        keys = self.first_query + Tq - self.first_key
        if keys == Tk or (keys < Tk and self.roomy):
            return call.of_first_keys(keys), self
        return call, None


def of_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """What `F.scaled_dot_product_attention` was called with. Of three axes the first is the batch, of one head."""
    if query.is_nested or key.is_nested:
        raise UnsupportedError("attention over nested tensors cannot be watched: pad them, and hide the padding")
    rank = query.ndim
    mask = causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None:
        attn_mask = attn_mask.detach()[(None,) * (rank - attn_mask.ndim)]
    if rank == 2:
        query, key = query[None], key[None]
        attn_mask = None if attn_mask is None else attn_mask[None]
    if rank < 4:
        query, key = query.unsqueeze(1), key.unsqueeze(1)
        attn_mask = None if attn_mask is None else attn_mask.unsqueeze(1)
    lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])  # type: ignore[no-untyped-call]
    query, key = (_flat(x.expand(*lead, *x.shape[-3:])) for x in (query, key))
    if attn_mask is not None and attn_mask.ndim > 4:
        attn_mask = _flat(attn_mask.expand(*lead, *attn_mask.shape[-3:]))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = dense(attn_mask)
    elif attn_mask is not None:
        bias = attn_mask.to(query.dtype)
    return Call(query.detach(), key.detach(), ScaledDot(scale), mask, bias)


def of_product(query: Tensor, keys: Tensor, bias: Tensor | None, batch: int) -> Call:
    """What `F.multi_head_attention_forward` multiplies: scaled queries (B H, Tq, E), keys (B H, E, Tk)."""
    query, key = (x.detach().reshape(batch, -1, *x.shape[1:]) for x in (query, keys.mT))
    if bias is not None:
        bias = bias.detach().reshape(batch if bias.shape[0] > 1 else 1, -1, *bias.shape[1:])
    return Call(query, key, Dot(), None, bias)


def of_attention(
    query: Tensor, key: Tensor, score: Score, mask: Mask | Tensor | None, bias: Tensor | None = None
) -> Call:
    """What `regard.attention` was called with. Of three axes the first is the heads."""
    shape = (*query.shape[:-1], key.shape[-2])
    mask = dense(mask) if isinstance(mask, Tensor) else mask
    if len(shape) != 4 and mask is not None and (mask.keeps or mask.lengths or mask.tables):
        table = replace(mask, bands=()).table(shape, query.device)  # its axes are those of the query, from here on four
        mask = Mask(mask.bands, tables=(_four(table, shape),))
    bias = None if bias is None else _four(bias.detach(), shape).to(query.dtype)
    return Call(_four(query.detach(), shape), _four(key.detach(), shape), score, mask, bias)


def _four(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """(..., heads, T, E), or what broadcasts to the scores of this shape, with four axes."""
    if tensor.ndim > 4:
        return _flat(tensor.expand(*shape[:-3], *tensor.shape[-3:]))
    return tensor[(None,) * (4 - tensor.ndim)]


def _flat(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 4 else tensor.reshape(-1, *tensor.shape[-3:])
