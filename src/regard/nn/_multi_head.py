"""Multi-head attention, in which every head may have a score of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function

from regard.errors import ArgumentError
from regard.functional import Mask, Observation, Observe, attention, window
from regard.functional.checks import check_bias
from regard.functional.reporting import is_heard
from regard.nn._kv_cache import KeyValueCache
from regard.nn._parts import HeadScore, as_mask, check_dropout, check_size, glorot_, with_causal
from regard.nn._torch_multi_head import take_torch_state
from regard.positions import Relative

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

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

    ``positions`` is an encoding that acts within attention, such as `Rotary`, `ALiBi`, `T5Bias` or `Shaw`. Places count
    the keys that the mask's padding keeps. The queries of self-attention stand at their keys; those of another sequence
    stand at the last Tq kept keys.

    With ``cache`` the keys and values of the query are appended to it, and the query attends to all that is in it; mask
    and bias are then about all keys so far. ``cache = layer.project(memory)`` projects a memory once, for any number of
    calls ``layer(query, cache=cache)``. See `KeyValueCache`.

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
        positions: Relative | None = None,
        impl: Impl = "auto",
    ) -> None:
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
        self.scores = _scores(score, num_heads, self.head_dim)
        self.positions: Relative | None = None
        order = torch.cat([group.heads for group in self._groups()]).argsort()
        self.register_buffer("_order", order, persistent=False)
        self.reset_parameters()
        self.positions = positions  # has drawn its parameters itself, and may be shared and trained

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
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
            check_bias(bias, shape)  # as positions may be added to it, and a cache is not to grow in vain
        places, grown = None, None
        if self.positions is not None:
            mask = as_mask(mask, q.dim())
            places = _places(mask, shape, q.device, own=grows or (cache is None and (key is None or key is query)))
            q = self.positions.rotate(q, places.query)
            k = self.positions.rotate(k, places.key[..., shape[-1] - k.shape[-2] :])
        if cache is not None and grows:
            mask = as_mask(mask, q.dim())
            _check_cached(mask, shape, q.device, cache.window)
            grown = cache.fork()
            k, v = grown.append(k, v)
            if cache.window is not None and isinstance(mask, Mask):
                mask, bias, places = _within(cache.window, mask, bias, places, shape[-1], k.shape[-2])
        answer = self._attend(q, k, v, mask, bias, observe, places)
        if cache is not None and grown is not None:
            cache.adopt(grown)  # only now, as a call that is refused leaves the cache as it was
        output = self._merge_heads(answer if isinstance(answer, Tensor) else answer[0])
        return output if isinstance(answer, Tensor) else (output, answer[1])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        take_torch_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def project(
        self, memory: Float[Tensor, "*B Tk kdim"], value: Float[Tensor, "*B Tk vdim"] | None = None
    ) -> KeyValueCache:
        """The keys and values of a memory, computed once: ``layer(query, cache=layer.project(memory))``.

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

    def _groups(self) -> list[_Group]:
        return [group for group in self.scores.values() if isinstance(group, _Group)]

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
        places: _Places | None,
    ) -> Answer:
        if self.positions is None or places is None:
            return self._attend_by_score(q, k, v, mask, bias, observe)
        added = self.positions.bias(q, *places)
        if added is not None:
            bias = added if bias is None else bias + added
        if not self.positions.needs_weights:
            return self._attend_by_score(q, k, v, mask, bias, observe)
        # The weights come out where a value is a row of the identity: by every kernel, after dropout, with gradients.
        rows = torch.eye(k.shape[-2], dtype=v.dtype, device=v.device).expand(*v.shape[:-1], k.shape[-2])
        answer = self._attend_by_score(q, k, torch.cat([v, rows], -1), mask, bias, observe)
        both = answer if isinstance(answer, Tensor) else answer[0]
        output = both[..., : self.head_dim] + self.positions.of_weights(both[..., self.head_dim :], *places)
        return output if isinstance(answer, Tensor) else (output, answer[1])

    def _attend_by_score(
        self,
        q: Float[Tensor, "*B H Tq d"],
        k: Float[Tensor, "*B Hkv Tk d"],
        v: Float[Tensor, "*B Hkv Tk Ev"],
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
            answer = attention_of_heads(
                heads,
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


def attention_of_heads(heads: Tensor, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Answer:
    """`attention` of some heads of a layer; whoever watches hears which ones (n,) these are."""
    if is_heard():
        answer: Answer = handle_torch_function(attention_of_heads, (q, k, v), heads, q, k, v, **options)
        return answer
    return attention(q, k, v, **options)  # type: ignore[no-any-return]


class _Group(HeadScore):
    """The heads that have one score: their numbers, and the score with its parameters."""

    heads: Tensor

    def __init__(self, name: ScoreName, dim: int, heads: Sequence[int]) -> None:
        super().__init__(name, dim, len(heads))
        self.register_buffer("heads", torch.tensor(heads), persistent=False)


class _Places(NamedTuple):
    """Where queries and keys stand: integers (Tq,) and (Tk,), or (B, Tq) and (B, Tk) with padding."""

    query: Int[Tensor, "*B Tq"]
    key: Int[Tensor, "*B Tk"]


def _places(
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, shape: Sequence[int], device: torch.device, *, own: bool
) -> _Places:
    """Places count the kept keys; queries stand at their ``own`` keys, the last ones, or else at the last kept keys."""
    queries, keys = shape[-2:]
    kept = None
    if isinstance(mask, Mask) and (mask.keeps or mask.lengths):
        if len(shape) != 4:
            raise ArgumentError("padding with positions needs a batch: expected (B, T, D), got (T, D)")
        mask.check(shape, device)
        kept = mask.kept_keys(shape, device)
    if kept is None:
        place = torch.arange(keys, device=device)
        return _Places(torch.arange(keys - queries, keys, device=device), place)
    counted = kept.flatten(1).cumsum(-1)
    place = (counted - 1).clamp(min=0)  # a key that is not kept stands where the kept one before it does
    last = torch.arange(-queries, 0, device=device) + kept.flatten(1).sum(-1, keepdim=True)
    return _Places(place[:, keys - queries :] if own else last, place)


def _check_cached(
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, shape: Sequence[int], device: torch.device, size: int | None
) -> None:
    """Refuse what does not fit scores of this shape, or a window of this size, before the cache takes anything in."""
    if isinstance(mask, Mask):
        mask.check(shape, device)
    is_causal = isinstance(mask, Mask) and any(band.before is None and band.after == 1 for band in mask.bands)
    if size is not None and not is_causal:
        raise ArgumentError(
            f"a cache with window={size} forgets, and needs a layer with causal=True or a mask of causal() & ..."
        )


def _within(
    size: int,
    mask: Mask,
    bias: Float[Tensor, "*biased Tq Tk"] | None,
    places: _Places | None,
    total: int,
    keys: int,
) -> tuple[Mask, Float[Tensor, "*biased Tq Tk"] | None, _Places | None]:
    """Mask, bias and places of the last ``keys`` keys of ``total``, which a window of this size leaves."""
    if bias is not None and bias.shape[-1] == total:
        bias = bias[..., total - keys :]
    if places is not None:
        places = places._replace(key=places.key[..., total - keys :])
    return mask.of_last_keys(keys, total) & window(size), bias, places


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
