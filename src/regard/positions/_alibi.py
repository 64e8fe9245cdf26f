"""ALiBi: scores fall linearly with the distance, with a slope for each head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from regard._kernels.dtypes import accumulation_dtype
from regard.errors import ArgumentError
from regard.positions._relative import Relative, between, check_heads, check_places

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["ALiBi"]


class ALiBi(Relative):
    """ALiBi, attention with linear biases: each score is lowered in proportion to the distance.

    bias_hij = −m_h |i − j|, with slopes m_h = 2^(−8h/H), h = 1 … H, for a number of heads H that is a power of two.

    For another number, with n the next lower power of two: the n slopes of n heads, then the 1st, 3rd, 5th, … of those
    of 2n. The paper treats causal attention, where i − j is never negative; here both directions count equally. There
    are no parameters, no entries in the ``state_dict``, and no maximum length.

    Shapes: query (..., H, Tq, d); places (Tq,) and (Tk,), or with B in front; bias (H, Tq, Tk) for a query without
    batch, else (1, H, Tq, Tk), or (B, H, Tq, Tk) where places have a batch.
    Errors: `ArgumentError` for a number of heads below 1, or a query with another.
    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", arXiv 2108.12409, section 3; other numbers of heads: the authors' code.

    >>> alibi, places = ALiBi(2), torch.arange(3)
    >>> alibi.slopes()
    tensor([0.0625, 0.0039])
    >>> alibi.bias(torch.zeros(2, 3, 4), places, places)[0]
    tensor([[-0.0000, -0.0625, -0.1250],
            [-0.0625, -0.0000, -0.0625],
            [-0.1250, -0.0625, -0.0000]])
    """

    @classmethod
    def for_layer(cls, num_heads: int, head_dim: int, *, bidirectional: bool) -> Self:
        return cls(num_heads)

    def __init__(self, num_heads: int) -> None:
        """Make biases for ``num_heads`` heads."""
        super().__init__()
        if num_heads < 1:
            raise ArgumentError(f"ALiBi needs num_heads >= 1, got {num_heads}")
        self.num_heads = num_heads

    def slopes(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> Float[Tensor, " H"]:
        """Return m_h for each head; not a buffer, which a half-precision model would round."""
        regular = 1 << (self.num_heads.bit_length() - 1)
        steps = torch.arange(1, regular + 1, dtype=dtype, device=device)
        halfway = torch.arange(self.num_heads - regular, dtype=dtype, device=device) + 0.5
        return torch.exp2(torch.cat([steps, halfway]) * (-8 / regular))

    def bias(
        self, query: Float[Tensor, "*B H Tq d"], query_places: Int[Tensor, "*B Tq"], key_places: Int[Tensor, "*B Tk"]
    ) -> Float[Tensor, "*b H Tq Tk"]:
        """Return −m_h |i − j|, in the query's dtype."""
        check_heads(query, self.num_heads, "ALiBi")
        check_places(query, query_places, "query_places")
        slopes = self.slopes(accumulation_dtype(query.dtype), query.device)
        bias = (-slopes[:, None, None] * between(query_places, key_places).abs()).to(query.dtype)
        return bias.unsqueeze(0) if query.dim() > 3 and bias.dim() == 3 else bias

    def extra_repr(self) -> str:
        return str(self.num_heads)
