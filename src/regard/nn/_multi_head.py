"""Multi-head attention, with one score for all heads or a score for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional import Mask
from regard.functional.checks import check_bias
from regard.nn._head_groups import HeadGroup, attend_by_group, head_groups
from regard.nn._kv_cache import KeyValueCache
from regard.nn._parts import as_mask, check_dropout, check_size, described, glorot_, with_causal
from regard.nn._placement import Placement, check_cached, placement, within_window
from regard.nn._torch_multi_head import take_torch_state
from regard.positions import Relative

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional import Impl, Observation, Observe
    from regard.nn._parts import ScoreName

__all__ = ["MultiHeadAttention"]


def attend_with_positions(
    attend: Callable[..., tuple[Tensor, Observation | None]],
    positions: Relative,
    places: Placement,
    q: Float[Tensor, "*B H Tq d"],
    k: Float[Tensor, "*B Hkv Tk d"],
    v: Float[Tensor, "*B Hkv Tk d"],
    bias: Float[Tensor, "*biased Tq Tk"] | None,
) -> tuple[Float[Tensor, "*B H Tq d"], Observation | None]:
    """Compute ``attend(q, k, v, bias=bias)`` with positions in the scores and the output; q and k are rotated already.

    output_i = Σ_j P_ij v_j + of_weights(P)_i, where P is the softmax of the scores with the positions' bias.
    """
    added = positions.bias(q, *places)
    if added is not None:
        bias = added if bias is None else bias + added
    if not positions.needs_weights:
        return attend(q, k, v, bias=bias)
    # Values that are rows of the identity give the weights: by every kernel, after dropout, with gradients.
    rows = torch.eye(k.shape[-2], dtype=v.dtype, device=v.device).expand(*v.shape[:-1], k.shape[-2])
    both, statistics = attend(q, k, torch.cat([v, rows], -1), bias=bias)
    size = v.shape[-1]
    return both[..., :size] + positions.of_weights(both[..., size:], *places), statistics


class MultiHeadAttention(nn.Module):
    """Multi-head attention: heads attend independently, and W^O combines their outputs.

    h_i = f_i(W_i^q q, W_i^k k, W_i^v v);  output = W^O [h_1; …; h_H], with f_i attention of any score.

    | symbol                | here                                                                         |
    |-----------------------|------------------------------------------------------------------------------|
    | W_i^q, W_i^k, W_i^v   | rows i·d … (i+1)·d of ``q_proj``, ``k_proj``, ``v_proj``, d = embed_dim / H  |
    | W^O                   | ``out_proj``                                                                 |
    | f_i                   | ``score``: one name, or a list with one name per head                        |

    ``score`` is "dot", "scaled_dot", "general" (a W per head) or "additive" (a w per head); heads with the same score
    are computed together. With fewer ``kv_heads`` than ``num_heads``, consecutive query heads share a key and value
    head. ``causal`` hides later keys (aligned at the last query and key), in addition to any mask. ``dropout`` applies
    to the weights, in training only. Projections and scores begin Glorot-uniform, biases zero.

    ``positions`` is an encoding that acts within attention, such as `Rotary`, `ALiBi`, `T5Bias` or `Shaw`. Positions
    count the keys that are not padding. Queries of self-attention have the positions of their keys; queries of another
    sequence have the last Tq positions.

    With ``cache`` the keys and values of the query are appended to the cache, and the query attends to everything in
    it; mask and bias then cover all keys so far. ``cache = layer.project(memory)`` projects a memory once, for any
    number of calls ``layer(query, cache=cache)``. See `KeyValueCache`.

    Shapes: query (B, Tq, embed_dim), key (B, Tk, kdim), value (B, Tk, vdim), all with B or all without; key defaults to
    query and value to key, and so kdim to embed_dim and vdim to kdim; output (B, Tq, embed_dim). Tensor masks, biases
    and statistics have an axis for the heads: (B, H, Tq, Tk).
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
        positions: Relative | None = None,
        impl: Impl = "auto",
    ) -> None:
        """Make projections of queries to embed_dim, of keys and values to kv_heads · embed_dim / num_heads."""
        super().__init__()
        check_dropout(dropout)
        if positions is not None and not isinstance(positions, Relative):
            raise ArgumentError(
                f"positions must act within attention, as Rotary or ALiBi do, got {type(positions).__name__}: "
                "add others to the layer's input"
            )
        kv_heads = num_heads if kv_heads is None else kv_heads
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
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
        self.scores = head_groups(score, num_heads, self.head_dim)
        self.positions: Relative | None = None
        order = torch.cat([group.heads for group in self._groups()]).argsort()
        self.register_buffer("_order", order, persistent=False)
        self.reset_parameters()
        self.positions = positions  # after the drawing, as it may be shared with other layers, and trained already

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            glorot_(projection)
        for group in self._groups():
            group.reset_parameters()
        draw_positions = getattr(self.positions, "reset_parameters", None)  # not all encodings have parameters
        if draw_positions is not None:
            draw_positions()

    def forward(
        self,
        query: Float[Tensor, "*B Tq embed_dim"],
        key: Float[Tensor, "*B Tk kdim"] | None = None,
        value: Float[Tensor, "*B Tk vdim"] | None = None,
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        bias: Float[Tensor, "*biased Tq Tk"] | None = None,
        observe: Observe | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "*B Tq embed_dim"] | tuple[Float[Tensor, "*B Tq embed_dim"], Observation]:
        """Return the output (B, Tq, embed_dim) for query (B, Tq, embed_dim), with ``observe`` also the statistics."""
        check_size(query, self.q_proj.in_features, "query")
        q = self._split_heads(self.q_proj(query))
        if cache is None:
            k, v = self._keys_and_values(query if key is None else key, value, query.dim())
        elif not isinstance(cache, KeyValueCache):
            raise ArgumentError(f"cache must be a KeyValueCache, one for each layer, got {type(cache).__name__}")
        elif key is not None or value is not None:
            raise ArgumentError("with cache= the keys are those of query and of the cache: leave key and value out")
        elif cache.fixed and cache.key is not None and cache.value is not None:
            k, v = cache.key, cache.value
        else:
            k, v = self._keys_and_values(query, None, query.dim())
        if self.causal:
            mask = with_causal(mask, q.dim())
        grows = cache is not None and not cache.fixed
        shape = (*q.shape[:-1], k.shape[-2] + (cache.length if cache is not None and grows else 0))
        if bias is not None:
            check_bias(bias, shape)  # before positions are added to it, and before the cache grows
        places, grown = None, None
        if self.positions is not None:
            mask = as_mask(mask, q.dim())
            places = placement(mask, shape, q.device, own=grows or (cache is None and (key is None or key is query)))
            q = self.positions.rotate(q, places.query)
            k = self.positions.rotate(k, places.key[..., shape[-1] - k.shape[-2] :])
        if cache is not None and grows:
            mask = as_mask(mask, q.dim())
            check_cached(mask, shape, q.device, cache.window)
            grown = cache.fork()
            k, v = grown.append(k, v)
            if cache.window is not None and isinstance(mask, Mask):
                mask, bias, places = within_window(cache.window, mask, bias, places, shape[-1], k.shape[-2])
        output, statistics = self._attend(q, k, v, mask, bias, observe, places)
        if cache is not None and grown is not None:
            cache.adopt(grown)  # last: a call that raises an error leaves the cache unchanged
        output = self._merge_heads(output)
        return output if statistics is None else (output, statistics)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        take_torch_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def project(
        self, memory: Float[Tensor, "*B Tk kdim"], value: Float[Tensor, "*B Tk vdim"] | None = None
    ) -> KeyValueCache:
        """Compute the keys and values of a memory once, for any number of calls with ``cache=``.

        >>> layer, query, memory = MultiHeadAttention(8, 2, kdim=6), torch.randn(2, 3, 8), torch.randn(2, 5, 6)
        >>> torch.equal(layer(query, cache=layer.project(memory)), layer(query, memory))
        True
        """
        return KeyValueCache.of_memory(*self._keys_and_values(memory, value, memory.dim()))

    def _keys_and_values(
        self, key: Float[Tensor, "*B Tk kdim"], value: Float[Tensor, "*B Tk vdim"] | None, rank: int
    ) -> tuple[Float[Tensor, "*B Hkv Tk d"], Float[Tensor, "*B Hkv Tk d"]]:
        value = key if value is None else value
        check_size(key, self.k_proj.in_features, "key", (rank,))
        check_size(value, self.v_proj.in_features, "value", (rank,))
        return self._split_heads(self.k_proj(key)), self._split_heads(self.v_proj(value))

    def extra_repr(self) -> str:
        return described(self, num_heads=None, kv_heads=self.num_heads, causal=False, dropout=0.0, impl="auto")

    def _groups(self) -> list[HeadGroup]:
        return [group for group in self.scores.values() if isinstance(group, HeadGroup)]

    def _split_heads(self, x: Float[Tensor, "*B T D"]) -> Float[Tensor, "*B H T d"]:
        return x.reshape(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim).transpose(-3, -2)

    def _merge_heads(self, heads: Float[Tensor, "*B H Tq d"]) -> Float[Tensor, "*B Tq embed_dim"]:
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
        places: Placement | None,
    ) -> tuple[Float[Tensor, "*B H Tq d"], Observation | None]:
        attend = partial(
            attend_by_group,
            self._groups(),
            self._order,
            mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            observe=observe,
            impl=self.impl,
        )
        if self.positions is None or places is None:
            return attend(q, k, v, bias=bias)
        return attend_with_positions(attend, self.positions, places, q, k, v, bias)
