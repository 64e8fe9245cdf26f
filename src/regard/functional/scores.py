"""Score functions: how well a query and a key agree, as small frozen objects without state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ArgumentError

__all__ = ["Additive", "Dot", "General", "ScaledDot", "Score"]


class Terms(NamedTuple):
    """What a kernel computes: scale * q.k where weight is None, else weight.tanh(q + k)."""

    query: Tensor
    scale: float
    weight: Tensor | None


class Score:
    """The base of all scores; a kernel reads only `terms`."""

    def terms(self, query: Tensor) -> Terms:
        """The score of this query, in the terms that kernels know."""
        raise NotImplementedError

    def check(self, query: Sequence[int], key: Sequence[int]) -> None:
        """Raise ArgumentError unless query and key of these shapes can be scored."""
        if query[-1] != key[-1]:
            raise ArgumentError(
                f"query and key must have one feature size for {type(self).__name__}, got query {tuple(query)} "
                f"and key {tuple(key)}: project one of them, or use General(weight)"
            )

    def tensors(self) -> tuple[Tensor, ...]:
        """The score's own parameters."""
        return ()


@dataclass(frozen=True)
class Dot(Score):
    """Dot product: ``score(q, k) = q . k`` (Luong et al. 2015, section 3.1, "dot").

    >>> Dot()
    Dot()
    """

    def terms(self, query: Tensor) -> Terms:
        return Terms(query, 1.0, None)


@dataclass(frozen=True)
class ScaledDot(Score):
    """Scaled dot product: ``score(q, k) = scale * q . k``, with scale 1/sqrt(E) (Vaswani et al. 2017, equation 1).

    Without the scale, scores of long vectors spread until softmax saturates and its gradient vanishes.

    >>> ScaledDot(scale=0.5)
    ScaledDot(scale=0.5)
    """

    scale: float | None = None

    def terms(self, query: Tensor) -> Terms:
        return Terms(query, 1.0 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale, None)


@dataclass(frozen=True, eq=False)
class General(Score):
    """Bilinear form: ``score(q, k) = q W k`` (Luong et al. 2015, section 3.1, "general").

    Weight (Eq, Ek), or (heads, Eq, Ek) with a matrix for each of the query's heads. Query and key may differ in
    size.
    """

    weight: Tensor

    def __post_init__(self) -> None:
        _check_weight(self, (2, 3), "(Eq, Ek) or (heads, Eq, Ek)")

    def terms(self, query: Tensor) -> Terms:
        return Terms(query @ self.weight.to(query.dtype), 1.0, None)

    def check(self, query: Sequence[int], key: Sequence[int]) -> None:
        _check_heads(self, self.weight, 3, query)
        if (query[-1], key[-1]) != tuple(self.weight.shape[-2:]):
            raise ArgumentError(
                f"General weight must end in (Eq, Ek) = {(query[-1], key[-1])}, got {tuple(self.weight.shape)}"
            )

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """Additive score: ``score(q, k) = w . tanh(q + k)`` (Bahdanau et al. 2015, appendix A.1.2).

    The paper's v_a, W_a s and U_a h are here weight, query and key: the projections are applied already, so that
    those of the keys happen once a sentence. Weight (H,), or (heads, H) with a vector for each of the query's heads.
    """

    weight: Tensor

    def __post_init__(self) -> None:
        _check_weight(self, (1, 2), "(H,) or (heads, H)")

    def terms(self, query: Tensor) -> Terms:
        return Terms(query, 1.0, self.weight)

    def check(self, query: Sequence[int], key: Sequence[int]) -> None:
        super().check(query, key)
        _check_heads(self, self.weight, 2, query)
        if self.weight.shape[-1] != query[-1]:
            raise ArgumentError(
                f"Additive weight must end in H = {query[-1]}, the query's features, got {tuple(self.weight.shape)}"
            )

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)


def _check_weight(score: General | Additive, ranks: tuple[int, ...], axes: str) -> None:
    name, weight = type(score).__name__, score.weight
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"{name} weight must be a tensor {axes}, got {type(weight).__name__}")
    if weight.ndim not in ranks or not torch.is_floating_point(weight):
        raise ArgumentError(f"{name} weight must be a float tensor {axes}, got {weight.dtype} {tuple(weight.shape)}")


def _check_heads(score: Score, weight: Tensor, rank: int, query: Sequence[int]) -> None:
    if weight.ndim == rank and (len(query) < 3 or weight.shape[0] != query[-3]):
        raise ArgumentError(
            f"{type(score).__name__} weight {tuple(weight.shape)} has {weight.shape[0]} heads, "
            f"and the query {tuple(query)} has {query[-3] if len(query) > 2 else 'no'} heads (third axis from the end)"
        )
