"""A tagger: one label for each word of a sentence, from the word and its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from regard.errors import ArgumentError
from regard.models.config_checks import check_at_least_1, check_fractions, check_lengths
from regard.models.text_encoder import TextModel
from regard.models.word_vectors import WordBatch, WordVectors
from regard.nn import Dropout

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.functional import Observation, Observe

__all__ = ["Tagger", "TaggerConfig", "WordBatch"]


@dataclass(frozen=True)
class TaggerConfig:
    """Sizes and options of a `Tagger`.

    ``hidden_dim`` is the size of a word's state: of both directions of the recurrence together, or of the transformer,
    which alone has ``heads``. ``word_dropout`` is the probability that training replaces a word by UNK.

    >>> TaggerConfig(word_size=11, character_size=13, label_size=5, encoder="transformer").attends
    True
    """

    kind: ClassVar = "tagger"

    word_size: int
    character_size: int
    label_size: int
    encoder: Literal["recurrent", "transformer"] = "recurrent"
    embed_dim: int = 128
    character_dim: int = 128
    hidden_dim: int = 400
    layers: int = 2
    heads: int = 4
    dropout: float = 0.45
    word_dropout: float = 0.2

    def __post_init__(self) -> None:
        check_at_least_1(self, "word_size", "character_size", "label_size", "embed_dim", "layers", "heads")
        for name in ("character_dim", "hidden_dim"):
            if getattr(self, name) < 2 or getattr(self, name) % 2:
                raise ArgumentError(
                    f"{name}: expected an even number, half for each direction, got {getattr(self, name)}"
                )
        check_fractions(self, "dropout", "word_dropout")
        if self.encoder not in ("recurrent", "transformer"):
            raise ArgumentError(f"encoder: expected 'recurrent' or 'transformer', got {self.encoder!r}")
        if self.attends and self.hidden_dim % self.heads:
            raise ArgumentError(f"heads: expected a divisor of hidden_dim ({self.hidden_dim}), got {self.heads}")

    @property
    def attends(self) -> bool:
        """Return True if the model has attention weights."""
        return self.encoder == "transformer"

    def build(self) -> Tagger:
        """Return a new model."""
        return Tagger(self)


class Tagger(TextModel):
    """A tagger: it encodes each word of a sentence in its context, and labels it.

    x_t = [E[w_t]; f(characters of w_t)],  h = Encoder(x),  p_t = softmax(W h_t + b); the encoder is a bidirectional
    LSTM, or a pre-norm transformer over norm(W_x x + b_x) with sinusoids added. Neither the other sentences of a batch
    nor padding have any influence.

    Shapes: a `WordBatch` (B, T), logits (B, T, labels). With ``observe``, which needs the transformer, they come with a
    tuple of one observation for each layer; weights are (B, heads, T, T).
    Errors: `ArgumentError` for lengths that do not fit, and for ``observe`` without attention.
    Source: Plank, Søgaard, Goldberg 2016, "Multilingual Part-of-Speech Tagging with Bidirectional Long Short-Term
    Memory Models and Auxiliary Loss", arXiv 1604.05529, section 2; Vaswani et al. 2017, section 3.1 (transformer).

    >>> import torch
    >>> model = Tagger(TaggerConfig(11, 13, 5, embed_dim=4, character_dim=4, hidden_dim=6))
    >>> words, lengths = torch.tensor([[4, 5, 6], [4, 8, 0]]), torch.tensor([3, 2])
    >>> forms, spellings = torch.tensor([[0, 1, 2], [0, 3, 0]]), torch.tensor([[4, 5], [6, 0], [7, 8], [8, 0]])
    >>> model(WordBatch(words, lengths, forms, spellings, torch.tensor([2, 1, 2, 1]))).shape
    torch.Size([2, 3, 5])
    """

    config_class = TaggerConfig

    def __init__(self, config: TaggerConfig) -> None:
        """Make a new model of these sizes and options."""
        super().__init__()
        self.config = config
        self.vectors = WordVectors(
            config.word_size, config.embed_dim, config.character_size, config.character_dim, config.word_dropout
        )
        dim, hidden = config.embed_dim + config.character_dim, config.hidden_dim
        self.dropout = Dropout(config.dropout)
        self._make_encoder(
            config.encoder, nn.LSTM, dim, hidden, layers=config.layers, heads=config.heads, dropout=config.dropout
        )
        self.output = nn.Linear(hidden, config.label_size)

    def forward(
        self, batch: WordBatch, observe: Observe | None = None
    ) -> Float[Tensor, "B T labels"] | tuple[Float[Tensor, "B T labels"], tuple[Observation, ...]]:
        """Return the logits (B, T, labels) of each word's label, with ``observe`` also the statistics of each layer."""
        check_lengths(batch.words, batch.lengths)
        if observe is not None and not self.config.attends:
            raise ArgumentError("observe: expected an encoder with attention, got a recurrent one; leave observe out")
        hidden, observations = self._encode(self.dropout(self.vectors(batch)), batch.lengths, observe)
        logits: Tensor = self.output(self.dropout(hidden))
        return logits if observations is None else (logits, observations)
