"""Summaries of heads: for each, the mean share of its weights on a few places, its distance and its entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from regard.functional import Observe

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

    from regard.look.record import Layer, Record

__all__ = ["Side", "Summary", "sides", "summary"]

Side = Literal["source", "target"]

_STANDS_OUT = 0.5
_PLACES = (0, -1)  # the offsets of a watch, unless it was asked for others
_NAMES = {"first": "first token", "previous": "previous token", "itself": "itself", "separators": "separators"}


@dataclass(frozen=True)
class Summary:
    """What one head looks at: shares of its weights, mean distance in tokens, mean entropy in nats.

    Each is a mean over all queries that are no padding, of all examples. A share is NaN where it does not apply or
    cannot be told: a cross-attention has no ``previous``, ``itself`` and ``distance``.

    >>> Summary("layers.0", 3, 0.02, 0.93, 0.01, math.nan, 1.1, 0.3).words
    'previous token 0.93'
    """

    layer: str
    head: int
    first: float
    previous: float
    itself: float
    separators: float
    distance: float
    entropy: float

    @property
    def shares(self) -> dict[str, float]:
        """The shares that apply, by the name of the place, the largest first."""
        found = {name: getattr(self, field) for field, name in _NAMES.items()}
        known = {name: share for name, share in found.items() if not math.isnan(share)}
        return dict(sorted(known.items(), key=lambda item: -item[1]))

    @property
    def words(self) -> str:
        """The places where at least half of the weight lies; empty where there is none."""
        return ", ".join(f"{name} {share:.2f}" for name, share in self.shares.items() if share >= _STANDS_OUT)


def sides(record: Record) -> list[tuple[Side, Side]]:
    """To which sequence the queries and the keys of each layer belong; without cross-attention all is source.

    An encoder is called before its decoder, whose first self-attention comes right before the first cross-attention.
    """
    layers = record.layers
    crossing = next((i for i, layer in enumerate(layers) if layer.cross), len(layers))
    decoder = crossing
    if 0 < crossing < len(layers) and layers[crossing - 1].shape[2] == layers[crossing].shape[2]:
        decoder -= 1
    return [
        ("target", "source") if layer.cross else ("source", "source") if i < decoder else ("target", "target")
        for i, layer in enumerate(layers)
    ]


def summary(record: Record, separators: Sequence[int] = ()) -> list[Summary]:
    """What each head of each layer looks at, in the order of the layers.

    With the weights P_ij averaged over the queries i, those of padding left out, and padding told by the
    ``attention_mask`` that the model was called with:

    - ``first``: P_i0, the first token that is no padding
    - ``previous``, ``itself``: P_i,i−1 and P_ii
    - ``separators``: sum_j P_ij over the keys whose token id is one of ``separators``
    - ``distance``: sum_j P_ij |i − j|
    - ``entropy``: −sum_j P_ij ln P_ij

    What was not asked for is NaN; so are ``first`` and ``separators`` of a cross-attention some of whose queries are
    padding, for they come from what keys received of all of them. With ``watch(keep_inputs=True)`` every number is
    computed from the queries and keys that were kept.
    """
    return [
        Summary(layer.name, head, *figures)
        for layer, (queries, keys) in zip(record.layers, sides(record), strict=True)
        for head, figures in zip(layer.heads, _figures(record, layer, queries, keys, separators), strict=True)
    ]


class _Told(NamedTuple):
    """The statistics that a summary needs, of the queries that are kept; None for what was not asked for."""

    received: Tensor | None
    previous: Tensor | None
    itself: Tensor | None
    distance: Tensor | None
    entropy: Tensor | None


def _figures(
    record: Record, layer: Layer, queries: Side, keys: Side, separators: Sequence[int]
) -> list[tuple[float, float, float, float, float, float]]:
    B, Hq, Tq, Tk = layer.shape
    kept = _no_padding(record, queries, B, layer.first_query, Tq)
    told = _told(record, layer, kept)
    count = max(int(kept.sum()), 1)
    nothing = [math.nan] * Hq

    def mean(of_queries: Tensor | None) -> list[float]:
        if of_queries is None:
            return nothing
        return (torch.where(kept[:, None], of_queries, 0).sum((0, 2)) / count).tolist()

    def share(of_keys: Bool[Tensor, "B Tk"] | None) -> list[float]:
        if told.received is None or of_keys is None:
            return nothing
        return (torch.where(of_keys[:, None], told.received, 0).sum((0, 2)) / count).tolist()

    first = _no_padding(record, keys, B, 0, Tk)
    first = first & (first.cumsum(-1) == 1)
    ids = record.inputs.get("input_ids" if keys == "source" else "decoder_input_ids")
    apart = None
    if len(separators) and ids is not None and ids.shape == (B, Tk):
        apart = torch.isin(ids, torch.tensor(list(separators), dtype=ids.dtype))
    of_place = (nothing, nothing, nothing)
    if not layer.cross:
        of_place = mean(told.previous), mean(told.itself), mean(told.distance)
    columns = (share(first), *of_place[:2], share(apart), of_place[2], mean(told.entropy))
    return list(zip(*columns, strict=True))


def _told(record: Record, layer: Layer, kept: Bool[Tensor, "B Tq"]) -> _Told:
    found, offsets = layer.statistics, None if record.observe is None else record.observe.offsets
    if layer.inputs is not None:
        weights = kept[:, None].expand(layer.shape[:3]).float()
        offsets = _PLACES
        found = layer.observe(Observe(received=weights, offsets=offsets, distance=True, entropy=True))
    received = found.received if layer.inputs is not None or not layer.cross or kept.all() else None
    at = dict(zip(offsets or _PLACES, () if found.offsets is None else found.offsets.unbind(-1), strict=False))
    return _Told(received, at.get(-1), at.get(0), found.distance, found.entropy)


def _no_padding(record: Record, side: Side, batch: int, first: int, length: int) -> Bool[Tensor, "B T"]:
    """Which of so many places from the first are no padding; what the model's own mask does not reach is none."""
    mask = record.inputs.get("attention_mask" if side == "source" else "decoder_attention_mask")
    kept = torch.ones(batch, length, dtype=torch.bool)
    if mask is not None and mask.dim() == 2 and len(mask) == batch:
        known = mask[:, first : first + length].bool()
        kept[:, : known.shape[1]] = known
    return kept
