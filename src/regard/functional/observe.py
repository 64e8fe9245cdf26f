"""Statistics of attention: the request, an `Observe`, and the result, an `Observation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from torch import Tensor

from regard._kernels.statistics import from_weights
from regard._kernels.statistics.request import StatisticsRequest
from regard.errors import ArgumentError

__all__ = ["Observation", "Observe", "Top"]


@dataclass(frozen=True, eq=False)
class Observe:
    """The statistics to compute beside the output of an attention, which stays the same bit for bit.

    All are statistics of the probabilities P = softmax(scores) before dropout, in float32 or wider, without gradient.
    A query that may attend to no key has P = 0.

    - ``weights``: the matrix P, (..., Hq, Tq, Tk)
    - ``rows``: P of these queries alone, (..., Hq, len(rows), Tk); -1 is the last query
    - ``entropy``: -sum_j P_ij ln P_ij in nats, (..., Hq, Tq)
    - ``logsumexp``: ln sum_j exp(score_ij), (..., Hq, Tq); -inf for a query that may attend to no key
    - ``received``: sum_i r_i P_ij, (..., Hq, Tk), where r is 1, or the given tensor (..., Hq, Tq)
    - ``top``: the k largest weights of each query and their keys; min(k, Tk) of them, (..., Hq, Tq, k)
    - ``position``: the expected key index sum_j j P_ij, (..., Hq, Tq)
    - ``max``: the largest weight, (..., Hq, Tq)
    - ``distance``: the mean distance of query and key, sum_j P_ij |i + Tk - Tq - j|, (..., Hq, Tq): the last query is
      aligned with the last key, as in `causal`
    - ``offsets``: the weight of the key at each offset d from the query, P[i, i + Tk - Tq + d] (0: the query's own
      position, -1: the one before); 0 if there is no such key, (..., Hq, Tq, len(offsets))

    >>> import torch
    >>> from regard import attention
    >>> x = torch.eye(3)
    >>> output, statistics = attention(x, x, x, observe=Observe(max=True, top=2))
    >>> statistics.max.shape, statistics.top.keys.shape
    (torch.Size([3]), torch.Size([3, 2]))
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
        """Raise ArgumentError unless scores of the shape (..., Tq, Tk) have these statistics."""
        queries = shape[-2]
        for row in self.rows or ():
            if not -queries <= row < queries:
                raise ArgumentError(f"Observe(rows=) must be within the {queries} queries, got {row}")
        if isinstance(self.received, Tensor) and tuple(self.received.shape) != tuple(shape[:-1]):
            raise ArgumentError(
                f"Observe(received=) must weigh the queries, {tuple(shape[:-1])}, got {tuple(self.received.shape)}"
            )


def _whole_numbers(given: object) -> bool:
    """Return whether this is a sequence of whole numbers, or None."""
    return given is None or (isinstance(given, Sequence) and all(isinstance(number, int) for number in given))


class Top(NamedTuple):
    """The largest weights of each query, largest first; with fewer visible keys, the rest is weight 0 and key -1.

    >>> import torch
    >>> from regard import attention, causal
    >>> x = torch.eye(2)
    >>> output, statistics = attention(x, x, x, mask=causal(), observe=Observe(top=2))
    >>> statistics.top.keys.tolist()  # the first query has one key
    [[0, -1], [1, 0]]
    """

    weights: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False)
class Observation:
    """The statistics that an `Observe` requests, under the same names; the others are None.

    >>> import torch
    >>> from regard.functional import observed
    >>> statistics = observed(torch.eye(3), torch.eye(3), Observe(entropy=True))
    >>> statistics.entropy.shape, statistics.max
    (torch.Size([3]), None)
    """

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

    def map(self, change: Callable[[Tensor], Tensor]) -> Observation:
        """Return the observation with each tensor changed, ``top.weights`` and ``top.keys`` too.

        >>> import torch
        >>> statistics = Observation(max=torch.ones(2, 3))
        >>> statistics.map(lambda tensor: tensor[0]).max
        tensor([1., 1., 1.])
        """
        return Observation.combine([self], lambda _, tensors: change(tensors[0]))

    @staticmethod
    def combine(observations: Sequence[Observation], join: Callable[[str, list[Tensor]], Tensor]) -> Observation:
        """Return one observation from several with the same statistics, by ``join(name, tensors)`` for each statistic.

        ``top`` is joined as "top", its weights, and "keys".

        >>> import torch
        >>> parts = [Observation(max=torch.ones(2, 3)), Observation(max=torch.zeros(2, 3))]
        >>> Observation.combine(parts, lambda name, tensors: torch.stack(tensors)).max.shape
        torch.Size([2, 2, 3])
        """
        joined: dict[str, Any] = {}
        for name in _NAMES:
            parts = [getattr(observation, name) for observation in observations]
            if isinstance(parts[0], Top):
                weights, keys = ([part[k] for part in parts] for k in (0, 1))
                joined[name] = Top(join("top", weights), join("keys", keys))
            elif parts[0] is not None:
                joined[name] = join(name, parts)
        return Observation(**joined)


_NAMES = tuple(field.name for field in fields(Observation))


def request_of(observe: Observe, keys: int) -> StatisticsRequest:
    """Return the request for kernels that compute statistics over ``keys`` keys."""
    values = ((name, getattr(observe, name)) for name in _NAMES)
    names = [name for name, value in values if value is True or _is_asked(value)]
    if observe.top is not None:
        names.append("keys")
    received = observe.received if isinstance(observe.received, Tensor) else None
    top = 0 if observe.top is None else min(observe.top, keys)
    return StatisticsRequest(names, received, list(observe.rows or ()), top, list(observe.offsets or ()))


def _is_asked(value: object) -> bool:
    return value is not None and value is not False and (isinstance(value, Tensor | Sequence) or bool(value))


def observation_of(request: StatisticsRequest, answers: Sequence[Tensor], shape: Sequence[int]) -> Observation:
    """Return a kernel's results as an observation of scores of this shape (..., Tq, Tk)."""
    sizes = request.sizes(*shape[-2:])
    names = request.names
    return _observation(
        names, [answer.view(*shape[:-2], *sizes[name]) for name, answer in zip(names, answers, strict=True)]
    )


def _observation(names: Sequence[str], answers: Sequence[Tensor]) -> Observation:
    found: dict[str, Any] = dict(zip(names, answers, strict=True))
    if "top" in found:
        found["top"] = Top(found["top"], found.pop("keys"))
    return Observation(**found)


def statistics_of_weights(
    observe: Observe, weights: Tensor, logsumexp: Tensor | None, hidden: Tensor | None
) -> Observation:
    """Return the statistics of a matrix of weights (..., Tq, Tk); ``hidden`` marks the keys that are masked.

    Without ``logsumexp`` the observation has no logsumexp.
    """
    if observe.logsumexp and logsumexp is None:
        observe = replace(observe, logsumexp=False)
    request = request_of(observe, weights.shape[-1])
    return _observation(request.names, from_weights.of_matrix(weights, logsumexp, hidden, request))
