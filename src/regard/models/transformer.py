"""A transformer encoder-decoder, with any of the position encodings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import nn

from regard._symbols import PAD
from regard.errors import ArgumentError
from regard.functional import Observation, padding
from regard.models.config_checks import check_at_least_1, check_fractions, check_lengths
from regard.models.pretrained import Pretrained
from regard.nn import BlockConfig, Dropout, TransformerDecoder, TransformerEncoder
from regard.nn._parts import as_pair, normal_embedding_
from regard.positions import BY_NAME, Learned, Relative, Sinusoidal

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from regard.functional import Mask, Observe
    from regard.nn import DecoderState

__all__ = ["TransformerConfig", "TransformerMemory", "TransformerSeq2Seq"]


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and options of a `TransformerSeq2Seq`; the defaults suit short texts and minutes of training on a CPU.

    ``positions`` are added to the embeddings ("sinusoidal", "learned"), rotate queries and keys ("rotary"), or act on
    the scores of self-attention ("alibi", "t5" with one table for all layers of a side, "shaw" with values). ALiBi is
    the same in both directions, so that with ALiBi alone a source and its reverse would have the same target: its
    embeddings have sinusoids too. Only "learned" has a maximum length, ``max_length``. ``norm_first`` normalises
    before each sublayer of a block (Xiong et al. 2020, arXiv 2002.04745), otherwise after it (Vaswani et al. 2017).
    ``shared_embeddings``, for sides with one vocabulary, uses one table for the source and the target.

    Source: Wu, Cotterell, Hulden 2021, "Applying the Transformer to Character-level Transduction", arXiv 2005.10213,
    who take dim 256, feedforward 1024, 4 layers a side and dropout 0.3, and train for longer.

    >>> TransformerConfig(source_size=11, target_size=13).encoder_layers
    3
    """

    kind: ClassVar = "transformer"
    attends: ClassVar = True

    source_size: int
    target_size: int
    dim: int = 128
    heads: int = 4
    feedforward: int = 256
    encoder_layers: int = 3
    decoder_layers: int = 3
    dropout: float = 0.1
    norm_first: bool = True
    positions: str = "sinusoidal"
    max_length: int = 1024
    shared_embeddings: bool = False

    def __post_init__(self) -> None:
        check_at_least_1(self, "source_size", "target_size", "dim", "heads", "feedforward")
        check_at_least_1(self, "encoder_layers", "decoder_layers", "max_length")
        if self.dim % self.heads:
            raise ArgumentError(f"heads: expected a divisor of dim ({self.dim}), got {self.heads}")
        if self.positions == "rotary" and self.dim // self.heads % 2:
            raise ArgumentError(
                f"heads: expected an even dim / heads for rotary positions, which rotate pairs, got {self.heads}"
            )
        check_fractions(self, "dropout")
        if self.positions not in BY_NAME:
            raise ArgumentError(f"positions: expected one of {', '.join(map(repr, BY_NAME))}, got {self.positions!r}")
        if self.shared_embeddings and self.source_size != self.target_size:
            raise ArgumentError(
                f"shared_embeddings: expected one vocabulary for both sides, got sizes {self.source_size} and "
                f"{self.target_size}"
            )

    @classmethod
    def for_data(cls, source_size: int, target_size: int, longest: int, **chosen: Any) -> Self:
        """Return a config for vocabularies of these sizes; ``chosen`` are other fields, by name.

        ``longest``, the longest text in tokens with BOS or EOS, becomes ``max_length``.
        """
        return cls(source_size, target_size, max_length=longest, **chosen)

    def build(self) -> TransformerSeq2Seq:
        """Return a new model."""
        return TransformerSeq2Seq(self)


class TransformerMemory(NamedTuple):
    """The encoded sources of a batch, to which the decoder attends."""

    states: Float[Tensor, "B Tk D"]
    mask: Mask


