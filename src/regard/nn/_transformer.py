"""Transformers: stacks of blocks, and the state of a decoder between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional import Mask
from regard.nn._block import BlockConfig, DecoderBlock, EncoderBlock
from regard.nn._kv_cache import KeyValueCache, check_rows
from regard.nn._parts import as_pair

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from regard.functional import Observation, Observe

__all__ = ["DecoderObservation", "DecoderState", "TransformerDecoder", "TransformerEncoder"]


class TransformerEncoder(nn.Module):
    """A stack of `EncoderBlock`; with pre-norm, a norm at its end.

    The input is embeddings with dropout and positions applied, unless positions act within attention. With
    ``mask=causal()`` it is the decoder of a language model, and ``caches``, a `KeyValueCache` for each block, allow
    reading a sequence in pieces.

    Shapes: x (B, T, dim) or (T, dim), output likewise. With ``observe`` the output comes with a tuple of statistics,
    one for each block, first to last; weights are (B, heads, T, T).
    Errors: `ArgumentError` for wrong sizes and masks.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.1.

    >>> from regard import Observe, padding
    >>> encoder = TransformerEncoder(BlockConfig(8, 2, norm_first=True), 3)
    >>> output, statistics = encoder(torch.randn(2, 5, 8), mask=padding(lengths=[5, 4]), observe=Observe(entropy=True))
    >>> output.shape, len(statistics), statistics[0].entropy.shape
    (torch.Size([2, 5, 8]), 3, torch.Size([2, 2, 5]))
    """

    def __init__(self, config: BlockConfig, num_layers: int) -> None:
        """Make ``num_layers`` blocks of this config."""
        super().__init__()
        _check_layers(num_layers)
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(num_layers))
        self.norm = config.norm() if config.norm_first else None

    def forward(
        self,
        x: Float[Tensor, "*B T dim"],
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        caches: Sequence[KeyValueCache] | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "*B T dim"] | tuple[Float[Tensor, "*B T dim"], tuple[Observation, ...]]:
        """Return the output (B, T, dim) for x (B, T, dim), with ``observe`` also the statistics of each block."""
        if caches is not None and len(caches) != len(self.layers):
            raise ArgumentError(f"caches must be {len(self.layers)}, one for each block; got {len(caches)}")
        blocks = []
        for k, layer in enumerate(self.layers):
            answer = layer(x, mask=mask, cache=None if caches is None else caches[k], observe=observe)
            x, statistics = as_pair(answer)
            blocks.append(statistics)
        x = x if self.norm is None else self.norm(x)
        return x if observe is None else (x, tuple(blocks))


class DecoderObservation(NamedTuple):
    """The statistics of each block's two attentions, first to last; an empty tuple unless they were requested.

    >>> from regard import Observe
    >>> decoder, x = TransformerDecoder(BlockConfig(8, 2), 3), torch.randn(2, 4, 8)
    >>> output, statistics = decoder(x, torch.randn(2, 5, 8), observe=Observe(entropy=True))
    >>> len(statistics.cross_attention), statistics.self_attention
    (3, ())
    """

    cross_attention: tuple[Observation, ...]
    self_attention: tuple[Observation, ...]


@dataclass(frozen=True, eq=False)
class DecoderState:
    """The state of a decoder between steps: the keys and values of the tokens so far, and those of the memory.

    ``own`` and ``cross`` have a `KeyValueCache` for each block; ``mask`` is the memory's. A step appends to ``own``.

    >>> decoder = TransformerDecoder(BlockConfig(8, 2), 3)
    >>> state = decoder.start(torch.randn(2, 5, 8))
    >>> output = decoder(torch.randn(2, 1, 8), state)
    >>> state.length, state.select(torch.tensor([[0, 0], [0, 0]])).own[0].key.shape
    (1, torch.Size([4, 2, 1, 4]))
    """

    own: tuple[KeyValueCache, ...]
    cross: tuple[KeyValueCache, ...]
    mask: Mask | None

    @property
    def length(self) -> int:
        """The number of tokens read, which is the position of the next one."""
        return self.own[0].length

    def select(self, parents: Int[Tensor, "B K"] | Int[Tensor, " B"]) -> DecoderState:
        """Return a new state of the selected sequences; this one does not change.

        ``parents`` (B, K): for each of the B memories K sequences, by the index of the one that each continues; the
        memory's keys are not copied. ``parents`` (B,): these memories, with all sequences of each.
        """
        key, memory = self.own[0].key, self.cross[0].key
        sources = 0 if memory is None else memory.shape[0]
        per_source = 1 if key is None else key.shape[0] // max(sources, 1)
        single = isinstance(parents, Tensor) and parents.dim() == 1
        check_rows(parents, "parents", (1, 2), sources if single else per_source)
        if single:
            rows = (parents[:, None] * per_source + torch.arange(per_source, device=parents.device)).flatten()
            cross = tuple(cache.select(parents) for cache in self.cross)
            mask = None if self.mask is None else self.mask.of_examples(parents)
            return DecoderState(tuple(cache.select(rows) for cache in self.own), cross, mask)
        if parents.shape[0] != sources:
            raise ArgumentError(f"parents must be (B, K) with B = {sources} memories, got {tuple(parents.shape)}")
        rows = (torch.arange(sources, device=parents.device)[:, None] * per_source + parents).flatten()
        return DecoderState(tuple(cache.select(rows) for cache in self.own), self.cross, self.mask)


class TransformerDecoder(nn.Module):
    """A stack of `DecoderBlock`; with pre-norm, a norm at its end.

    The input is embeddings with dropout and positions applied, unless positions act within attention. Self-attention
    is always causal.

    All at once, as in training: ``decoder(x, memory, memory_mask=padding(keep))``. Step by step: ``state =
    decoder.start(memory, mask=padding(keep))``, then ``decoder(x, state)`` for the next tokens, one or more, whose keys
    are appended to the state; both give the same. x may hold K sequences for each memory side by side, (B * K, T, dim):
    hypotheses, which share the keys of their memory.

    Shapes: x (B, T, dim), memory (B, Tk, memory_dim), or both without B; output as x; memory_dim defaults to dim.
    A ``mask`` covers x, with a state all tokens so far. With ``observe`` (cross-attention) or ``observe_self``
    the output comes with a `DecoderObservation`: weights are (B, heads, K * T, Tk), and (B * K, heads, T, all so far).
    Errors: `ArgumentError` for wrong sizes and masks.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.1.

    >>> decoder = TransformerDecoder(BlockConfig(8, 2, dropout=0.0), 3)
    >>> x, memory = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    >>> state = decoder.start(memory)
    >>> steps = [decoder(token, state) for token in x.split(1, 1)]
    >>> torch.allclose(torch.cat(steps, 1), decoder(x, memory), atol=1e-6), state.length
    (True, 4)
    """

    def __init__(self, config: BlockConfig, num_layers: int, *, memory_dim: int | None = None) -> None:
        """Make ``num_layers`` blocks of this config, for a memory of size ``memory_dim``."""
        super().__init__()
        _check_layers(num_layers)
        self.layers = nn.ModuleList(DecoderBlock(config, memory_dim=memory_dim) for _ in range(num_layers))
        self.norm = config.norm() if config.norm_first else None

    def start(self, memory: Float[Tensor, "*B Tk memory_dim"], *, mask: Mask | None = None) -> DecoderState:
        """Return the state before the first token, with the memory's keys and values for all blocks."""
        if mask is not None and not isinstance(mask, Mask):
            raise ArgumentError(f"mask must be a Mask such as padding(keep), got {type(mask).__name__}")
        layers = [layer for layer in self.layers if isinstance(layer, DecoderBlock)]
        cross = tuple(layer.cross_attn.project(memory) for layer in layers)
        return DecoderState(tuple(KeyValueCache() for _ in layers), cross, mask)

    def forward(
        self,
        x: Float[Tensor, "*B T dim"],
        memory: Float[Tensor, "*B Tk memory_dim"] | DecoderState,
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        memory_mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        observe: Observe | None = None,
        observe_self: Observe | None = None,
    ) -> Float[Tensor, "*B T dim"] | tuple[Float[Tensor, "*B T dim"], DecoderObservation]:
        """Return the output (B, T, dim) for x and a memory or state, and statistics if requested."""
        state = memory if isinstance(memory, DecoderState) else None
        if state is not None and memory_mask is not None:
            raise ArgumentError("the state has the memory's mask: give it to start(memory, mask=...)")
        blocks = []
        for k, layer in enumerate(self.layers):
            answer = layer(
                x,
                memory if state is None else state.cross[k],
                mask=mask,
                memory_mask=memory_mask if state is None else state.mask,
                cache=None if state is None else state.own[k],
                observe=observe,
                observe_self=observe_self,
            )
            x, statistics = as_pair(answer)
            blocks.append(statistics)
        x = x if self.norm is None else self.norm(x)
        if observe is None and observe_self is None:
            return x
        of_cross = tuple(block.cross_attention for block in blocks) if observe else ()
        of_self = tuple(block.self_attention for block in blocks) if observe_self else ()
        return x, DecoderObservation(of_cross, of_self)


def _check_layers(num_layers: int) -> None:
    if num_layers < 1:
        raise ArgumentError(f"num_layers must be at least 1, got {num_layers}")
