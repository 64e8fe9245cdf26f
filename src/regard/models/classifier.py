"""A classifier: one label for a text, by attention to its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from torch import nn

from regard._symbols import BOS, PAD
from regard.errors import ArgumentError
from regard.functional import padding
from regard.models.config_checks import check_at_least_1, check_fractions, check_lengths
from regard.models.text_encoder import TextModel
from regard.models.word_vectors import drop_words
from regard.nn import AttentionPooling, Dropout
from regard.nn._parts import as_pair, normal_embedding_

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

    from regard.functional import Observation, Observe

__all__ = ["Classifier", "ClassifierConfig", "TextBatch"]

_LEFT, _RIGHT = 1_000_003, 7_919  # primes that spread pairs of ids over a table


@dataclass(frozen=True)
class ClassifierConfig:
    """Sizes and options of a `Classifier`.

    ``encoder`` adds context beyond a word's neighbour: "none", a bidirectional GRU ("recurrent"), or a "transformer",
    with states of ``hidden_dim`` in ``layers``. ``gram_size`` and ``pair_size`` are the rows of the tables that
    character n-grams and pairs of words are hashed into. ``word_dropout`` is the probability that training replaces a
    word by UNK.

    >>> ClassifierConfig(word_size=11, label_size=3, encoder="recurrent").state_dim
    128
    """

    kind: ClassVar = "classifier"
    attends: ClassVar = True

    word_size: int
    label_size: int
    encoder: Literal["none", "recurrent", "transformer"] = "none"
    embed_dim: int = 64
    hidden_dim: int = 128
    layers: int = 1
    heads: int = 4
    dropout: float = 0.5
    word_dropout: float = 0.1
    gram_size: int = 10_007
    pair_size: int = 30_011

    def __post_init__(self) -> None:
        check_at_least_1(self, "word_size", "label_size", "embed_dim", "layers", "heads")
        for name in ("gram_size", "pair_size"):
            if getattr(self, name) < 2:
                raise ArgumentError(f"{name}: expected a number of at least 2, got {getattr(self, name)}")
        check_fractions(self, "dropout", "word_dropout")
        if self.encoder not in ("none", "recurrent", "transformer"):
            raise ArgumentError(f"encoder: expected 'none', 'recurrent' or 'transformer', got {self.encoder!r}")
        if self.encoder != "none" and (self.hidden_dim < 2 or self.hidden_dim % 2):
            raise ArgumentError(f"hidden_dim: expected an even number, half for each direction, got {self.hidden_dim}")
        if self.state_dim % self.heads:
            raise ArgumentError(f"heads: expected a divisor of the size of states ({self.state_dim}), got {self.heads}")

    @property
    def state_dim(self) -> int:
        """The size of a word's state, over which attention pools."""
        return self.embed_dim if self.encoder == "none" else self.hidden_dim

    def build(self) -> Classifier:
        """Return a new model."""
        return Classifier(self)


class TextBatch(NamedTuple):
    """A batch of B texts: the ids of their words, and the character n-grams of each distinct form among them.

    ``words`` is PAD after a text's end; ``forms[b, t]`` is the row of ``grams`` with the n-grams of word t of text b,
    any row after the end. A row of ``grams`` has zeros after its end.

    >>> import torch
    >>> words, forms = torch.tensor([[4, 5, 4], [5, 0, 0]]), torch.tensor([[0, 1, 0], [1, 0, 0]])
    >>> TextBatch(words, torch.tensor([3, 1]), forms, torch.tensor([[3, 6], [2, 0]])).grams[1].tolist()  # of word 5
    [2, 0]
    """

    words: Int64[Tensor, "B T"]
    lengths: Int64[Tensor, " B"]
    forms: Int64[Tensor, "B T"]
    grams: Int64[Tensor, "F G"]


