"""What attention looked at: asked for with `Observe`, answered with `Observation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._kernels.statistics.from_weights import Asked
from regard.errors import ArgumentError

__all__ = ["Observation", "Observe", "Top"]


@dataclass(frozen=True, eq=False)
class Observe:
    """What to tell of an attention, beside its output, which stays the same bit for bit.

    Everything is of the probabilities P = softmax(scores) before dropout, in float32 or wider, without gradient.
    A query that may attend to nothing has P = 0.

    - ``weights``: the matrix P, (..., Hq, Tq, Tk)
    - ``rows``: P of these queries alone, (..., Hq, len(rows), Tk); -1 is the last query
    - ``entropy``: -sum_j P_ij ln P_ij in nats, (..., Hq, Tq)
    - ``logsumexp``: ln sum_j exp(score_ij), (..., Hq, Tq); -inf where there is nothing to attend to
    - ``received``: sum_i r_i P_ij, (..., Hq, Tk), where r is 1, or the given tensor (..., Hq, Tq)
    - ``top``: the k largest weights of each query and their keys; min(k, Tk) of them, (..., Hq, Tq, k)
    - ``position``: the expected key index sum_j j P_ij, (..., Hq, Tq)
    - ``max``: the largest weight, (..., Hq, Tq)
    - ``distance``: how far away a query looks, sum_j P_ij |i + Tk - Tq - j|, (..., Hq, Tq): the last query stands at
      the last key, as `causal` has it
    - ``offsets``: the weight of the key that stands so far from the query, P[i, i + Tk - Tq + d] for each d (0: the
      query's own place, -1: the one before); 0 where there is no such key, (..., Hq, Tq, len(offsets))
    """

    weights: bool = False
    rows: Sequence[int] | None = None
    entropy: bool = False
    logsumexp: bool = False
    received: bool | Tensor = False
    top: int | None = None
    position: bool = False
    max: bool = False
    distance: bool = False
    offsets: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.top is not None and (isinstance(self.top, bool) or not isinstance(self.top, int) or self.top < 1):
            raise ArgumentError(f"Observe(top=) must be a whole number of at least 1, got {self.top!r}")
        if not _whole_numbers(self.rows):
            raise ArgumentError(f"Observe(rows=) must be a sequence of query indices, got {self.rows!r}")
        if not _whole_numbers(self.offsets):
            raise ArgumentError(f"Observe(offsets=) must be a sequence of distances, got {self.offsets!r}")

    def check(self, shape: Sequence[int]) -> None:
        """Raise ArgumentError unless this can be asked of scores of the shape (..., Tq, Tk)."""
        queries = shape[-2]
        for row in self.rows or ():
            if not -queries <= row < queries:
                raise ArgumentError(f"Observe(rows=) must be within the {queries} queries, got {row}")
        if isinstance(self.received, Tensor) and tuple(self.received.shape) != tuple(shape[:-1]):
            raise ArgumentError(
                f"Observe(received=) must weigh the queries, {tuple(shape[:-1])}, got {tuple(self.received.shape)}"
            )


def _whole_numbers(given: object) -> bool:
    """Whether this is a sequence of them, or nothing."""
    return given is None or (isinstance(given, Sequence) and all(isinstance(number, int) for number in given))


class Top(NamedTuple):
    """The largest weights of each query, largest first; where fewer keys may be seen, weight 0 and key -1."""

    weights: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False)
class Observation:
    """The answer to an `Observe`, under the same names; what was not asked for is None."""

    weights: Tensor | None = None
    rows: Tensor | None = None
    entropy: Tensor | None = None
    logsumexp: Tensor | None = None
    received: Tensor | None = None
    top: Top | None = None
    position: Tensor | None = None
    max: Tensor | None = None
    distance: Tensor | None = None
    offsets: Tensor | None = None


_FLAGS = ("weights", "entropy", "logsumexp", "position", "max", "distance")


def asked_of(what: Observe, keys: int) -> Asked:
    """What there is to compute, in the terms of kernels, for so many keys."""
    names = [name for name in _FLAGS if getattr(what, name)]
    received = what.received if isinstance(what.received, Tensor) else None
    if received is not None or what.received is True:
        names.append("received")
    names += [name for name in ("rows", "offsets") if getattr(what, name) is not None]
    if what.top is not None:
        names += ["top", "keys"]
    top = 0 if what.top is None else min(what.top, keys)
    return Asked(names, received, list(what.rows or ()), top, list(what.offsets or ()))


def answered(asked: Asked, answers: Sequence[Tensor], shape: Sequence[int]) -> Observation:
    """The kernel's answers as an `Observation` of scores of this shape (..., Tq, Tk)."""
    found: dict[str, Any] = dict(zip(asked.names, answers, strict=True))
    queries, keys = shape[-2:]
    sizes = {
        "weights": (queries, keys),
        "rows": (len(asked.rows), keys),
        "received": (keys,),
        "top": (queries, asked.top),
        "keys": (queries, asked.top),
        "offsets": (queries, len(asked.offsets)),
    }
    for name, answer in found.items():
        found[name] = answer.view(*shape[:-2], *sizes.get(name, (queries,)))
    if "top" in found:
        found["top"] = Top(found["top"], found.pop("keys"))
    return Observation(**found)


def summarise(what: Observe, weights: Tensor, logsumexp: Tensor | None, hidden: Tensor | None) -> Observation:
    """Answer from the matrix of weights (..., Tq, Tk); ``hidden`` are the places that may not be attended."""
    queries, keys = weights.shape[-2:]
    places = torch.arange(keys - queries, keys, device=weights.device)[:, None]  # where the queries stand
    per_query = what.received.to(weights.dtype)[..., None] if isinstance(what.received, Tensor) else None
    asked_received = per_query is not None or what.received is True
    return Observation(
        weights=weights if what.weights else None,
        rows=None if what.rows is None else weights[..., list(what.rows), :],
        entropy=torch.special.entr(weights).sum(-1) if what.entropy else None,
        logsumexp=logsumexp if what.logsumexp else None,
        received=(weights if per_query is None else per_query * weights).sum(-2) if asked_received else None,
        top=None if what.top is None else _top(weights, min(what.top, keys), hidden),
        position=weights @ torch.arange(keys, dtype=weights.dtype, device=weights.device) if what.position else None,
        max=(weights.amax(-1) if keys else weights.new_zeros(weights.shape[:-1])) if what.max else None,
        distance=_distance(weights, places) if what.distance else None,
        offsets=None if what.offsets is None else _at_offsets(weights, places, what.offsets),
    )


def _distance(weights: Tensor, places: Tensor) -> Tensor:
    away = (places - torch.arange(weights.shape[-1], device=weights.device)).abs()
    return (weights * away).sum(-1)


def _at_offsets(weights: Tensor, places: Tensor, offsets: Sequence[int]) -> Tensor:
    keys = places + torch.tensor(list(offsets), dtype=torch.int64, device=weights.device)
    last = weights.shape[-1] - 1
    if last < 0:
        return weights.new_zeros(*weights.shape[:-1], len(offsets))
    there = weights.gather(-1, keys.clamp(0, last).expand(*weights.shape[:-1], -1))
    return there.masked_fill((keys < 0) | (keys > last), 0.0)


def _top(weights: Tensor, count: int, hidden: Tensor | None) -> Top:
    """Hidden keys are ranked below a visible key whose weight underflowed to 0."""
    if hidden is None:
        return Top(*weights.topk(count))
    largest, keys = weights.masked_fill(hidden, -1.0).topk(count)
    return Top(largest.clamp(min=0), keys.masked_fill(largest < 0, -1))
