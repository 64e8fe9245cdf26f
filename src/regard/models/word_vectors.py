"""Word vectors: an embedding of each known word, and features of the characters of every word."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from regard._symbols import PAD, UNK
from regard.nn._parts import described, normal_embedding_

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64
    from torch import Tensor

__all__ = ["CharacterFeatures", "WordBatch", "WordVectors", "drop_words"]


class WordBatch(NamedTuple):
    """A batch of B sentences: the ids of their words, and the characters of each distinct form among them.

    ``words`` is PAD after a sentence's end; ``forms[b, t]`` is the row of ``characters`` with those of word t of
    sentence b, any row after the end.

    >>> words, forms = torch.tensor([[4, 1, 4], [1, 0, 0]]), torch.tensor([[0, 1, 0], [1, 0, 0]])
    >>> batch = WordBatch(words, torch.tensor([3, 1]), forms, torch.tensor([[5, 6], [7, 0]]), torch.tensor([2, 1]))
    >>> batch.characters[batch.forms[1, 0]].tolist()  # of the only word of the second sentence, which is unknown
    [7, 0]
    """

    words: Int64[Tensor, "B T"]
    lengths: Int64[Tensor, " B"]
    forms: Int64[Tensor, "B T"]
    characters: Int64[Tensor, "F C"]
    character_lengths: Int64[Tensor, " F"]


class CharacterFeatures(nn.Module):
    """A vector for each form, known or not: the last states of a bidirectional LSTM over its characters.

    f = [→h_C; ←h_1] of the embedded characters.

    Shapes: characters (F, C) and lengths (F,), output (F, dim).
    Source: Ling et al. 2015, "Finding Function in Form", arXiv 1508.02096, section 3; Plank et al. 2016, arXiv
    1604.05529, section 2.

    >>> CharacterFeatures(13, 8)(torch.tensor([[4, 5, 6], [7, 0, 0]]), torch.tensor([3, 1])).shape
    torch.Size([2, 8])
    """

    def __init__(self, size: int, dim: int) -> None:
        """Make features of size ``dim`` for ``size`` different characters."""
        super().__init__()
        self.embedding = _embedding(size, max(1, dim // 4))
        self.recurrence = nn.LSTM(self.embedding.embedding_dim, dim // 2, batch_first=True, bidirectional=True)

    def forward(self, characters: Int64[Tensor, "F C"], lengths: Int64[Tensor, " F"]) -> Float[Tensor, "F dim"]:
        """Return a vector (F, dim) for each form."""
        embedded = self.embedding(characters)
        # Packed: unlike sentences of a batch, forms differ in length, and padding would take more than half of the time
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (last, _) = self.recurrence(packed)
        return torch.cat((last[0], last[1]), -1)


class WordVectors(nn.Module):
    """A vector [E[word]; f(form)] for each word, with word dropout on the first half.

    In training a word is replaced by UNK with probability ``word_dropout``, so that the model is trained to use the
    characters, as is necessary for words that are not in the training data.

    Shapes: a `WordBatch`, output (B, T, embed_dim + character_dim).
    Source: Kiperwasser and Goldberg 2016, arXiv 1603.04351, section 4 (word dropout, there by frequency); Plank et
    al. 2016, arXiv 1604.05529 (both halves).
    """

    def __init__(
        self, word_size: int, embed_dim: int, character_size: int, character_dim: int, word_dropout: float
    ) -> None:
        """Make embeddings of words and features of characters, of these numbers and sizes."""
        super().__init__()
        self.embedding = _embedding(word_size, embed_dim)
        self.characters = CharacterFeatures(character_size, character_dim)
        self.word_dropout = word_dropout

    def extra_repr(self) -> str:
        return described(self, word_dropout=0.0)

    def forward(self, batch: WordBatch) -> Float[Tensor, "B T D"]:
        """Return the vectors (B, T, embed_dim + character_dim) of a batch."""
        words = batch.words
        if self.training and self.word_dropout:
            words, _ = drop_words(words, self.word_dropout)
        # Each form once, however often it occurs in the batch
        features = self.characters(batch.characters, batch.character_lengths)
        return torch.cat((self.embedding(words), nn.functional.embedding(batch.forms, features)), -1)


def drop_words(words: Int64[Tensor, "B T"], p: float) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Replace each word by UNK with probability p; return the words, and a mask of those that were replaced."""
    dropped = (torch.rand(words.shape, device=words.device) < p) & (words != PAD)
    return torch.where(dropped, UNK, words), dropped


def _embedding(size: int, dim: int) -> nn.Embedding:
    embedding = nn.Embedding(size, dim, padding_idx=PAD)
    normal_embedding_(embedding, dim**-0.5)
    return embedding
