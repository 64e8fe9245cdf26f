"""A recurrent encoder-decoder, with attention by any score or without attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import nn

from regard._symbols import PAD
from regard.errors import ArgumentError
from regard.functional import padding
from regard.functional.scores import BY_NAME as SCORES
from regard.functional.scores import ScoreName
from regard.models.config_checks import check_at_least_1, check_fractions, check_lengths
from regard.models.pretrained import Pretrained
from regard.nn import BahdanauAttention, Dropout, LuongAttention
from regard.nn._parts import as_pair
from regard.nn._recurrent import (
    GRUCell,
    LSTMCell,
    fusible,
    run_bidirectional,
    run_fused,
    run_fused_with_attention,
    unroll,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from regard.functional import Mask, Observation, Observe

__all__ = ["Memory", "RecurrentConfig", "RecurrentSeq2Seq"]

State = tuple["Tensor", ...]  # (B, K, H) each: hidden, and the LSTM's cell


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes and options of a `RecurrentSeq2Seq`.

    ``score=None`` is the encoder-decoder without attention: the context of every step is the encoder's last state.
    With ``input_feeding`` the context of a step enters the recurrence (Bahdanau et al. 2014); without it the states
    depend on the target only, and one call computes the contexts of all steps (Luong et al. 2015, section 3).

    >>> RecurrentConfig(source_size=11, target_size=13, score=None).attends
    False
    """

    kind: ClassVar = "recurrent"

    source_size: int
    target_size: int
    embed_dim: int = 128
    hidden_dim: int = 256
    encoder_layers: int = 1
    cell: Literal["gru", "lstm"] = "gru"
    score: ScoreName | None = "additive"
    input_feeding: bool = True
    dropout: float = 0.3

    def __post_init__(self) -> None:
        if self.hidden_dim < 2 or self.hidden_dim % 2:
            raise ArgumentError(f"hidden_dim: expected an even number, half for each direction, got {self.hidden_dim}")
        check_at_least_1(self, "source_size", "target_size", "embed_dim", "encoder_layers")
        check_fractions(self, "dropout")
        if self.cell not in ("gru", "lstm"):
            raise ArgumentError(f"cell: expected 'gru' or 'lstm', got {self.cell!r}")
        if self.score not in (None, *SCORES):
            raise ArgumentError(f"score: expected one of {', '.join(map(repr, SCORES))} or None, got {self.score!r}")

    @classmethod
    def for_data(cls, source_size: int, target_size: int, longest: int, **chosen: Any) -> Self:
        """Return a config for vocabularies of these sizes; ``chosen`` are other fields, by name.

        ``longest``, the longest text in tokens, makes no difference to a recurrence.
        """
        return cls(source_size, target_size, **chosen)

    @property
    def attends(self) -> bool:
        """Return True if the model has attention weights."""
        return self.score is not None

    def build(self) -> RecurrentSeq2Seq:
        """Return a new model."""
        return RecurrentSeq2Seq(self)


class Memory(NamedTuple):
    """The encoded sources of a batch, to which the decoder attends."""

    states: Float[Tensor, "B Tk H"]
    keys: Float[Tensor, "B Tk H"] | None
    mask: Mask
    last: Float[Tensor, "B 1 H"]


