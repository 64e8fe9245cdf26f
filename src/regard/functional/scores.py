"""Score functions of a query and a key, each a small frozen object with its formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from regard._kernels.dtypes import widen
from regard._kernels.reference import dot_scores
from regard.errors import ArgumentError

__all__ = ["BY_NAME", "Additive", "Dot", "General", "ScaledDot", "Score", "ScoreName", "Terms"]


class Terms(NamedTuple):
    """A score as fused kernels compute it: scale * q.k where weight is None, else weight.tanh(q + k)."""

    query: Tensor
    scale: float
    weight: Tensor | None


class Score:
    """A score function. A subclass defines its formula, `matrix`, and is then served by the reference kernel.

    The formula receives float32 or wider, with zeros in rows that are masked or not finite. A score that fused kernels
    can compute also has a ``form`` and `terms`; one with parameters defines `tensors`, `map`, `of_heads`.

    >>> import torch
    >>> from regard.functional import Score, attention
    >>> class Cosine(Score):
    ...     def matrix(self, query, key):
    ...         query, key = (torch.nn.functional.normalize(x, dim=-1) for x in (query, key))
    ...         return query @ key.mT
    >>> attention(torch.ones(2, 3), torch.eye(3), torch.eye(3), score=Cosine()).shape
    torch.Size([2, 3])
    """

    #: The name of the score in layers, configs and commands, if it has one.
    name: ClassVar[str]
    #: "dot" for scale * q'.k, where q' depends on the query alone; "additive" for w.tanh(q + k); None for all others.
    form: ClassVar[Literal["dot", "additive"] | None] = None

    def matrix(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the scores (..., H, Tq, Tk) of query (..., H, Tq, E) and key (..., H, Tk, E)."""
        raise NotImplementedError

    def grouped_matrix(self, query: Tensor, key: Tensor) -> Tensor:
        """Return `matrix` for keys with fewer heads than the query, of which each serves a group of query heads."""
        if query.ndim > 2 and query.shape[-3] != key.shape[-3]:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        return self.matrix(query, key)

    def terms(self, query: Tensor) -> Terms:
        """Return the score of this query in the terms of fused kernels; called only for a score that has a form."""
        raise NotImplementedError

    def check(self, query: Sequence[int], key: Sequence[int]) -> None:
        """Raise ArgumentError unless query and key of these shapes can be scored."""
        if query[-1] != key[-1]:
            raise ArgumentError(
                f"query and key must have one feature size for {type(self).__name__}, got query {tuple(query)} "
                f"and key {tuple(key)}: project one of them, or use General(weight)"
            )

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the score's own parameters."""
        return ()

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the score with its parameters changed."""
        return self

    def of_heads(self, heads: Tensor) -> Self:
        """Return the score of these heads of the query alone."""
        return self

    @classmethod
    def weight_shape(cls, dim: int) -> tuple[int, ...] | None:
        """Return the shape of the constructor's weight for one head of size ``dim``; None for a score without one."""
        return None


class _DotProduct(Score):
    """A score that is a dot product once the query is transformed."""

    form = "dot"

    def matrix(self, query: Tensor, key: Tensor) -> Tensor:
        query, scale, _ = self.terms(query)
        return dot_scores(query, key, scale)

    grouped_matrix = matrix  # one product serves a group of query heads


@dataclass(frozen=True)
class Dot(_DotProduct):
    """Dot product: ``score(q, k) = q . k`` (Luong et al. 2015, section 3.1, "dot").

    >>> Dot()
    Dot()
    """

    name = "dot"

    def terms(self, query: Tensor) -> Terms:
        return Terms(query, 1.0, None)


@dataclass(frozen=True)
class ScaledDot(_DotProduct):
    """Scaled dot product: ``score(q, k) = scale * q . k``, with scale 1/sqrt(E) (Vaswani et al. 2017, equation 1).

    Without the scale, scores of long vectors grow until softmax saturates and its gradient vanishes.

    >>> ScaledDot(scale=0.5)
    ScaledDot(scale=0.5)
    """

    name = "scaled_dot"

    scale: float | None = None

    def terms(self, query: Tensor) -> Terms:
        return Terms(query, 1.0 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale, None)