class Classifier(TextModel):
    """A classifier: it labels a text by a mean of its words, with weights from attention pooling.

    x_t = E[w_t] + Σ_g N[g] / √G_t,  h_t = Encoder(x)_t + P[w_{t−1}, w_t],  c = Σ_t α_t h_t,  p = softmax(W c + b),

    with g the G_t character n-grams of word t, which represent unseen words too; P the pairs of neighbours; and α from
    `regard.nn.AttentionPooling` with several heads. N and P are tables that n-grams and pairs are hashed into. Dropout
    applies to x, both parts of h, and c. Neither the other texts of a batch nor padding have any influence.

    Shapes: a `TextBatch` (B, T), logits (B, labels). With ``observe`` they come with the statistics of the pooling;
    weights are (B, heads, 1, T).
    Errors: `ArgumentError` for lengths that do not fit.
    Source: Yang et al. 2016, "Hierarchical Attention Networks for Document Classification", section 2.2 (pooling);
    Bojanowski et al. 2017, arXiv 1607.04606 (n-grams of characters); Joulin et al. 2017, arXiv 1607.01759 (hashed
    pairs of words).

    >>> import torch
    >>> from regard import Observe
    >>> model = Classifier(ClassifierConfig(11, 3, embed_dim=8, gram_size=7, pair_size=13)).eval()
    >>> words, forms = torch.tensor([[4, 5, 6], [7, 1, 0]]), torch.tensor([[0, 1, 2], [2, 3, 0]])
    >>> batch = TextBatch(words, torch.tensor([3, 2]), forms, torch.tensor([[3, 4], [5, 0], [6, 2], [1, 0]]))
    >>> logits, statistics = model(batch, observe=Observe(weights=True))
    >>> logits.shape, statistics.weights.shape
    (torch.Size([2, 3]), torch.Size([2, 4, 1, 3]))
    """

    config_class = ClassifierConfig

    def __init__(self, config: ClassifierConfig) -> None:
        """Make a new model of these sizes and options."""
        super().__init__()
        self.config = config
        embed, hidden = config.embed_dim, config.state_dim
        self.embedding = nn.Embedding(config.word_size, embed, padding_idx=PAD)
        self.grams = nn.EmbeddingBag(config.gram_size, embed, mode="sum", padding_idx=PAD)
        self.pairs = nn.Embedding(config.pair_size, hidden)
        self._make_encoder(
            config.encoder, nn.GRU, embed, hidden, layers=config.layers, heads=config.heads, dropout=config.dropout
        )
        self.pooling = AttentionPooling(hidden, heads=config.heads)
        self.output = nn.Linear(hidden, config.label_size)
        self.dropout = Dropout(config.dropout)
        self.reset_embeddings()

    def reset_embeddings(self) -> None:
        """Draw the embeddings again, smaller for n-grams and pairs than for words; those of padding are zero."""
        for table, std in ((self.embedding, 0.1), (self.grams, 0.03), (self.pairs, 0.03)):
            normal_embedding_(table, std)

    def forward(
        self, batch: TextBatch, *, observe: Observe | None = None
    ) -> Float[Tensor, "B labels"] | tuple[Float[Tensor, "B labels"], Observation]:
        """Return the logits (B, labels), with ``observe`` also the statistics of the pooling."""
        check_lengths(batch.words, batch.lengths)
        embedded, pairs = self._embed(batch)
        states, _ = self._encode(embedded, batch.lengths)
        states = (states if self.encoder is None else self.dropout(states)) + pairs
        pooled, statistics = as_pair(self.pooling(states, mask=padding(lengths=batch.lengths), observe=observe))
        logits: Tensor = self.output(self.dropout(pooled))
        return logits if statistics is None else (logits, statistics)

    def _embed(self, batch: TextBatch) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T H"]]:
        """Embed the words, and the pairs of neighbours."""
        words = batch.words
        spelt = self.grams(batch.grams) / batch.grams.ne(PAD).sum(1, keepdim=True).clamp(min=1).sqrt()
        spelt = nn.functional.embedding(batch.forms, spelt)
        if self.training and self.config.word_dropout:
            words, dropped = drop_words(words, self.config.word_dropout)
            spelt = spelt.masked_fill(dropped.unsqueeze(-1), 0.0)
        before = nn.functional.pad(words, (1, 0), value=BOS)[:, :-1]
        pairs = (before * _LEFT + words * _RIGHT) % self.config.pair_size
        return self.dropout(self.embedding(words) + spelt), self.dropout(self.pairs(pairs))
