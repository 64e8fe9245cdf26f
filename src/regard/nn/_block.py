"""Transformer blocks: attention and feed-forward layers with residual connections and layer normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.nn._dropout import Dropout
from regard.nn._kv_cache import KeyValueCache
from regard.nn._multi_head import MultiHeadAttention
from regard.nn._parts import as_pair, check_dropout, described, glorot_

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional import Impl, Mask, Observation, Observe
    from regard.nn._parts import ScoreName
    from regard.positions import Relative

__all__ = ["BlockConfig", "BlockObservation", "DecoderBlock", "EncoderBlock"]

# ReLU in place on the output of `linear1`: allocating as much memory again can cost more than ReLU itself.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": nn.functional.relu_, "gelu": nn.functional.gelu}


@dataclass(frozen=True)
class BlockConfig:
    """A config of `EncoderBlock` and `DecoderBlock`.

    - ``dim``, ``heads``, ``kv_heads``, ``score``, ``bias``, ``impl``: as in `MultiHeadAttention`; ``bias=False``
      applies to the feed-forward layers and norms too.
    - ``feedforward``: the size between the two feed-forward layers, by default 4 ``dim``.
    - ``activation``: "relu" (Vaswani et al. 2017), or "gelu" with the exact Φ (Hendrycks and Gimpel 2016).
    - ``dropout``: applied to the output of each sublayer before it is added (Vaswani et al. 2017, section 5.4) and, as
      in torch's layers, to the weights of attention and after the activation, but not to embeddings.
    - ``norm_first``: norms stand before each sublayer and at the end of a stack (pre-norm; Xiong et al. 2020, arXiv
      2002.04745), not after each sublayer (post-norm, as in the paper). ``norm_eps`` is added to the variance.
    - ``positions``: a function that makes the encoding within the self-attention of a block, called once per block:
      ``lambda: Rotary(64)`` makes one for each block, ``lambda: shared`` shares one among all, as in T5.

    Errors: `ArgumentError` for an option out of range.

    >>> from regard.positions import Rotary
    >>> block = EncoderBlock(BlockConfig(8, heads=2, feedforward=5, positions=lambda: Rotary(4)))
    >>> block.linear1
    Linear(in_features=8, out_features=5, bias=True)
    """

    dim: int
    heads: int
    feedforward: int | None = None
    kv_heads: int | None = None
    score: ScoreName | Sequence[ScoreName] = "scaled_dot"
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = 0.1
    norm_first: bool = False
    norm_eps: float = 1e-5
    bias: bool = True
    positions: Callable[[], Relative] | None = None
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        if self.feedforward is not None and self.feedforward < 1:
            raise ArgumentError(f"feedforward must be at least 1, got {self.feedforward}")
        if self.activation not in _ACTIVATIONS:
            names = " or ".join(map(repr, _ACTIVATIONS))
            raise ArgumentError(f"activation must be {names}, got {self.activation!r}")
        if isinstance(self.positions, nn.Module):
            name = type(self.positions).__name__
            raise ArgumentError(
                f"positions must make an encoding for a block, got {name} itself: use lambda: {name}(...)"
            )

    def attention(self, *, causal: bool, positions: Relative | None, memory_dim: int | None) -> MultiHeadAttention:
        """Return an attention layer for a block."""
        return MultiHeadAttention(
            self.dim,
            self.heads,
            kv_heads=self.kv_heads,
            kdim=memory_dim,
            score=self.score,
            dropout=self.dropout,
            bias=self.bias,
            causal=causal,
            positions=positions,
            impl=self.impl,
        )

    def norm(self) -> nn.LayerNorm:
        """Return a norm for a block or a stack."""
        return nn.LayerNorm(self.dim, eps=self.norm_eps, bias=self.bias)


class BlockObservation(NamedTuple):
    """The statistics of a decoder block's two attentions, each None unless it was requested.

    >>> import torch
    >>> from regard import Observe
    >>> block, x = DecoderBlock(BlockConfig(8, 2)), torch.randn(2, 3, 8)
    >>> output, statistics = block(x, torch.randn(2, 5, 8), observe=Observe(entropy=True))
    >>> statistics.cross_attention.entropy.shape, statistics.self_attention
    (torch.Size([2, 2, 3]), None)
    """

    cross_attention: Observation | None
    self_attention: Observation | None


class _Block(nn.Module):
    """The base of both blocks: self-attention, feed-forward layers, and residual connections with norms."""

    def __init__(self, config: BlockConfig, *, causal: bool) -> None:
        super().__init__()
        hidden = 4 * config.dim if config.feedforward is None else config.feedforward
        positions = None if config.positions is None else config.positions()
        self.self_attn = config.attention(causal=causal, positions=positions, memory_dim=None)
        self.linear1 = nn.Linear(config.dim, hidden, bias=config.bias)
        self.linear2 = nn.Linear(hidden, config.dim, bias=config.bias)
        self.norm1 = config.norm()
        self.norm2 = config.norm()
        self.activation = config.activation
        self.dropout = Dropout(config.dropout)
        self.norm_first = config.norm_first
        glorot_(self.linear1)
        glorot_(self.linear2)

    def reset_parameters(self) -> None:
        """Draw all parameters again: matrices Glorot-uniform, biases zero, norms one."""
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                glorot_(layer)
            elif isinstance(layer, nn.LayerNorm | MultiHeadAttention):
                layer.reset_parameters()

    def extra_repr(self) -> str:
        return described(self, activation="relu", norm_first=False)

    def _pre_norm(self, x: Float[Tensor, "*B T dim"], norm: nn.LayerNorm) -> Float[Tensor, "*B T dim"]:
        return norm(x) if self.norm_first else x

    def _residual(
        self, x: Float[Tensor, "*B T dim"], output: Float[Tensor, "*B T dim"], norm: nn.LayerNorm
    ) -> Float[Tensor, "*B T dim"]:
        output = x + self.dropout(output)
        return output if self.norm_first else norm(output)

    def _feed_forward(self, x: Float[Tensor, "*B T dim"], norm: nn.LayerNorm) -> Float[Tensor, "*B T dim"]:
        hidden = _ACTIVATIONS[self.activation](self.linear1(self._pre_norm(x, norm)))
        return self._residual(x, self.linear2(self.dropout(hidden)), norm)


class EncoderBlock(_Block):
    """A block of an encoder: each token attends to the others, then passes through the feed-forward layers.

    Post-norm: x ← norm(x + attention(x)); x ← norm(x + W₂ f(W₁ x)). With ``norm_first``: x ← x + attention(norm(x));
    x ← x + W₂ f(W₁ norm(x)).

    | symbol        | here                                                                           |
    |---------------|--------------------------------------------------------------------------------|
    | attention     | ``self_attn``; not causal unless the mask is                                   |
    | W₁, f, W₂     | ``linear1``, the activation, ``linear2``                                       |
    | norm          | ``norm1`` of the attention, ``norm2`` of the feed-forward layers               |

    Matrices begin Glorot-uniform, biases zero.

    Shapes: x (B, T, dim) or (T, dim), output likewise. Masks, statistics and the ``cache``, a `KeyValueCache`, are
    those of `MultiHeadAttention`.
    Errors: `ArgumentError` for wrong sizes and masks.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.1.

    >>> import torch
    >>> block = EncoderBlock(BlockConfig(8, 2))
    >>> block(torch.randn(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, config: BlockConfig) -> None:
        """Make a block of these sizes and options."""
        super().__init__(config, causal=False)

    def forward(
        self,
        x: Float[Tensor, "*B T dim"],
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        cache: KeyValueCache | None = None,
        observe: Observe | None = None,
    ) -> Float[Tensor, "*B T dim"] | tuple[Float[Tensor, "*B T dim"], Observation]:
        """Return the output (B, T, dim) for x (B, T, dim), with ``observe`` also the statistics."""
        answer = self.self_attn(self._pre_norm(x, self.norm1), mask=mask, cache=cache, observe=observe)
        output, statistics = as_pair(answer)
        x = self._feed_forward(self._residual(x, output, self.norm1), self.norm2)
        return x if statistics is None else (x, statistics)


class DecoderBlock(_Block):
    """A block of a decoder: self-attention to earlier tokens, cross-attention to a memory, feed-forward layers.

    Post-norm: x ← norm(x + attention(x)); x ← norm(x + attention(x, memory)); x ← norm(x + W₂ f(W₁ x)); with
    ``norm_first`` norms stand before each sublayer, as in `EncoderBlock`.

    | symbol                       | here                                                                 |
    |------------------------------|----------------------------------------------------------------------|
    | attention(x)                 | ``self_attn``, always causal                                         |
    | attention(x, memory)         | ``cross_attn``                                                       |
    | W₁, f, W₂                    | ``linear1``, the activation, ``linear2``                             |
    | norm                         | ``norm1``, ``norm2``, ``norm3``, in the order of the sublayers       |

    Matrices begin Glorot-uniform, biases zero.

    Shapes: x (B, T, dim) and memory (B, Tk, memory_dim), or both without B; output as x; memory_dim defaults to
    dim. The memory may be ``block.cross_attn.project(memory)``, and x may hold K sequences for each memory side by
    side, (B * K, T, dim). ``mask`` and ``cache`` belong to self-attention, ``memory_mask`` to cross-attention.
    With ``observe`` (cross-attention) or ``observe_self`` the output comes with a `BlockObservation`: weights are
    (B, heads, K * T, Tk), and (B * K, heads, T, tokens so far).
    Errors: `ArgumentError` for wrong sizes and masks.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.1.

    >>> import torch
    >>> block = DecoderBlock(BlockConfig(8, 2), memory_dim=6)
    >>> block(torch.randn(2, 3, 8), torch.randn(2, 5, 6)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, config: BlockConfig, *, memory_dim: int | None = None) -> None:
        """Make a block of these sizes and options, for a memory of size ``memory_dim``."""
        super().__init__(config, causal=True)
        self.cross_attn = config.attention(causal=False, positions=None, memory_dim=memory_dim)
        self.norm3 = config.norm()

    def forward(
        self,
        x: Float[Tensor, "*B T dim"],
        memory: Float[Tensor, "*B Tk memory_dim"] | KeyValueCache,
        *,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        memory_mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
        cache: KeyValueCache | None = None,
        observe: Observe | None = None,
        observe_self: Observe | None = None,
    ) -> Float[Tensor, "*B T dim"] | tuple[Float[Tensor, "*B T dim"], BlockObservation]:
        """Return the output (B, T, dim) for x and memory (B, Tk, memory_dim), and statistics if requested."""
        answer = self.self_attn(self._pre_norm(x, self.norm1), mask=mask, cache=cache, observe=observe_self)
        output, of_self = as_pair(answer)
        x = self._residual(x, output, self.norm1)
        output, of_cross = as_pair(self._cross(self._pre_norm(x, self.norm2), memory, memory_mask, observe))
        x = self._feed_forward(self._residual(x, output.view_as(x), self.norm2), self.norm3)
        return x if observe is None and observe_self is None else (x, BlockObservation(of_cross, of_self))

    def _cross(
        self,
        x: Float[Tensor, "*B T dim"],
        memory: Float[Tensor, "*B Tk memory_dim"] | KeyValueCache,
        mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None,
        observe: Observe | None,
    ) -> Any:
        if not isinstance(memory, Tensor | KeyValueCache):
            raise ArgumentError(
                f"memory must be a tensor, or a state or cache made of one, got {type(memory).__name__}"
            )
        keys, rank = (memory, 3) if isinstance(memory, Tensor) else (memory.key, 4)
        # Sequences that share a memory become its queries side by side: cross-attention is the same for both forms.
        if keys is not None and x.dim() == 3 and keys.dim() == rank and keys.shape[0] != x.shape[0]:
            if x.shape[0] % max(keys.shape[0], 1):
                raise ArgumentError(
                    f"x must have as many sequences as the memory, {keys.shape[0]}, or a multiple; got {x.shape[0]}"
                )
            x = x.reshape(keys.shape[0], -1, x.shape[-1])
        if isinstance(memory, Tensor):
            return self.cross_attn(x, memory, mask=mask, observe=observe)
        return self.cross_attn(x, cache=memory, mask=mask, observe=observe)
