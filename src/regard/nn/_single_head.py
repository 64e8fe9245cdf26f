"""Self-attention and cross-attention with one head, written as in textbooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from regard.functional.attention import attend
from regard.nn._parts import HeadScore, check_dropout, check_size, described, glorot_, with_causal

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional import Impl, Mask, Observation, Observe
    from regard.nn._parts import ScoreName

__all__ = ["CrossAttention", "SelfAttention"]


class _SingleHead(nn.Module):
    """The base of both layers: queries from one sequence, keys and values from the same or another."""

    def __init__(
        self,
        query_dim: int,
        source_dim: int,
        *,
        key_dim: int | None,
        value_dim: int | None,
        score: ScoreName,
        bias: bool,
        causal: bool,
        dropout: float,
        impl: Impl,
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        key_dim = query_dim if key_dim is None else key_dim
        self.q_proj = nn.Linear(query_dim, key_dim, bias=bias)
        self.k_proj = nn.Linear(source_dim, key_dim, bias=bias)
        self.v_proj = nn.Linear(source_dim, query_dim if value_dim is None else value_dim, bias=bias)
        self.score = HeadScore(score, key_dim)
        self.causal = causal
        self.dropout = dropout
        self.impl = impl
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            glorot_(projection)
        self.score.reset_parameters()

    def extra_repr(self) -> str:
        return described(self, causal=False, dropout=0.0, impl="auto")

    def _attend(
        self,
        query: Float[Tensor, "*B Tq _"],
        source: Float[Tensor, "*B Tk _"],
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None,
        bias: Float[Tensor, "*biased Tq Tk"] | None,
        observe: Observe | None,
    ) -> Float[Tensor, "*B Tq Ev"] | tuple[Float[Tensor, "*B Tq Ev"], Observation]:
        q, k, v = self.q_proj(query), self.k_proj(source), self.v_proj(source)
        batched = q.dim() == 3
        if batched:
            q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
        output, statistics = attend(
            q,
            k,
            v,
            score=self.score(),
            mask=with_causal(mask, q.dim()) if self.causal else mask,
            bias=bias,
            dropout_p=self.dropout if self.training else 0.0,
            observe=observe,
            impl=self.impl,
        )
        output = output.squeeze(1) if batched else output
        return output if statistics is None else (output, statistics)


class SelfAttention(_SingleHead):
    """Attention within one sequence, with one head: each position attends to all positions, its own included.

    qⁱ = W^q aⁱ,  kⁱ = W^k aⁱ,  vⁱ = W^v aⁱ;  α_ij = score(qⁱ, kʲ);  α′_i = softmax_j α_ij;  bⁱ = Σ_j α′_ij vʲ.

    | symbol        | here                                                                              |
    |---------------|-----------------------------------------------------------------------------------|
    | aⁱ, bⁱ        | x[..., i, :], output[..., i, :]                                                   |
    | W^q, W^k, W^v | ``q_proj``, ``k_proj``, ``v_proj`` (``weight``, and with ``bias=True`` a ``bias``)|
    | score         | "dot", "scaled_dot", "general" (W = ``score.weight``), "additive" (w likewise)    |

    Projections and scores begin Glorot-uniform, biases zero. With ``causal`` position i attends to 0 … i only.
    ``dropout`` applies to the weights α′, in training only. ``key_dim`` and ``value_dim`` default to ``dim``.

    Shapes: x (B, T, dim) or (T, dim); output (B, T, value_dim) or (T, value_dim). Tensor masks, biases and statistics
    have a head axis of size 1 if x is a batch: (B, 1, T, T).
    Errors: `ArgumentError` for wrong sizes, masks and options.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1; additive: Bahdanau et al. 2014.

    >>> import torch
    >>> layer = SelfAttention(4, score="dot")
    >>> layer(torch.randn(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        dim: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: ScoreName = "scaled_dot",
        bias: bool = False,
        causal: bool = False,
        dropout: float = 0.0,
        impl: Impl = "auto",
    ) -> None:
        """Make the projections dim -> key_dim of queries and keys, and dim -> value_dim of values."""
        super().__init__(
            dim,
            dim,
            key_dim=key_dim,
            value_dim=value_dim,
            score=score,
            bias=bias,
            causal=causal,
            dropout=dropout,
            impl=impl,
        )

    def forward(
        self,
        x: Float[Tensor, "*B T dim"],
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        bias: Float[Tensor, "*biased Tq Tk"] | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "*B T Ev"] | tuple[Float[Tensor, "*B T Ev"], Observation]:
        """Return the output (B, T, value_dim) of x (B, T, dim), with ``observe`` also the statistics."""
        check_size(x, self.q_proj.in_features, "x")
        return self._attend(x, x, mask, bias, observe)


class CrossAttention(_SingleHead):
    """Attention from one sequence to another, with one head: queries from the target, keys and values from the source.

    qⁱ = W^q aⁱ from the target,  kʲ = W^k cʲ,  vʲ = W^v cʲ from the source;  bⁱ = Σ_j softmax_j(score(qⁱ, kʲ)) vʲ.

    Parameters, initialisation and options are those of `SelfAttention`; ``key_dim`` and ``value_dim`` default to
    ``query_dim``.

    Shapes: query (B, Tq, query_dim) and source (B, Tk, source_dim), or both without B; output (B, Tq, value_dim).
    Tensor masks, biases and statistics have a head axis of size 1 in a batch: (B, 1, Tq, Tk).
    Errors: `ArgumentError` for wrong sizes, masks and options.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3 ("encoder-decoder attention").

    >>> import torch
    >>> layer = CrossAttention(4, 6)
    >>> layer(torch.randn(2, 3, 4), torch.randn(2, 5, 6)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        query_dim: int,
        source_dim: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: ScoreName = "scaled_dot",
        bias: bool = False,
        dropout: float = 0.0,
        impl: Impl = "auto",
    ) -> None:
        """Make the projections query_dim -> key_dim, source_dim -> key_dim and source_dim -> value_dim."""
        super().__init__(
            query_dim,
            source_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            score=score,
            bias=bias,
            causal=False,
            dropout=dropout,
            impl=impl,
        )

    def forward(
        self,
        query: Float[Tensor, "*B Tq query_dim"],
        source: Float[Tensor, "*B Tk source_dim"],
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        bias: Float[Tensor, "*biased Tq Tk"] | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "*B Tq Ev"] | tuple[Float[Tensor, "*B Tq Ev"], Observation]:
        """Return the output (B, Tq, value_dim) of query and source, with ``observe`` also the statistics."""
        check_size(query, self.q_proj.in_features, "query")
        check_size(source, self.k_proj.in_features, "source", (query.dim(),))
        return self._attend(query, source, mask, bias, observe)
