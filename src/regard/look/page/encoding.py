"""Compact encoding of a page's data, layer by layer: weights and statistics in 8 bits or fewer, keys by distance."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from regard.functional.observe import Observation, Observe, statistics_of_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from regard.look.record import Layer

__all__ = ["LEVELS", "EncodedLayers", "encode_layers"]

LEVELS = 255
"""Weights are stored as their square roots, in this many levels, so that small ones remain precise."""

_MANY = 2**18  # queries of all heads, above which levels are coarser
_COARSE, _COARSE_LINKS = 63, 127  # these levels, of entropy and received weights, and of links
_LINKS = 8  # of a token and head, if none were requested
_LONGEST_COMPUTED = 96  # tokens of a text whose matrix is computed though it was not requested
_LONGEST_STEPS, _WIDEST_STEPS = 64, 128  # tokens and features whose numbers can be read one by one
_TAG = 64  # characters around each piece of base64


class _Part(NamedTuple):
    """One kind of data of a layer: the facts needed to decode it, and its compressed bytes for each example."""

    about: dict[str, Any]
    blobs: list[bytes]

    @property
    def size(self) -> float:
        """The number of characters in the page."""
        return sum(4 * math.ceil(len(blob) / 3) + _TAG for blob in self.blobs)


@dataclass
class EncodedLayers:
    """The facts of each layer, and its data as compressed bytes by "example.layer.kind"."""

    layers: list[dict[str, Any]]
    blobs: dict[str, bytes] = field(default_factory=dict)
    threshold: float = 0.0
    """The weight below which links are omitted."""
    left_out: dict[str, int] = field(default_factory=dict)
    """The number of layers without their steps, matrix or numbers per token, for which there is no room."""

    def take(self, kind: str, parts: Sequence[_Part | None], room: float) -> float:
        """Add parts, one for each layer, as long as there is room; return the number of characters added."""
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


def encode_layers(layers: Sequence[Layer], room: float) -> EncodedLayers:
    """Encode all known data of the layers, in this many characters of a page.

    Steps may take a quarter of them, then matrices half of the rest, then numbers per token; links take the remainder,
    and the lightest are omitted, by one threshold for the whole page.
    """
    known = [(layer, _completed(layer)) for layer in layers]
    page = EncodedLayers([_described(layer) for layer in layers])
    many = sum(math.prod(layer.shape[:3]) for layer in layers) > _MANY
    levels, link_levels = (_COARSE, _COARSE_LINKS) if many else (LEVELS, LEVELS)
    room -= page.take("steps", [_steps(layer) for layer in layers], room / 4)
    room -= page.take("matrix", [_matrix(statistics) for _, statistics in known], room / 2)
    room -= page.take("per_token", [_per_token(*each, levels) for each in known], room / 2)
    links = [_TopWeights.of(*each, link_levels) for each in known]
    level = _threshold([each for each in links if each is not None], room)
    page.take("links", [None if each is None else each.part(level) for each in links], math.inf)
    page.threshold = (level / link_levels) ** 2 if level > 1 else 0.0
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
    """Return the statistics, completed for the page from the weights, or from query and key, if these are recorded."""
    known = layer.statistics
    if known.weights is None and layer.inputs is None:
        return known
    lacking = [name for name in ("entropy", "received", "top") if getattr(known, name) is None]
    request = Observe(
        weights=known.weights is None and max(layer.shape[-2:]) <= _LONGEST_COMPUTED,
        entropy="entropy" in lacking,
        received="received" in lacking,
        top=min(_LINKS, layer.shape[-1]) if "top" in lacking else None,
    )
    if request.weights:
        lacking.append("weights")
    if not lacking:
        return known
    found = (
        layer.observe(request) if known.weights is None else statistics_of_weights(request, known.weights, None, None)
    )
    return replace(known, **{name: getattr(found, name) for name in lacking})


def _per_token(layer: Layer, statistics: Observation, levels: int) -> _Part | None:
    """Encode for each head the entropy of each query, 0 to ln Tk, and the root of each key's received weight."""
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