@dataclass(frozen=True, eq=False)
class _Weighted(Score):
    """A score with a weight, of the shape `weight_shape` or with the query's heads on an axis before it."""

    axes: ClassVar[str]  # of the weight, for messages

    weight: Tensor

    def __post_init__(self) -> None:
        name, weight = type(self).__name__, self.weight
        if not isinstance(weight, Tensor):
            raise ArgumentError(f"{name} weight must be a tensor {self.axes}, got {type(weight).__name__}")
        if not self._rank() <= weight.ndim <= self._rank() + 1 or not torch.is_floating_point(weight):
            raise ArgumentError(
                f"{name} weight must be a float tensor {self.axes}, got {weight.dtype} {tuple(weight.shape)}"
            )

    def _rank(self) -> int:
        """Return the number of axes of the weight of one head."""
        return len(self.weight_shape(1) or ())

    def check(self, query: Sequence[int], key: Sequence[int]) -> None:
        weight = self.weight
        if weight.ndim > self._rank() and (len(query) < 3 or weight.shape[0] != query[-3]):
            raise ArgumentError(
                f"{type(self).__name__} weight {tuple(weight.shape)} has {weight.shape[0]} heads, and the query "
                f"{tuple(query)} has {query[-3] if len(query) > 2 else 'no'} heads (third axis from the end)"
            )

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, weight=change(self.weight))

    def of_heads(self, heads: Tensor) -> Self:
        return self.map(lambda weight: weight.index_select(0, heads)) if self.weight.ndim > self._rank() else self


@dataclass(frozen=True, eq=False)
class General(_Weighted, _DotProduct):
    """Bilinear form: ``score(q, k) = q W k`` (Luong et al. 2015, section 3.1, "general").

    Weight (Eq, Ek), or (heads, Eq, Ek) with a matrix for each of the query's heads. Query and key may differ in
    size.

    >>> General(torch.ones(2, 3)).matrix(torch.tensor([[1.0, 2.0]]), torch.eye(3))
    tensor([[3., 3., 3.]])
    """

    name = "general"
    axes = "(Eq, Ek) or (heads, Eq, Ek)"

    def terms(self, query: Tensor) -> Terms:
        return Terms(query @ self.weight.to(query.dtype), 1.0, None)

    def check(self, query: Sequence[int], key: Sequence[int]) -> None:
        super().check(query, key)
        if (query[-1], key[-1]) != tuple(self.weight.shape[-2:]):
            raise ArgumentError(
                f"General weight must end in (Eq, Ek) = {(query[-1], key[-1])}, got {tuple(self.weight.shape)}"
            )

    @classmethod
    def weight_shape(cls, dim: int) -> tuple[int, ...]:
        return dim, dim


@dataclass(frozen=True, eq=False)
class Additive(_Weighted):
    """Additive score: ``score(q, k) = w . tanh(q + k)`` (Bahdanau et al. 2015, appendix A.1.2).

    The paper's v_a, W_a s and U_a h are here weight, query and key: the projections are applied already, so that
    those of the keys happen once per sentence. Weight (H,), or (heads, H) with a vector for each of the query's heads.

    >>> Additive(torch.ones(2)).matrix(torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, -2.0], [1.0, 0.0]]))
    tensor([[0.0000, 1.9281]])
    """

    name = "additive"
    form = "additive"
    axes = "(H,) or (heads, H)"

    def matrix(self, query: Tensor, key: Tensor) -> Tensor:
        weight = widen(self.weight)
        # In place: addition saves no tensor for its backward pass, so the largest tensor here exists once.
        hidden = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()
        if weight.ndim == 1:
            return hidden @ weight
        return (hidden @ weight[:, None, :, None]).squeeze(-1)

    def terms(self, query: Tensor) -> Terms:
        return Terms(query, 1.0, self.weight)

    def check(self, query: Sequence[int], key: Sequence[int]) -> None:
        Score.check(self, query, key)
        super().check(query, key)
        if self.weight.shape[-1] != query[-1]:
            raise ArgumentError(
                f"Additive weight must end in H = {query[-1]}, the query's features, got {tuple(self.weight.shape)}"
            )

    @classmethod
    def weight_shape(cls, dim: int) -> tuple[int, ...]:
        return (dim,)


ScoreName = Literal["dot", "scaled_dot", "general", "additive"]
#: The scores by the names that layers, configs and commands have for them.
BY_NAME: dict[str, type[Score]] = {score.name: score for score in (Dot, ScaledDot, General, Additive)}
