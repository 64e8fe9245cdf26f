"""Attention for the steps of a recurrent decoder: keys are projected once per sentence, queries once per step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional import Additive, Dot
from regard.functional.attention import attend
from regard.functional.scores import BY_NAME
from regard.nn._parts import check_size, described, glorot_

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional import Impl, Mask, Observation, Observe, Score
    from regard.functional.scores import ScoreName

__all__ = ["BahdanauAttention", "LuongAttention"]


def _context(
    query: Float[Tensor, "B *Tq H"],
    keys: Float[Tensor, "B Tk H"],
    memory: Float[Tensor, "B Tk M"],
    score: Score,
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None,
    observe: Observe | None,
    impl: Impl,
) -> Float[Tensor, "B *Tq M"] | tuple[Float[Tensor, "B *Tq M"], Observation]:
    if keys.dim() != 3 or memory.dim() != 3:
        raise ArgumentError(
            f"expected keys (B, Tk, H) and memory (B, Tk, M), got {tuple(keys.shape)} and {tuple(memory.shape)}"
        )
    step = query.dim() == 2
    # Views whose gradients are views: an index such as [:, 0] would fill a tensor of zeros in the backward pass.
    context, statistics = attend(
        query.unsqueeze(1).unsqueeze(1) if step else query.unsqueeze(1),
        keys.unsqueeze(1),
        memory.unsqueeze(1),
        score=score,
        mask=mask,
        observe=observe,
        impl=impl,
    )
    context = context.squeeze(1)
    context = context.squeeze(1) if step else context
    return context if statistics is None else (context, statistics)


class BahdanauAttention(nn.Module):
    """Additive attention of a decoder: a step's context is the mean of the memory, weighted by its scores.

    e_tj = wᵀ tanh(W_q s_{t−1} + W_k h_j + b);  α_t = softmax_j e_tj;  c_t = Σ_j α_tj h_j.

    | symbol                     | here                                             |
    |----------------------------|--------------------------------------------------|
    | decoder's state s_{t−1}    | query (B, query_dim)                             |
    | encoder's states h_j       | memory[:, j] (B, Tk, memory_dim)                 |
    | W_a, U_a, v_a of the paper | ``W_q``, ``W_k`` (which carries b), ``w``        |

    All parameters begin Glorot-uniform, b zero.

    Shapes: ``project(memory)`` gives keys (B, Tk, hidden_dim), once per sentence; query (B, query_dim) for one step
    gives the context (B, memory_dim), query (B, Tq, query_dim) for several (all steps, or the hypotheses of a beam)
    gives (B, Tq, memory_dim). Masks and statistics are those of `regard.attention` with one head: (B, 1, Tq, Tk).
    Errors: `ArgumentError` for wrong sizes and masks.
    Source: Bahdanau, Cho, Bengio 2014, arXiv 1409.0473, section 3.1 and appendix A.1.2.

    >>> layer = BahdanauAttention(query_dim=5, memory_dim=4, hidden_dim=7)
    >>> memory = torch.randn(2, 3, 4)
    >>> keys = layer.project(memory)
    >>> layer(torch.randn(2, 5), keys, memory).shape
    torch.Size([2, 4])
    """

    def __init__(self, query_dim: int, memory_dim: int, hidden_dim: int, *, impl: Impl = "auto") -> None:
        """Make W_q (query_dim -> hidden_dim), W_k (memory_dim -> hidden_dim) and w (hidden_dim)."""
        super().__init__()
        self.W_q = nn.Linear(query_dim, hidden_dim, bias=False)
        self.W_k = nn.Linear(memory_dim, hidden_dim)
        self.w = nn.Parameter(torch.empty(hidden_dim))
        self.impl = impl
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        glorot_(self.W_q)
        glorot_(self.W_k)
        bound = math.sqrt(6 / (1 + self.w.shape[0]))
        nn.init.uniform_(self.w, -bound, bound)

    def project(self, memory: Float[Tensor, "B Tk memory_dim"]) -> Float[Tensor, "B Tk hidden_dim"]:
        """Return the keys W_k h_j + b."""
        check_size(memory, self.W_k.in_features, "memory", (3,))
        keys: Tensor = self.W_k(memory)
        return keys

    def forward(
        self,
        query: Float[Tensor, "B *Tq query_dim"],
        keys: Float[Tensor, "B Tk hidden_dim"],
        memory: Float[Tensor, "B Tk memory_dim"],
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "B *Tq memory_dim"] | tuple[Float[Tensor, "B *Tq memory_dim"], Observation]:
        """Return the context of one query (B, query_dim) or several, with ``observe`` also the statistics."""
        check_size(query, self.W_q.in_features, "query")
        return _context(self.W_q(query), keys, memory, Additive(self.w), mask, observe, self.impl)

    def extra_repr(self) -> str:
        return described(self, impl="auto")


class LuongAttention(nn.Module):
    """Multiplicative attention of a decoder: the score is a product of the decoder's and the encoder's states.

    score(s_t, h_j) = s_tᵀ h_j ("dot"),  s_tᵀ h_j / √query_dim ("scaled_dot"),  s_tᵀ W_a h_j ("general");
    α_t = softmax_j score(s_t, h_j);  c_t = Σ_j α_tj h_j.

    The call is that of `BahdanauAttention`, so that a decoder can hold either: ``project`` gives the keys W_a h_j, or
    the memory itself without parameters. W_a, the weight of ``W_a``, begins Glorot-uniform. It has no bias:
    s_tᵀ(W_a h_j + b) differs from s_tᵀ W_a h_j by the same number for every j, which cancels in softmax.

    Shapes: memory (B, Tk, memory_dim), keys (B, Tk, query_dim); query (B, query_dim) gives the context (B, memory_dim),
    query (B, Tq, query_dim) gives (B, Tq, memory_dim). Masks and statistics have one head: (B, 1, Tq, Tk).
    Errors: `ArgumentError` for wrong sizes and masks, and for a product of vectors of two sizes.
    Source: Luong, Pham, Manning 2015, arXiv 1508.04025, equation 8; scaled: Vaswani et al. 2017, section 3.2.1.

    >>> layer = LuongAttention(query_dim=5, memory_dim=4, score="general")
    >>> memory = torch.randn(2, 3, 4)
    >>> keys = layer.project(memory)
    >>> layer(torch.randn(2, 6, 5), keys, memory).shape
    torch.Size([2, 6, 4])
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        score: ScoreName = "dot",
        *,
        impl: Impl = "auto",
    ) -> None:
        """Make W_a (memory_dim -> query_dim) for "general"; the other scores need query_dim = memory_dim."""
        super().__init__()
        names = [name for name in BY_NAME if name == "general" or BY_NAME[name].weight_shape(query_dim) is None]
        if score not in names:
            raise ArgumentError(f"score must be one of {', '.join(map(repr, names))}; got {score!r}")
        if score != "general" and query_dim != memory_dim:
            raise ArgumentError(
                f'score="{score}" multiplies vectors of one size, got query_dim={query_dim} and '
                f'memory_dim={memory_dim}: use score="general"'
            )
        self.query_dim = query_dim
        self.memory_dim = memory_dim
        self.score = score
        self.impl = impl
        self.W_a = nn.Linear(memory_dim, query_dim, bias=False) if score == "general" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        if self.W_a is not None:
            glorot_(self.W_a)

    def project(self, memory: Float[Tensor, "B Tk memory_dim"]) -> Float[Tensor, "B Tk query_dim"]:
        """Return the keys W_a h_j, or h_j itself without W_a."""
        check_size(memory, self.memory_dim, "memory", (3,))
        if self.W_a is None:
            return memory
        keys: Tensor = self.W_a(memory)
        return keys

    def forward(
        self,
        query: Float[Tensor, "B *Tq query_dim"],
        keys: Float[Tensor, "B Tk query_dim"],
        memory: Float[Tensor, "B Tk memory_dim"],
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "B *Tq memory_dim"] | tuple[Float[Tensor, "B *Tq memory_dim"], Observation]:
        """Return the context of one query (B, query_dim) or several, with ``observe`` also the statistics."""
        check_size(query, self.query_dim, "query")
        score = Dot() if self.W_a is not None else BY_NAME[self.score]()
        return _context(query, keys, memory, score, mask, observe, self.impl)

    def extra_repr(self) -> str:
        return described(self, query_dim=None, memory_dim=None, score=None, impl="auto")