def _matrix(statistics: Observation) -> _Part | None:
    """Encode the whole matrix, if it is known, by the root of its weights."""
    weights = statistics.weights
    return None if weights is None else _Part({}, [_zip(each) for each in _quantised(weights.clamp(min=0).sqrt())])


def _steps(layer: Layer) -> _Part | None:
    """Encode query, key and the terms added to the scores of a short text, -inf where masked, in float32."""
    if layer.inputs is None or max(layer.shape[-2:]) > _LONGEST_STEPS:
        return None
    query, key, score, mask, bias = layer.inputs
    if score.form != "dot":
        return None
    terms = score.terms(query)
    if terms.query.shape[-1] > _WIDEST_STEPS:
        return None
    key = key.repeat_interleave(layer.shape[1] // key.shape[1], 1)
    added: list[Tensor] = []
    if mask is not None or bias is not None:
        terms_added = torch.zeros(layer.shape) if bias is None else bias.expand(layer.shape)
        added = [terms_added if mask is None else terms_added.masked_fill(~mask.allowed(layer.shape), -math.inf)]
    arrays = [tensor.to(torch.float32).numpy() for tensor in (terms.query, key, *added)]
    about = {"features": terms.query.shape[-1], "scale": terms.scale, "added": bool(added)}
    return _Part(about, [_zip(*(array[example] for array in arrays)) for example in range(layer.shape[0])])


class _TopWeights(NamedTuple):
    """The largest weights of each query: their levels, and codes of their keys, (B, H, k, Tq).

    A key is counted from the first, or from the query's own position backwards or forwards, whichever is nearest:
    heads attend to the first token and to near ones, so that most numbers are small and few.
    """

    levels: NDArray[np.uint8]
    codes: NDArray[np.uint32]
    about: dict[str, int]

    @classmethod
    def of(cls, layer: Layer, statistics: Observation, most: int) -> _TopWeights | None:
        if statistics.top is None:
            return None
        roots = statistics.top.weights.clamp(min=0).sqrt().transpose(-1, -2)
        levels = _quantised(roots, most)  # 0 where there is no key
        keys = statistics.top.keys.clamp(min=0).transpose(-1, -2).long().numpy()
        ahead = keys - layer.first_query - np.arange(layer.shape[2])
        ways = 3 if (ahead > 0).any() else 2
        near = np.where(ahead > 0, 2, 1) + ways * np.abs(ahead)
        codes = np.where(keys <= np.abs(ahead), ways * keys, near).astype(np.uint32)
        size = next(n for n in (1, 2, 3, 4) if codes.max(initial=0) < 256**n)
        return cls(levels, codes, {"levels": most, "ways": ways, "bytes": size, "most": levels.shape[2]})

    def part(self, level: int) -> _Part:
        """Encode for each example the number of links of each head and query, then their codes, byte by byte, and
        their levels, by head, rank and query."""
        blobs = []
        for levels, codes in zip(self.levels, self.codes, strict=True):
            included = levels >= level
            code = codes[included]
            code_bytes = [(code >> 8 * n & 255).astype(np.uint8) for n in range(self.about["bytes"])]
            blobs.append(_zip(included.sum(1, dtype=np.uint8), *code_bytes, levels[included]))
        return _Part(dict(self.about), blobs)


def _threshold(links: Sequence[_TopWeights], room: float) -> int:
    """Return the lowest level above which all links fit."""
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
    """Round numbers from 0 to 1 to this many levels; NaN becomes 0."""
    return (shares.float().nan_to_num(0.0).clamp(0, 1) * levels).round().to(torch.uint8).numpy()


def _zip(*arrays: NDArray[Any]) -> bytes:
    return gzip.compress(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), 6, mtime=0)
