"""Multi-head attention, in which every head may have a score of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional import Mask, Observation, Observe, attention
from regard.nn._parts import HeadScore, check_dropout, check_size, glorot_, with_causal
from regard.nn._torch import take_torch_state

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional import Impl
    from regard.nn._parts import ScoreName

    Answer = Float[Tensor, "*B H Tq Ev"] | tuple[Float[Tensor, "*B H Tq Ev"], Observation]

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Several kinds of relevance side by side: heads that attend apart and are brought together by W^O.

    h_i = f_i(W_i^q q, W_i^k k, W_i^v v);  output = W^O [h_1; …; h_H], with f_i attention of any score.

    | symbol                | here                                                                         |
    |-----------------------|------------------------------------------------------------------------------|
    | W_i^q, W_i^k, W_i^v   | rows i·d … (i+1)·d of ``q_proj``, ``k_proj``, ``v_proj``, d = embed_dim / H  |
    | W^O                   | ``out_proj``                                                                 |
    | f_i                   | ``score``: one name, or a list with one name per head                        |

    ``score`` is "dot", "scaled_dot", "general" (a W per head) or "additive" (a w per head); heads with the same one are
    computed together. With ``kv_heads`` fewer than ``num_heads``, consecutive query heads share a key and value head.
    ``causal`` hides later keys (aligned at the last query and key), together with any mask. ``dropout`` falls on the
    weights, in training alone. Projections and scores begin Glorot-uniform, biases zero.

    Shapes: query (B, Tq, embed_dim), key (B, Tk, kdim), value (B, Tk, vdim), all with B or all without; key is query
    and value is key unless given, and so kdim is embed_dim and vdim is kdim; output (B, Tq, embed_dim). A raw mask, a
    bias and what is observed have the heads on an axis: (B, H, Tq, Tk).
    Errors: `ArgumentError` for wrong sizes, masks and options.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; shared key heads: Ainslie et al. 2023,
    arXiv 2305.13245.

    >>> layer = MultiHeadAttention(8, 4, score=["dot", "scaled_dot", "additive", "additive"])
    >>> layer(torch.randn(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    _order: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        score: ScoreName | Sequence[ScoreName] = "scaled_dot",
        dropout: float = 0.0,
        bias: bool = True,
        causal: bool = False,
        impl: Impl = "auto",
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        kv_heads = num_heads if kv_heads is None else kv_heads
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}")
        if kv_heads < 1 or num_heads % kv_heads:
            raise ArgumentError(f"num_heads must be a multiple of kv_heads, got {num_heads} and {kv_heads}")
        kdim = embed_dim if kdim is None else kdim
        vdim = kdim if vdim is None else vdim
        self.num_heads = num_heads
        self.kv_heads = kv_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.causal = causal
        self.impl = impl
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(kdim, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(vdim, kv_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.scores = _scores(score, num_heads, self.head_dim)
        order = torch.cat([group.heads for group in self._groups()]).argsort()
        self.register_buffer("_order", order, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            glorot_(projection)
        for group in self._groups():
            group.reset_parameters()

    def forward(
        self,
        query: Float[Tensor, "*B Tq embed_dim"],
        key: Float[Tensor, "*B Tk kdim"] | None = None,
        value: Float[Tensor, "*B Tk vdim"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        bias: Float[Tensor, "*biased Tq Tk"] | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "*B Tq embed_dim"] | tuple[Float[Tensor, "*B Tq embed_dim"], Observation]:
        key = query if key is None else key
        value = key if value is None else value
        check_size(query, self.q_proj.in_features, "query")
        check_size(key, self.k_proj.in_features, "key", (query.dim(),))
        check_size(value, self.v_proj.in_features, "value", (query.dim(),))
        q, k, v = self._heads(self.q_proj(query)), self._heads(self.k_proj(key)), self._heads(self.v_proj(value))
        if self.causal:
            mask = with_causal(mask, q.dim())
        answer = self._attend(q, k, v, mask, bias, observe)
        output = self._together(answer if isinstance(answer, Tensor) else answer[0])
        return output if isinstance(answer, Tensor) else (output, answer[1])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        take_torch_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _groups(self) -> list[_Group]:
        return [group for group in self.scores.values() if isinstance(group, _Group)]

    def _heads(self, x: Float[Tensor, "*B T D"]) -> Float[Tensor, "*B H T d"]:
        return x.reshape(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim).transpose(-3, -2)

    def _together(self, heads: Float[Tensor, "*B H Tq d"]) -> Float[Tensor, "*B Tq embed_dim"]:
        output: Tensor = self.out_proj(heads.transpose(-3, -2).flatten(-2))
        return output

    def _attend(
        self,
        q: Float[Tensor, "*B H Tq d"],
        k: Float[Tensor, "*B Hkv Tk d"],
        v: Float[Tensor, "*B Hkv Tk d"],
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None,
        bias: Float[Tensor, "*biased Tq Tk"] | None,
        observe: Observe | None,
    ) -> Answer:
        dropout_p = self.dropout if self.training else 0.0
        groups = self._groups()
        if len(groups) == 1:
            return attention(
                q, k, v, score=groups[0](), mask=mask, bias=bias, dropout_p=dropout_p, observe=observe, impl=self.impl
            )
        shared = self.num_heads // self.kv_heads
        outputs, seen = [], []
        for group in groups:
            heads = group.heads
            answer = attention(
                q.index_select(-3, heads),
                k.index_select(-3, heads // shared),
                v.index_select(-3, heads // shared),
                score=group(),
                mask=_mask_of_heads(mask, heads, self.num_heads),
                bias=None if bias is None else _of_heads(bias, heads, self.num_heads),
                dropout_p=dropout_p,
                observe=_observe_heads(observe, heads, self.num_heads),
                impl=self.impl,
            )
            outputs.append(answer if isinstance(answer, Tensor) else answer[0])
            if not isinstance(answer, Tensor):
                seen.append(answer[1])
        output = torch.cat(outputs, -3).index_select(-3, self._order)
        return (output, _join_heads(seen, self._order, q.dim() - 3)) if seen else output


class _Group(HeadScore):
    """The heads that have one score: their numbers, and the score with its parameters."""

    heads: Tensor

    def __init__(self, name: ScoreName, dim: int, heads: Sequence[int]) -> None:
        super().__init__(name, dim, len(heads))
        self.register_buffer("heads", torch.tensor(heads), persistent=False)


def _scores(score: ScoreName | Sequence[ScoreName], num_heads: int, head_dim: int) -> nn.ModuleDict:
    names = [score] * num_heads if isinstance(score, str) else list(score)
    if len(names) != num_heads:
        raise ArgumentError(f"score must be one name or one for each of the {num_heads} heads, got {len(names)} names")
    groups = {name: [head for head in range(num_heads) if names[head] == name] for name in dict.fromkeys(names)}
    return nn.ModuleDict({name: _Group(name, head_dim, heads) for name, heads in groups.items()})


def _of_heads(x: Tensor, heads: Tensor, num_heads: int) -> Tensor:
    """The share of some heads in a tensor that may have a head axis, (..., H, Tq, Tk)."""
    return x.index_select(-3, heads) if x.dim() > 2 and x.shape[-3] == num_heads else x


def _mask_of_heads(
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, heads: Tensor, num_heads: int
) -> Mask | Bool[Tensor, "*masked Tq Tk"] | None:
    if isinstance(mask, Mask):
        return dataclasses.replace(mask, tables=tuple(_of_heads(table, heads, num_heads) for table in mask.tables))
    return _of_heads(mask, heads, num_heads) if isinstance(mask, Tensor) else mask


def _observe_heads(observe: Observe | None, heads: Tensor, num_heads: int) -> Observe | None:
    """The request for some heads: weights per query are the only part with a head axis (..., H, Tq)."""
    if observe is None or not isinstance(observe.received, Tensor) or observe.received.dim() < 2:
        return observe
    if observe.received.shape[-2] != num_heads:
        return observe
    return dataclasses.replace(observe, received=observe.received.index_select(-2, heads))


def _join_heads(seen: Sequence[Observation], order: Tensor, axis: int) -> Observation:
    """One observation from those of the groups, the heads (on ``axis`` of each statistic) back in their order."""

    def join(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], Tensor):
            return torch.cat(list(parts), axis).index_select(axis, order)
        return type(parts[0])(*map(join, zip(*parts, strict=True))) if isinstance(parts[0], tuple) else parts[0]

    names = [field.name for field in dataclasses.fields(Observation)]
    return Observation(**{name: join([getattr(part, name) for part in seen]) for name in names})
