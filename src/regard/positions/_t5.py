"""T5's relative bias: a learned number for each head and bucket of distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from regard._kernels.dtypes import accumulation_dtype
from regard.errors import ArgumentError
from regard.positions._relative import Relative, between, check_heads, check_places, of_distance

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["T5Bias"]


class T5Bias(Relative):
    """T5's relative bias: a learned number for each head and bucket of distances is added to the scores.

    bias_hij = weight[bucket(j − i), h].

    Half of the buckets hold one distance each, 0, 1, 2, …; the edges of the others grow geometrically up to
    ``max_distance``, from which on all distances share the last bucket. With ``bidirectional``, earlier and later keys
    have half of the buckets each; otherwise all later keys count as distance 0 (a causal mask hides them).

    ``weight`` begins as N(0, 0.02²). T5 itself does not divide its scores by √d (``score="dot"``), and shares one table
    among its layers: give all of them the same `T5Bias`.

    Shapes: weight (buckets, H); query (..., H, Tq, d); places (Tq,) and (Tk,), or with B in front; bias (H, Tq, Tk) for
    a query without batch, else (1, H, Tq, Tk), or (B, H, Tq, Tk) where positions have a batch.
    Errors: `ArgumentError` for buckets that cannot be divided, or a query with another number of heads.
    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    arXiv 1910.10683, section 2.1; the buckets: the authors' code.

    >>> t5 = T5Bias(2, buckets=8, max_distance=16)
    >>> t5.bucket(torch.arange(-6, 7))
    tensor([3, 2, 2, 2, 2, 1, 0, 5, 6, 6, 6, 6, 7])
    >>> t5.bias(torch.zeros(3, 2, 5, 4), torch.arange(5), torch.arange(7)).shape
    torch.Size([1, 2, 5, 7])
    """

    is_shared = True

    _bucket_of: Tensor

    @classmethod
    def for_layer(cls, num_heads: int, head_dim: int, *, bidirectional: bool) -> Self:
        return cls(num_heads, bidirectional=bidirectional)

    def __init__(
        self, num_heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        """Make a bias for each of the ``buckets`` and heads."""
        super().__init__()
        sides = 2 if bidirectional else 1
        if num_heads < 1:
            raise ArgumentError(f"T5Bias needs num_heads >= 1, got {num_heads}")
        if buckets < 2 * sides or buckets % sides:
            least = "an even number of buckets, 4 or more" if bidirectional else "2 buckets or more"
            raise ArgumentError(f"T5Bias needs {least}, got {buckets}")
        if max_distance <= buckets // sides // 2:
            raise ArgumentError(
                f"T5Bias needs max_distance > {buckets // sides // 2}, the number of distances that have buckets of "
                f"their own, got {max_distance}"
            )
        self.num_heads = num_heads
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(buckets, num_heads))
        one_side = torch.bucketize(
            torch.arange(max_distance + 1), torch.tensor(_edges(buckets // sides, max_distance)), right=True
        )
        later = one_side[1:] + buckets // 2 if bidirectional else torch.zeros_like(one_side[1:])
        # Whole numbers, which no change of the model's dtype rounds.
        self.register_buffer("_bucket_of", torch.cat([one_side.flip(0), later]), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the biases again."""
        nn.init.normal_(self.weight, std=0.02)

    def bucket(self, distances: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        """Return the bucket of each distance j − i, from query to key."""
        return self._bucket_of[distances.clamp(-self.max_distance, self.max_distance) + self.max_distance]

    def bias(
        self, query: Float[Tensor, "*B H Tq d"], query_places: Int[Tensor, "*B Tq"], key_places: Int[Tensor, "*B Tk"]
    ) -> Float[Tensor, "*b H Tq Tk"]:
        """Return weight[bucket(j − i), h], in the query's dtype."""
        check_heads(query, self.num_heads, "T5Bias")
        check_places(query, query_places, "query_places")
        # In float32 at least: a GPU adds up the gather's gradient, a number for each key, in the table's own dtype.
        table = self.weight.to(accumulation_dtype(self.weight.dtype))[self._bucket_of].mT.unsqueeze(-2)
        bias = of_distance(table, between(query_places, key_places), self.max_distance).to(query.dtype)
        return bias.unsqueeze(0) if query.dim() > 3 and bias.dim() == 3 else bias

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, buckets={self.weight.shape[0]}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )


def _edges(buckets: int, max_distance: int) -> list[int]:
    """Return the first distance of each bucket of a side, except bucket 0.

    For bucket exact + k it is the least integer x ≥ exact · (max_distance / exact)^(k/m), computed in whole numbers by
    x^m ≥ exact^(m−k) · max_distance^k, as logarithms may miss an edge that is an integer.
    """
    exact = buckets // 2
    wide = buckets - exact
    edges = list(range(1, exact + 1))
    for k in range(1, wide):
        least = exact ** (wide - k) * max_distance**k
        edge = round(exact * (max_distance / exact) ** (k / wide))
        while edge**wide < least:
            edge += 1
        while (edge - 1) ** wide >= least:
            edge -= 1
        edges.append(edge)
    return edges
