"""The base of the encodings that act within attention, and functions of the distance between positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["Relative", "between", "check_heads", "check_places", "of_distance"]


class Relative(nn.Module):
    """The base of the encodings that act within attention; without overridden methods it has no effect.

    s_ij = score(rotate(q_i), rotate(k_j)) + bias_ij;  output_i = Σ_j P_ij v_j + of_weights(P)_i, with P = softmax(s).

    An encoding overrides one or two of the three methods. They take *places*, the positions of queries and keys:
    integers with any origin, as only differences count. One that models make by its name defines `for_layer` too.

    Shapes: heads (..., H, T, d); weights (..., H, Tq, Tk); places (T,) for all sequences, or (B, T).

    >>> x = torch.randn(2, 3, 5, 4)
    >>> torch.equal(Relative().rotate(x, torch.arange(5)), x)
    True
    """

    #: True where the heads' output needs `of_weights`, and so the weights themselves.
    needs_weights: bool = False

    #: True where all layers of a model share one encoding.
    is_shared: ClassVar[bool] = False

    def __init__(self) -> None:
        """Make an encoding without parameters and without effect."""
        super().__init__()

    @classmethod
    def for_layer(cls, num_heads: int, head_dim: int, *, bidirectional: bool) -> Self:
        """Return the encoding for a layer with these heads, with the defaults of models that choose one by name."""
        raise NotImplementedError(f"{cls.__name__} must define for_layer, by which models make an encoding")

    def forward(self, *_: object) -> NoReturn:
        """Raise `UnsupportedError`: layers call `rotate`, `bias` and `of_weights` of the encoding instead."""
        raise UnsupportedError(
            f"{type(self).__name__} acts within attention and cannot be called alone: pass it to a layer as positions="
        )

    def rotate(self, heads: Float[Tensor, "*B H T d"], places: Int[Tensor, "*B T"]) -> Float[Tensor, "*B H T d"]:
        """Rotate queries or keys according to their positions; shape and dtype do not change."""
        return heads

    def bias(
        self, query: Float[Tensor, "*B H Tq d"], query_places: Int[Tensor, "*B Tq"], key_places: Int[Tensor, "*B Tk"]
    ) -> Float[Tensor, "*b H Tq Tk"] | None:
        """Return the bias of the scores, in the query's dtype, with 1 or B before the heads if it has a batch."""
        return None

    def of_weights(
        self, weights: Float[Tensor, "*B H Tq Tk"], query_places: Int[Tensor, "*B Tq"], key_places: Int[Tensor, "*B Tk"]
    ) -> Float[Tensor, "*B H Tq d"]:
        """Return the term added to the heads' output, in the weights' dtype; called only if `needs_weights` is true."""
        raise NotImplementedError(
            f"{type(self).__name__} adds nothing to the output of the heads: needs_weights is False"
        )


def check_places(x: Float[Tensor, "*B H T d"], places: Int[Tensor, "*B T"], name: str = "places") -> None:
    """Check that positions are integers, one for each token of x."""
    fits = places.dim() == 1 or (places.dim() == 2 and x.dim() > 3 and places.shape[0] in (1, x.shape[0]))
    if places.is_floating_point() or places.dtype == torch.bool or not fits or places.shape[-1] != x.shape[-2]:
        batch = f" or {(x.shape[0], x.shape[-2])}" if x.dim() > 3 else ""
        raise ArgumentError(
            f"{name} must be integers of shape {(x.shape[-2],)}{batch}, one for each token, "
            f"got {places.dtype} of shape {tuple(places.shape)}"
        )


def check_heads(query: Float[Tensor, "*B H Tq d"], num_heads: int, name: str) -> None:
    """Check the number of heads of a query."""
    if query.dim() < 3 or query.shape[-3] != num_heads:
        raise ArgumentError(
            f"{name} has {num_heads} heads, but the query is {tuple(query.shape)}: give (..., H, Tq, d)"
        )


def between(query_places: Int[Tensor, "*B Tq"], key_places: Int[Tensor, "*B Tk"]) -> Int[Tensor, "*b Tq Tk"]:
    """Return the distances j - i from queries to keys, (Tq, Tk), or (B, 1, Tq, Tk) with one axis for all heads."""
    apart = key_places.unsqueeze(-2) - query_places.unsqueeze(-1)
    return apart if apart.dim() == 2 else apart.unsqueeze(-3)


def of_distance(
    table: Float[Tensor, "*B H _ R"], distances: Int[Tensor, "*b Tq Tk"], limit: int
) -> Float[Tensor, "*B H Tq Tk"]:
    """Look up each distance in a table, where column r + limit is that of distance r, clipped to ±limit.

    One gather, whose gradient is summed over Tk for each query in turn: no Tq×Tk×d tensor, and no race.
    """
    columns = distances.clamp(-limit, limit) + limit
    rows = torch.broadcast_shapes(table.shape[:-1], columns.shape[:-1])  # type: ignore[no-untyped-call]
    return table.expand(*rows, -1).gather(-1, columns.expand(*rows, -1))
