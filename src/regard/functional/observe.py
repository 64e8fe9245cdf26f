"""What attention looked at: asked for with `Observe`, answered with `Observation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from regard._kernels.statistics import from_weights
from regard._kernels.statistics.request import StatisticsRequest
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


def asked_of(what: Observe, keys: int) -> StatisticsRequest:
    """What there is to compute, in the terms of kernels, for so many keys."""
    names = [name for name in _FLAGS if getattr(what, name)]
    received = what.received if isinstance(what.received, Tensor) else None
    if received is not None or what.received is True:
        names.append("received")
    names += [name for name in ("rows", "offsets") if getattr(what, name) is not None]
    if what.top is not None:
        names += ["top", "keys"]
    top = 0 if what.top is None else min(what.top, keys)
    return StatisticsRequest(names, received, list(what.rows or ()), top, list(what.offsets or ()))


def answered(request: StatisticsRequest, answers: Sequence[Tensor], shape: Sequence[int]) -> Observation:
    """The kernel's answers as an `Observation` of scores of this shape (..., Tq, Tk)."""
    sizes = request.sizes(*shape[-2:])
    found: dict[str, Any] = {
        name: answer.view(*shape[:-2], *sizes[name]) for name, answer in zip(request.names, answers, strict=True)
    }
    if "top" in found:
        found["top"] = Top(found["top"], found.pop("keys"))
    return Observation(**found)


def statistics_of_weights(
    what: Observe, weights: Tensor, logsumexp: Tensor | None, hidden: Tensor | None
) -> Observation:
    """Return the statistics of a matrix of weights (..., Tq, Tk); ``hidden`` marks the keys that are masked.

    Without ``logsumexp`` the answer has none either.
    """
    request = asked_of(what if logsumexp is not None else replace(what, logsumexp=False), weights.shape[-1])
    return answered(request, from_weights.of_matrix(weights, logsumexp, hidden, request), weights.shape)