class RecurrentSeq2Seq(Pretrained):
    """A recurrent encoder-decoder: a bidirectional encoder, and a decoder that attends to its states.

    Step t of the decoder:  c_t = Σ_i α(s_{t−1}, h_i) h_i,  s_t = RNN([y_{t−1}; c_t], s_{t−1}),
    p_t = softmax(W_o tanh(W_r [s_t; c_t; y_{t−1}])),  s_0 = tanh(W_s h_T),  h_T the last states of both directions.

    The loop over the steps leaves out everything that does not depend on the previous step: projected keys, the
    embeddings' part of the gates, the readout and the output layer. Neither the other rows of a batch nor padding have
    any influence.

    Source: Bahdanau, Cho, Bengio 2014, arXiv 1409.0473, section 3 and appendix A; without ``input_feeding``, where
    s_t is the query, Luong, Pham, Manning 2015, arXiv 1508.04025, section 3.1.

    >>> model = RecurrentSeq2Seq(RecurrentConfig(source_size=11, target_size=13, embed_dim=4, hidden_dim=6))
    >>> source, lengths = torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([3, 2])
    >>> model(source, lengths, torch.tensor([[2, 4, 5, 6], [2, 4, 0, 0]])).shape
    torch.Size([2, 4, 13])
    """

    config_class = RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        """Make a new model of these sizes and options."""
        super().__init__()
        self.config = config
        embed, hidden = config.embed_dim, config.hidden_dim
        self.source_embedding = nn.Embedding(config.source_size, embed, padding_idx=PAD)
        self.target_embedding = nn.Embedding(config.target_size, embed, padding_idx=PAD)
        self.encoder = (nn.GRU if config.cell == "gru" else nn.LSTM)(
            embed,
            hidden // 2,
            config.encoder_layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.encoder_layers > 1 else 0.0,
        )
        self.attention: BahdanauAttention | LuongAttention | None = None
        if config.score == "additive":
            self.attention = BahdanauAttention(hidden, hidden, hidden)
        elif config.score is not None:
            self.attention = LuongAttention(hidden, hidden, score=config.score)
        cell = GRUCell if config.cell == "gru" else LSTMCell
        self.cell = cell(embed, hidden if config.input_feeding else None, hidden)
        self.initial = nn.Linear(hidden, self.cell.parts * hidden)
        self.readout = nn.Linear(hidden + hidden + embed, hidden)
        self.output = nn.Linear(hidden, config.target_size)
        self.dropout = Dropout(config.dropout)

    def encode(self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]) -> Memory:
        """Encode the sources, ``lengths`` tokens each; the rest is padding.

        Torch cannot export packed sequences, and would unroll plain ones: `regard.models.onnx_graphs` computes the
        recurrence as one operator, and continues with `remember`.
        """
        check_lengths(source, lengths)
        embedded = self.dropout(self.source_embedding(source))
        return self.remember(*run_bidirectional(self.encoder, embedded, lengths), lengths)

    def remember(
        self, states: Float[Tensor, "B Tk H"], last: Float[Tensor, "L2 B half"], lengths: Int[Tensor, " B"]
    ) -> Memory:
        """Return the memory of the encoder's states, zero after the lengths, and the last states of all directions."""
        states = self.dropout(states)
        keys = None if self.attention is None else self.attention.project(states)
        return Memory(states, keys, padding(lengths=lengths), torch.cat((last[-2], last[-1]), -1)[:, None])

    def start(self, memory: Memory) -> State:
        """Return the decoder's state before the first step, of one hypothesis for each source: (B, 1, H)."""
        return torch.tanh(self.initial(memory.last)).chunk(self.cell.parts, -1)

    def forward(
        self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"], target: Int[Tensor, "B Tq"]
    ) -> Float[Tensor, "B Tq V"]:
        """Return the logits of each next token, given the true ones before it (teacher forcing).

        Shapes: source (B, Tk) of ``lengths`` (B,) tokens, target (B, Tq), which begins with BOS; logits (B, Tq, V).
        """
        memory = self.encode(source, lengths)
        embedded = self.dropout(self.target_embedding(target))
        hidden, context = self._run(embedded, memory, fused=self._fuses(embedded))
        return self._read_out(hidden, self._attend(hidden, memory)[0] if context is None else context, embedded)

    def _fuses(self, embedded: Float[Tensor, "B T E"]) -> bool:
        """Return whether to run the recurrence as one operation; a chosen ``impl`` of the attention may rule it out."""
        return fusible(embedded) and (self.attention is None or self.attention.impl in ("auto", "cpu"))

    def _run(
        self, embedded: Float[Tensor, "B T E"], memory: Memory, *, fused: bool
    ) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B T H"] | None]:
        """Return the hidden states of all steps, and the contexts if they enter the gates."""
        state, attention = self.start(memory), self.attention
        if not self.config.input_feeding:
            return run_fused(self.cell, embedded, state) if fused else unroll(self.cell, embedded, state)[0], None
        if fused and isinstance(attention, BahdanauAttention) and memory.keys is not None:
            attended = attention, memory.keys, memory.states, memory.mask
            return run_fused_with_attention(self.cell, embedded, state, *attended)
        return unroll(self.cell, embedded, state, lambda query: self._attend(query, memory)[0])

    def step(
        self, tokens: Int[Tensor, "B K"], state: State, memory: Memory, observe: Observe | None = None
    ) -> tuple[Float[Tensor, "B K V"], State, Observation | None]:
        """Decode one token of K hypotheses of each source; return logits (B, K, V), the next state, and statistics."""
        embedded = self.target_embedding(tokens)
        gates = self.cell.from_input(embedded)
        if self.config.input_feeding:
            context, statistics = self._attend(state[0], memory, observe)
            state = self.cell(gates + self.cell.from_context(context), state)
        else:
            state = self.cell(gates, state)
            context, statistics = self._attend(state[0], memory, observe)
        return self._read_out(state[0], context, embedded), state, statistics

    def select(self, state: State, parents: Int[Tensor, "B K"]) -> State:
        """Return the state of K hypotheses of each source that continue those at ``parents``."""
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        return tuple(part[rows, parents] for part in state)

    def _attend(
        self, query: Float[Tensor, "B K H"], memory: Memory, observe: Observe | None = None
    ) -> tuple[Float[Tensor, "B K H"], Observation | None]:
        if self.attention is None or memory.keys is None:
            return memory.last.expand(-1, query.shape[1], -1), None
        return as_pair(self.attention(query, memory.keys, memory.states, mask=memory.mask, observe=observe))

    def _read_out(
        self, hidden: Float[Tensor, "B T H"], context: Float[Tensor, "B T H"], embedded: Float[Tensor, "B T E"]
    ) -> Float[Tensor, "B T V"]:
        readout = torch.tanh(self.readout(torch.cat((self.dropout(hidden), context, embedded), -1)))
        logits: Tensor = self.output(self.dropout(readout))
        return logits
