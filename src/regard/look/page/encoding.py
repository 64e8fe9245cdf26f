"""What a page shows, as small bytes: weights and figures in 8 bits or fewer, keys by distance, layer by layer."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.functional.observe import Observation, Observe, summarise

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from regard.look.record import Layer

__all__ = ["LEVELS", "Packed", "packed"]

LEVELS = 255
"""Weights are stored by their square root in so many steps: light ones keep their digits."""

_MANY = 2**18  # queries of all heads from which on steps are coarser
_COARSE, _COARSE_LINKS = 63, 127  # steps, then, of entropy and received weights, and of links
_LINKS = 8  # of a token and head, where none were asked for
_LONGEST_COMPUTED = 96  # tokens up to which a matrix is computed that was not asked for
_LONGEST_STEPS, _WIDEST_STEPS = 64, 128  # tokens, features: of more, nobody reads the numbers
_TAG = 64  # characters around each piece of base64


class _Part(NamedTuple):
    """Something of one layer: what must be known to read it, and its compressed bytes for each example."""

    about: dict[str, Any]
    blobs: list[bytes]

    @property
    def size(self) -> float:
        """Characters in the page."""
        return sum(4 * math.ceil(len(blob) / 3) + _TAG for blob in self.blobs)


@dataclass
class Packed:
    """What the page knows of each layer, and the compressed bytes by "example.layer.kind"."""

    layers: list[dict[str, Any]]
    blobs: dict[str, bytes] = field(default_factory=dict)
    lightest: float = 0.0
    """The weight below which links were left out."""
    left_out: dict[str, int] = field(default_factory=dict)
    """How many layers lack their steps, matrix or figures, since these would have made the page too large."""

    def take(self, kind: str, parts: Sequence[_Part | None], room: float) -> float:
        """Take parts, one for each layer, while there is room for them; how much of it they took."""
        taken = 0.0
        for number, part in enumerate(parts):
            if part is None:
                continue
            if taken + part.size > room:
                self.left_out[kind] = self.left_out.get(kind, 0) + 1
                continue
            taken += part.size
            self.layers[number][kind] = part.about
            self.blobs |= {f"{example}.{number}.{kind}": blob for example, blob in enumerate(part.blobs)}
        return taken


def packed(layers: Sequence[Layer], room: float) -> Packed:
    """All that is known of the layers, in so many characters of a page.

    Steps may take a quarter of them, then matrices half of what is left, then figures; links take the rest, and of
    them the lightest are left out, by one threshold for the whole page.
    """
    known = [_completed(layer) for layer in layers]
    both = list(zip(layers, known, strict=True))
    page = Packed([_described(layer) for layer in layers])
    many = sum(math.prod(layer.shape[:3]) for layer in layers) > _MANY
    levels = _COARSE if many else LEVELS
    room -= page.take("steps", [_steps(layer) for layer in layers], room / 4)
    room -= page.take("matrix", [_matrix(layer, statistics) for layer, statistics in both], room / 2)
    room -= page.take("figures", [_figures(layer, statistics, levels) for layer, statistics in both], room / 2)
    steps = _COARSE_LINKS if many else LEVELS
    links = [_Links.of(layer, statistics, steps) for layer, statistics in both]
    level = _lightest([each for each in links if each is not None], room)
    page.take("links", [None if each is None else each.part(level) for each in links], math.inf)
    page.lightest = (level / steps) ** 2 if level > 1 else 0.0
    return page


def _described(layer: Layer) -> dict[str, Any]:
    batch, _, queries, keys = layer.shape
    return {
        "name": layer.name,
        "heads": list(layer.heads),
        "examples": batch,
        "queries": queries,
        "keys": keys,
        "first": layer.first_query,
    }


def _completed(layer: Layer) -> Observation:
    """What was seen, and what else the page shows where there is a matrix, or query and key, to tell it."""
    statistics = layer.statistics
    lacking = [name for name in ("entropy", "received", "top") if getattr(statistics, name) is None]
    if not lacking or (statistics.weights is None and layer.inputs is None):
        return statistics
    top = min(_LINKS, layer.shape[-1]) if "top" in lacking else None
    what = Observe(entropy="entropy" in lacking, received="received" in lacking, top=top)
    found = layer.observe(what) if statistics.weights is None else summarise(what, statistics.weights, None, None)
    return replace(statistics, **{name: getattr(found, name) for name in lacking})


def _figures(layer: Layer, statistics: Observation, levels: int) -> _Part | None:
    """Of each head the entropy of each query, 0 to ln Tk, and by its root what each key received, 0 to the most."""
    columns: list[NDArray[np.uint8]] = []
    if statistics.entropy is not None:
        columns.append(_quantised(statistics.entropy / math.log(max(2, layer.shape[-1])), levels))
    if statistics.received is not None:
        most = statistics.received.flatten(1).nan_to_num().amax(1).clamp(min=1e-12)[:, None, None]
        columns.append(_quantised((statistics.received / most).clamp(min=0).sqrt(), levels))
    if not columns:
        return None
    about = {"levels": levels, "entropy": statistics.entropy is not None, "received": statistics.received is not None}
    return _Part(about, [_zip(*(column[example] for column in columns)) for example in range(layer.shape[0])])


def _matrix(layer: Layer, statistics: Observation) -> _Part | None:
    """The whole matrix, by the root of its weights, where it was asked for or is small enough to be computed."""
    weights = statistics.weights
    if weights is None and layer.inputs is not None and max(layer.shape[-2:]) <= _LONGEST_COMPUTED:
        weights = layer.observe(Observe(weights=True)).weights
    return None if weights is None else _Part({}, [_zip(each) for each in _quantised(weights.clamp(min=0).sqrt())])


def _steps(layer: Layer) -> _Part | None:
    """Query, key and what is added to the scores, -inf for a hidden place, of a short text, in float32."""
    if layer.inputs is None or max(layer.shape[-2:]) > _LONGEST_STEPS:
        return None
    terms = layer.inputs.score.terms(layer.inputs.query)
    if terms.weight is not None or terms.query.shape[-1] > _WIDEST_STEPS:
        return None
    heads = layer.shape[1]
    key = layer.inputs.key.repeat_interleave(heads // layer.inputs.key.shape[1], 1)
    added: list[Tensor] = []
    if layer.inputs.mask is not None or layer.inputs.bias is not None:
        places = torch.zeros(layer.shape) if layer.inputs.bias is None else layer.inputs.bias.expand(layer.shape)
        hidden = None if layer.inputs.mask is None else ~layer.inputs.mask.allowed(layer.shape)
        added = [places if hidden is None else places.masked_fill(hidden, -math.inf)]
    arrays = [tensor.to(torch.float32).numpy() for tensor in (terms.query, key, *added)]
    about = {"features": terms.query.shape[-1], "scale": terms.scale, "added": bool(added)}
    return _Part(about, [_zip(*(array[example] for array in arrays)) for example in range(layer.shape[0])])


class _Links(NamedTuple):
    """The largest weights of each query: their levels, and codes of their keys, (B, H, k, Tq).

    A key is counted from the first one, or from the query's own place backwards or onwards, whichever is nearest:
    heads look at the first token and at near ones, so that most numbers are small and few.
    """

    levels: NDArray[np.uint8]
    codes: NDArray[np.uint32]
    about: dict[str, int]

    @classmethod
    def of(cls, layer: Layer, statistics: Observation, steps: int) -> _Links | None:
        if statistics.top is None:
            return None
        levels = _quantised(
            statistics.top.weights.clamp(min=0).sqrt().transpose(-1, -2), steps
        )  # 0 where there is no key
        keys = statistics.top.keys.clamp(min=0).transpose(-1, -2).long().numpy()
        ahead = keys - layer.first_query - np.arange(layer.shape[2])
        ways = 3 if (ahead > 0).any() else 2
        near = np.where(ahead > 0, 2, 1) + ways * np.abs(ahead)
        codes = np.where(keys <= np.abs(ahead), ways * keys, near).astype(np.uint32)
        size = next(n for n in (1, 2, 3, 4) if codes.max(initial=0) < 256**n)
        return cls(levels, codes, {"steps": steps, "ways": ways, "bytes": size, "most": levels.shape[2]})

    def part(self, level: int) -> _Part:
        """For each example the number of links of each head and query; then their codes, byte by byte, and their
        levels, by head, rank and query."""
        blobs = []
        for levels, codes in zip(self.levels, self.codes, strict=True):
            kept = levels >= level
            code = codes[kept]
            places = [(code >> 8 * n & 255).astype(np.uint8) for n in range(self.about["bytes"])]
            blobs.append(_zip(kept.sum(1, dtype=np.uint8), *places, levels[kept]))
        return _Part(dict(self.about), blobs)


def _lightest(links: Sequence[_Links], room: float) -> int:
    """The lowest level from which on all links go into the room."""
    count = sum((np.bincount(each.levels.ravel(), minlength=LEVELS + 1) for each in links), np.zeros(LEVELS + 1))
    from_level = np.cumsum(count[::-1])[::-1]
    low, high = 1, LEVELS
    while low < high and from_level[low] > 2 * room:  # a link takes more than half a character
        low += 1
    if sum(each.part(low).size for each in links) <= room:
        return low
    while low + 1 < high:  # too much from low on
        middle = (low + high) // 2
        if sum(each.part(middle).size for each in links) <= room:
            high = middle
        else:
            low = middle
    return high


def _quantised(shares: Tensor, levels: int = LEVELS) -> NDArray[np.uint8]:
    """Numbers from 0 to 1 in so many steps; NaN is 0."""
    return (shares.float().nan_to_num(0.0).clamp(0, 1) * levels).round().to(torch.uint8).numpy()


def _zip(*arrays: NDArray[Any]) -> bytes:
    return gzip.compress(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), 6, mtime=0)
