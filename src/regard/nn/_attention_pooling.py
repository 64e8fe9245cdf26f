"""Attention pooling: a weighted mean of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional.attention import attend
from regard.nn._parts import HeadScore, check_size, described, glorot_

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional import Impl, Mask, Observation, Observe
    from regard.nn._parts import ScoreName

__all__ = ["AttentionPooling"]


class AttentionPooling(nn.Module):
    """A weighted mean of a sequence's states: attention with learned queries in place of computed ones.

    α = softmax_j score(u, W_k h_j);  c = Σ_j α_j h_j; with "additive", score = wᵀ tanh(u + W_k h_j).

    | symbol                             | here                                                               |
    |------------------------------------|--------------------------------------------------------------------|
    | states h_j                         | x[:, j]                                                            |
    | query u, one for each head         | ``query`` (heads, key_dim)                                         |
    | W_k                                | ``k_proj``, rows i·key_dim … (i+1)·key_dim for head i              |
    | W_w, b_w, u_w, α, s of the paper   | with "additive": ``k_proj``, ``query``, ``score.weight``, α, c     |

    Each head weighs its own features of the states: features i·dim/heads … (i+1)·dim/heads of c have the weights of
    head i. ``key_dim`` defaults to dim/heads. W_k and scores begin Glorot-uniform, queries N(0, 1/key_dim).

    Shapes: x (B, T, dim) or (T, dim), output (B, dim) or (dim). Masks and statistics are those of `regard.attention`
    with one query: (B, heads, 1, T). A sequence that is masked entirely gives 0.
    Errors: `ArgumentError` for wrong sizes, masks and options.
    Source: Yang et al. 2016, "Hierarchical Attention Networks for Document Classification", equations 5 to 7;
    several heads: Lin et al. 2017, "A Structured Self-attentive Sentence Embedding", arXiv 1703.03130, section 2.1.

    >>> from regard import Observe, padding
    >>> layer = AttentionPooling(6, heads=2)
    >>> pooled, statistics = layer(torch.randn(2, 5, 6), mask=padding(lengths=[5, 3]), observe=Observe(weights=True))
    >>> pooled.shape, statistics.weights.shape
    (torch.Size([2, 6]), torch.Size([2, 2, 1, 5]))
    >>> statistics.weights[1, :, 0, 3:].tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        key_dim: int | None = None,
        score: ScoreName = "additive",
        impl: Impl = "auto",
    ) -> None:
        """Make a query (key_dim) and a projection dim -> key_dim for each head."""
        super().__init__()
        if heads < 1 or dim < 1 or dim % heads:
            raise ArgumentError(f"dim must be a multiple of heads, got {dim} and {heads}")
        key_dim = dim // heads if key_dim is None else key_dim
        if key_dim < 1:
            raise ArgumentError(f"key_dim must be at least 1, got {key_dim}")
        self.query = nn.Parameter(torch.empty(heads, key_dim))
        self.k_proj = nn.Linear(dim, heads * key_dim, bias=False)
        self.score = HeadScore(score, key_dim, heads)
        self.impl = impl
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        nn.init.normal_(self.query, std=self.query.shape[1] ** -0.5)
        glorot_(self.k_proj)
        self.score.reset_parameters()

    def extra_repr(self) -> str:
        return described(self, impl="auto")

    def forward(
        self,
        x: Float[Tensor, "*B T dim"],
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "*B dim"] | tuple[Float[Tensor, "*B dim"], Observation]:
        """Return the weighted mean (B, dim) of the states x (B, T, dim), with ``observe`` also the statistics."""
        check_size(x, self.k_proj.in_features, "x")
        size = self.query.shape[0], -1
        keys, values = (part.unflatten(-1, size).transpose(-3, -2) for part in (self.k_proj(x), x))
        query = self.query.to(keys.dtype).unsqueeze(1).expand(*keys.shape[:-2], 1, -1)
        heads, statistics = attend(query, keys, values, score=self.score(), mask=mask, observe=observe, impl=self.impl)
        pooled = heads.flatten(-3)
        return pooled if statistics is None else (pooled, statistics)
