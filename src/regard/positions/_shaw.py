"""Shaw's relative positions: a learned vector for each distance, in the scores and in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from regard._kernels.dtypes import accumulation_dtype
from regard.errors import ArgumentError
from regard.positions._relative import Relative, between, check_places, of_distance

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["Shaw"]

_DISTANCE = 16  # the clipping distance k of Shaw et al. 2018, section 4.1


class Shaw(Relative):
    """Shaw's relative positions: a learned vector for each distance is added to the keys, and another to the values.

    s_ij = q_i · (k_j + a^K_{clip(j−i)}) / √d;  output_i = Σ_j P_ij (v_j + a^V_{clip(j−i)}), clip to ±max_distance.

    | symbol | here                                                                                |
    |--------|-------------------------------------------------------------------------------------|
    | w^K_r  | row r + max_distance of ``keys``, r = −max_distance … max_distance, r < 0 is earlier |
    | w^V_r  | the same row of ``values``; with ``values=False`` there are none                     |
    | k      | ``max_distance``                                                                     |

    All heads share the vectors, which begin Glorot-uniform. No (Tq, Tk, d) tensor is made: each query is multiplied by
    the 2 max_distance + 1 vectors once, and the weights of one distance are summed before they multiply its vector.

    Shapes: keys and values (2 max_distance + 1, head_dim); query (..., H, Tq, head_dim); weights (..., H, Tq, Tk);
    places (Tq,) and (Tk,), or with B in front; bias (..., H, Tq, Tk); of_weights (..., H, Tq, head_dim).
    Errors: `ArgumentError` for sizes below 1, or a query of another size.
    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", arXiv 1803.02155, equations 3
    and 4; the order of the sums: section 3.3.

    >>> shaw, places = Shaw(4, 2), torch.arange(5)
    >>> shaw.bias(torch.randn(3, 5, 4), places, places).shape
    torch.Size([3, 5, 5])
    >>> shaw.of_weights(torch.rand(3, 5, 5), places, places).shape
    torch.Size([3, 5, 4])
    """

    values: nn.Parameter | None

    @classmethod
    def for_layer(cls, num_heads: int, head_dim: int, *, bidirectional: bool) -> Self:
        return cls(head_dim, _DISTANCE)

    def __init__(self, head_dim: int, max_distance: int, *, values: bool = True) -> None:
        """Make a vector (head_dim) for each distance up to ±max_distance, of keys and, with ``values``, of values."""
        super().__init__()
        if head_dim < 1 or max_distance < 1:
            raise ArgumentError(f"Shaw needs head_dim and max_distance of 1 or more, got {head_dim} and {max_distance}")
        self.max_distance = max_distance
        self.needs_weights = values
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.register_parameter("values", nn.Parameter(torch.empty_like(self.keys)) if values else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors again."""
        nn.init.xavier_uniform_(self.keys)
        if self.values is not None:
            nn.init.xavier_uniform_(self.values)

    def bias(
        self, query: Float[Tensor, "*B H Tq d"], query_places: Int[Tensor, "*B Tq"], key_places: Int[Tensor, "*B Tk"]
    ) -> Float[Tensor, "*B H Tq Tk"]:
        """Return q_i · a^K_{clip(j−i)} / √d, in the query's dtype."""
        head_dim = self.keys.shape[1]
        if query.dim() < 3 or query.shape[-1] != head_dim:
            raise ArgumentError(
                f"Shaw of head_dim={head_dim} expects (..., H, Tq, {head_dim}), got {tuple(query.shape)}"
            )
        check_places(query, query_places, "query_places")
        products = query @ self.keys.to(query.dtype).mT / head_dim**0.5
        # In float32 at least: a GPU adds up the gather's gradient, a number for each key, in the products' own dtype.
        found = of_distance(
            products.to(accumulation_dtype(query.dtype)), between(query_places, key_places), self.max_distance
        )
        return found.to(query.dtype)

    def of_weights(
        self, weights: Float[Tensor, "*B H Tq Tk"], query_places: Int[Tensor, "*B Tq"], key_places: Int[Tensor, "*B Tk"]
    ) -> Float[Tensor, "*B H Tq d"]:
        """Return Σ_j P_ij a^V_{clip(j−i)}, in the weights' dtype."""
        if self.values is None:
            return super().of_weights(weights, query_places, key_places)
        check_places(weights, query_places, "query_places")
        check_places(weights.mT, key_places, "key_places")
        columns = between(query_places, key_places).clamp(-self.max_distance, self.max_distance) + self.max_distance
        shares = weights.new_zeros((*weights.shape[:-1], self.values.shape[0]), dtype=accumulation_dtype(weights.dtype))
        shares = shares.scatter_add(-1, columns.expand(weights.shape), weights.to(shares.dtype))
        return shares.to(weights.dtype) @ self.values.to(weights.dtype)

    def extra_repr(self) -> str:
        return f"{self.keys.shape[1]}, {self.max_distance}, values={self.values is not None}"