class TransformerSeq2Seq(Pretrained):
    """A transformer encoder-decoder: each layer of the decoder attends to the encoder's output.

    h = Encoder(√D E_s[x] + P),  s_t = Decoder(√D E_t[y_0 … y_{t−1}] + P, h),  p_t = softmax(E_t s_t),

    with P the positions if these are added. The target's embeddings E_t are the weights of the output layer as well,
    which has no bias (Vaswani et al. 2017, section 3.4; Press & Wolf 2017): they begin as N(0, 1/D), which gives √D E
    unit variance. With shared embeddings E_s is E_t: one matrix with three uses. Dropout applies to the sums of
    embeddings and positions, and within the blocks. Neither the other rows of a batch nor padding, which is on the
    right, have any influence.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762, section 3.

    >>> config = TransformerConfig(11, 13, dim=8, heads=2, feedforward=16, encoder_layers=1, decoder_layers=1)
    >>> model = TransformerSeq2Seq(config)
    >>> source, lengths = torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([3, 2])
    >>> model(source, lengths, torch.tensor([[2, 4, 5, 6], [2, 4, 0, 0]])).shape
    torch.Size([2, 4, 13])
    """

    config_class = TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        """Make a new model of these sizes and options."""
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.source_size, config.dim, padding_idx=PAD)
        self.target_embedding = (
            self.source_embedding
            if config.shared_embeddings
            else nn.Embedding(config.target_size, config.dim, padding_idx=PAD)
        )
        self.source_positions = _added(config, ("sinusoidal", "alibi"))
        self.target_positions = _added(config, ("sinusoidal",))
        self.encoder = TransformerEncoder(_block(config, bidirectional=True), config.encoder_layers)
        self.decoder = TransformerDecoder(_block(config, bidirectional=False), config.decoder_layers)
        self.dropout = Dropout(config.dropout)
        self.reset_embeddings()

    def reset_embeddings(self) -> None:
        """Draw the embeddings again; those of padding are zero."""
        for embedding in dict.fromkeys((self.source_embedding, self.target_embedding)):  # one if they are shared
            normal_embedding_(embedding, self.config.dim**-0.5)

    def encode(self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]) -> TransformerMemory:
        """Encode the sources, ``lengths`` tokens each; the rest is padding."""
        check_lengths(source, lengths)
        mask = padding(lengths=lengths)
        embedded = self._embed(self.source_embedding, self.source_positions, source)
        return TransformerMemory(self.encoder(embedded, mask=mask), mask)

    def start(self, memory: TransformerMemory) -> DecoderState:
        """Return the decoder's state before the first step, with the memory's keys and values for all layers."""
        return self.decoder.start(memory.states, mask=memory.mask)

    def forward(
        self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"], target: Int[Tensor, "B Tq"]
    ) -> Float[Tensor, "B Tq V"]:
        """Return the logits of each next token, given the true ones before it (teacher forcing).

        Shapes: source (B, Tk) of ``lengths`` (B,) tokens, target (B, Tq), which begins with BOS; logits (B, Tq, V).
        """
        memory = self.encode(source, lengths)
        embedded = self._embed(self.target_embedding, self.target_positions, target)
        return self._logits(self.decoder(embedded, memory.states, memory_mask=memory.mask))

    def step(
        self,
        tokens: Int[Tensor, "B K"],
        state: DecoderState,
        memory: TransformerMemory,
        observe: Observe | None = None,
    ) -> tuple[Float[Tensor, "B K V"], DecoderState, Observation | None]:
        """Decode one token of K hypotheses of each source; return the logits (B, K, V), the next state, and statistics.

        The state is the given one, which has grown by a token. The statistics are of the attention to the source, with
        the layers on an axis before the heads: weights (B, layers, heads, K, Tk).
        """
        rows = tokens.flatten()[:, None]
        embedded = self._embed(self.target_embedding, self.target_positions, rows, state.length)
        output, statistics = as_pair(self.decoder(embedded, state, observe=observe))
        logits = self._logits(output).view(*tokens.shape, -1)
        layers = None
        if statistics is not None:
            layers = Observation.combine(statistics.cross_attention, lambda _, tensors: torch.stack(tensors, 1))
        return logits, state, layers

    def select(self, state: DecoderState, parents: Int[Tensor, "B K"]) -> DecoderState:
        """Return the state of K hypotheses of each source that continue those at ``parents``."""
        return state.select(parents)

    def _embed(
        self, embedding: nn.Embedding, positions: Sinusoidal | Learned | None, ids: Int[Tensor, "N T"], offset: int = 0
    ) -> Float[Tensor, "N T D"]:
        embedded = embedding(ids) * math.sqrt(self.config.dim)
        if positions is not None:
            embedded = positions(embedded, offset=offset)
        dropped: Tensor = self.dropout(embedded)
        return dropped

    def _logits(self, output: Float[Tensor, "N T D"]) -> Float[Tensor, "N T V"]:
        return nn.functional.linear(output, self.target_embedding.weight)


def _added(config: TransformerConfig, sinusoidal: tuple[str, ...]) -> Sinusoidal | Learned | None:
    """Return the encoding to add to a side's embeddings, if there is one; ``sinusoidal`` names those with sinusoids."""
    if config.positions in sinusoidal:
        return Sinusoidal(config.dim)
    return Learned(config.max_length, config.dim) if config.positions == "learned" else None


def _block(config: TransformerConfig, *, bidirectional: bool) -> BlockConfig:
    return BlockConfig(
        config.dim,
        config.heads,
        config.feedforward,
        dropout=config.dropout,
        norm_first=config.norm_first,
        positions=_relative(config, bidirectional=bidirectional),
    )


def _relative(config: TransformerConfig, *, bidirectional: bool) -> Callable[[], Relative] | None:
    """Return a function that makes the encoding within self-attention of a layer, or None without one."""
    encoding = BY_NAME[config.positions]
    if not issubclass(encoding, Relative):
        return None
    make = partial(encoding.for_layer, config.heads, config.dim // config.heads, bidirectional=bidirectional)
    if not encoding.is_shared:
        return make
    shared = make()
    return lambda: shared
