"""Summaries of heads: for each, the mean share of its weights on a few positions, its distance and its entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from regard.functional import Observe

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

    from regard.look.record import Layer, Record

__all__ = ["NUMBERS", "SHARES", "SUMMARISED", "Side", "Summary", "sides", "summary"]

Side = Literal["source", "target"]

SHARES = {"first": "first token", "previous": "previous token", "itself": "itself", "separators": "separators"}
"""The titles of a summary's shares."""

_STANDS_OUT = 0.5
_OFFSETS = (0, -1)
SUMMARISED = Observe(entropy=True, received=True, distance=True, offsets=_OFFSETS)
"""The statistics that a summary needs."""


@dataclass(frozen=True)
class Summary:
    """A head in a few numbers: shares of its weights, mean distance in tokens, mean entropy in nats.

    Each is a mean over all queries that are not padding, of all examples. A number is NaN if it does not apply or was
    not requested: a cross-attention has no ``previous``, ``itself`` and ``distance``.

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
        """The shares that apply, by title, the largest first."""
        found = {title: getattr(self, name) for name, title in SHARES.items()}
        known = {title: share for title, share in found.items() if not math.isnan(share)}
        return dict(sorted(known.items(), key=lambda item: -item[1]))

    @property
    def words(self) -> str:
        """The shares of at least one half in words; empty without any."""
        return ", ".join(f"{title} {share:.2f}" for title, share in self.shares.items() if share >= _STANDS_OUT)


NUMBERS = tuple(one.name for one in fields(Summary))[2:]
"""The names of a summary's numbers."""


def sides(record: Record) -> list[tuple[Side, Side]]:
    """Return the sequences of the queries and the keys of each layer; without cross-attention all are the source.

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
    """Summarise each head of each layer, in the order of the layers.

    With the weights P_ij averaged over the queries i except padding, as the ``attention_mask`` of the model's call
    marks it:

    - ``first``: P_i0, the first token that is not padding
    - ``previous``, ``itself``: P_i,i−1 and P_ii
    - ``separators``: sum_j P_ij over the keys whose token id is one of ``separators``
    - ``distance``: sum_j P_ij |i − j|
    - ``entropy``: −sum_j P_ij ln P_ij

    Statistics that were not requested are NaN, unless ``watch(keep_inputs=True)`` recorded query and key to compute
    them from. ``first`` and ``separators`` of a cross-attention with queries that are padding are NaN, too, as keys
    receive weight from these.
    """
    found = []
    for layer, (queries, keys) in zip(record.layers, sides(record), strict=True):
        columns = _columns(record, layer, queries, keys, separators)
        for i, head in enumerate(layer.heads):
            found.append(Summary(layer.name, head, **{name: column[i] for name, column in columns.items()}))
    return found


class _Statistics(NamedTuple):
    """The statistics that a summary needs, of the queries that are not padding; None for those not requested."""

    received: Tensor | None
    previous: Tensor | None
    itself: Tensor | None
    distance: Tensor | None
    entropy: Tensor | None


def _columns(
    record: Record, layer: Layer, queries: Side, keys: Side, separators: Sequence[int]
) -> dict[str, list[float]]:
    """Return the numbers of a layer's summaries, by name, for each head."""
    B, Hq, Tq, Tk = layer.shape
    counted = _no_padding(record, queries, B, layer.first_query, Tq)
    known = _statistics(record, layer, counted)
    count = max(int(counted.sum()), 1)

    def mean(of_queries: Tensor | None) -> list[float]:
        if of_queries is None:
            return [math.nan] * Hq
        return (torch.where(counted[:, None], of_queries, 0).sum((0, 2)) / count).tolist()

    def share(of_keys: Bool[Tensor, "B Tk"] | None) -> list[float]:
        if known.received is None or of_keys is None:
            return [math.nan] * Hq
        return (torch.where(of_keys[:, None], known.received, 0).sum((0, 2)) / count).tolist()

    first = _no_padding(record, keys, B, 0, Tk)
    ids = record.inputs.get("input_ids" if keys == "source" else "decoder_input_ids")
    between = None
    if len(separators) and ids is not None and ids.shape == (B, Tk):
        between = torch.isin(ids, torch.tensor(list(separators), dtype=ids.dtype))
    return {
        "first": share(first & (first.cumsum(-1) == 1)),
        "previous": mean(None if layer.cross else known.previous),
        "itself": mean(None if layer.cross else known.itself),
        "separators": share(between),
        "distance": mean(None if layer.cross else known.distance),
        "entropy": mean(known.entropy),
    }


def _statistics(record: Record, layer: Layer, counted: Bool[Tensor, "B Tq"]) -> _Statistics:
    """Return the statistics of the non-padding queries: as recorded, or from the inputs if some are missing."""
    known, offsets = layer.statistics, None if record.observe is None else record.observe.offsets
    offsets = _OFFSETS if offsets is None else offsets
    all_count = bool(counted.all())
    of_positions = layer.cross or (
        known.distance is not None and known.offsets is not None and {*_OFFSETS} <= {*offsets}
    )
    is_complete = all_count and of_positions and known.received is not None and known.entropy is not None
    if layer.inputs is not None and not is_complete:
        weights, offsets = counted[:, None].expand(layer.shape[:3]).float(), _OFFSETS
        known = layer.observe(replace(SUMMARISED, received=weights))
    received = known.received if layer.inputs is not None or not layer.cross or all_count else None
    at = {} if known.offsets is None else dict(zip(offsets, known.offsets.unbind(-1), strict=False))
    return _Statistics(received, at.get(-1), at.get(0), known.distance, known.entropy)


def _no_padding(record: Record, side: Side, batch: int, first: int, length: int) -> Bool[Tensor, "B T"]:
    """Return a bool mask of the non-padding positions; those beyond the model's own mask count as non-padding."""
    mask = record.inputs.get("attention_mask" if side == "source" else "decoder_attention_mask")
    found = torch.ones(batch, length, dtype=torch.bool)
    if mask is not None and mask.dim() == 2 and len(mask) == batch:
        known = mask[:, first : first + length].bool()
        found[:, : known.shape[1]] = known
    return found
