"""Tagging: runs that give each word of a sentence a tag."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch

from regard._symbols import EOS
from regard.data import conllu
from regard.data.batches import pad
from regard.data.tagged_sentences import TaggedSentence, TaggedSentences, read_tagged
from regard.data.vocabulary import Vocabulary
from regard.errors import ArgumentError, RunError
from regard.functional import Observe
from regard.models.tagger import Tagger, TaggerConfig, WordBatch
from regard.tasks.metrics import Scores, score_tags
from regard.tasks.run import Run, unseen_note
from regard.tasks.windows import in_length_batches

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

__all__ = ["Batch", "Encoded", "TagRun"]

_MIN_COUNT = 2  # of a word or character in the vocabulary: rarer ones are UNK, so that the model learns to use it
_LONGEST = 512  # words that are tagged together; a longer sentence is tagged in pieces
_MAX_CHARACTERS = 30  # of a word; of a longer one, half of them at each end
_BATCH_WORDS = 4096  # in prediction
_NO_LABEL = -1  # after the end of a sentence, and for a tag that did not occur in training


class Encoded(NamedTuple):
    """One sentence as ids; ``characters`` are those of all words in a row, with EOS after each word."""

    words: tuple[int, ...]
    characters: tuple[int, ...]
    labels: tuple[int, ...]


class Batch(NamedTuple):
    """B sentences, and a label for each word."""

    words: WordBatch
    labels: Int64[Tensor, "B T"]


@dataclass
class TagRun(Run):
    """A trained tagger with the vocabularies of words and characters, and its tags.

    Words are looked up in lower case; their characters keep their case.
    """

    task: ClassVar[str] = "tag"

    model: Tagger
    words: Vocabulary
    characters: Vocabulary
    labels: tuple[str, ...]
    column: str
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._labels = {label: i for i, label in enumerate(self.labels)}

    @classmethod
    def new(cls, sentences: TaggedSentences, *, column: str = "upos", seed: int = 0, **chosen: Any) -> Self:
        """Build a run with a new model for these sentences; ``chosen`` are fields of `TaggerConfig`."""
        forms = Counter(word for example in sentences.examples for word in example.words)
        lower: Counter[str] = Counter()
        letters: Counter[str] = Counter()
        for form, n in forms.items():
            lower[form.lower()] += n
            for character in form:
                letters[character] += n
        words, characters = (
            Vocabulary.from_units(unit for unit, n in units.items() if n >= _MIN_COUNT) for units in (lower, letters)
        )
        labels = tuple(sorted({tag for example in sentences.examples for tag in example.tags}))
        torch.manual_seed(seed)
        config = TaggerConfig(len(words), len(characters), len(labels), **chosen)
        return cls(config.build(), words, characters, labels, column)

    def files(self) -> dict[str, str]:
        return {
            "words.vocabulary.json": self.words.to_json(),
            "characters.vocabulary.json": self.characters.to_json(),
            "labels.json": Vocabulary(self.labels).to_json(),
        }

    def settings(self) -> dict[str, Any]:
        return {"column": self.column}

    @classmethod
    def restore(cls, config: dict[str, Any], read: Callable[[str], str]) -> Self:
        words, characters = (Vocabulary.from_json(read(f"{of}.vocabulary.json")) for of in ("words", "characters"))
        labels = Vocabulary.from_json(read("labels.json")).units
        sizes = dict(config["model"])
        if sizes.pop("kind") != TaggerConfig.kind:
            raise RunError(f"model: expected the kind {TaggerConfig.kind}, got {config['model']['kind']!r}")
        model = Tagger(TaggerConfig(**sizes))
        known = (model.config.word_size, model.config.character_size, model.config.label_size)
        if known != (len(words), len(characters), len(labels)):
            raise RunError("the sizes of the vocabularies differ from those in config.json")
        conllu.check_column(config["column"])
        return cls(model, words, characters, labels, config["column"], dict(config["training"]))

    def read(self, path: str) -> TaggedSentences:
        return read_tagged(path, self.column)

    def unseen_notes(self, examples: Sequence[TaggedSentence]) -> list[str]:
        tags = (tag for example in examples for tag in example.tags)
        return unseen_note(tags, self.labels, "tag", "counted as errors")

    def encode(self, examples: Sequence[TaggedSentence]) -> list[Encoded]:
        """Return sentences as ids; one that is too long to be tagged at once becomes several."""
        find = self._labels.get
        return [
            Encoded(*self._ids(words), tuple(find(tag, _NO_LABEL) for tag in tags))
            for example in examples
            for words, tags in zip(_pieces(example.words), _pieces(example.tags), strict=True)
        ]

    def lengths(self, encoded: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        return [len(sentence.words) for sentence in encoded], [0] * len(encoded)

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        words, lengths = pad([sentence.words for sentence in encoded])
        rows: dict[tuple[int, ...], int] = {}
        forms = [
            [rows.setdefault(form, len(rows)) for form in _split_words(sentence.characters)] for sentence in encoded
        ]
        labels, _ = pad([[label - _NO_LABEL for label in sentence.labels] for sentence in encoded])
        return Batch(WordBatch(words, lengths, pad(forms)[0], *pad(list(rows))), labels + _NO_LABEL)

    def loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        logits = self.model(batch.words)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1),
            batch.labels.flatten(),
            ignore_index=_NO_LABEL,
            label_smoothing=smoothing,
            reduction="sum",
        )
        return loss, int((batch.labels != _NO_LABEL).sum())

    def predict(self, sentences: Iterable[Sequence[str]]) -> Iterator[list[str]]:
        """Yield the tags of each sentence, one for each word; sentences are read as they are needed."""
        self.model.eval()
        piece_counts: deque[int] = deque()  # of the sentences that have been read

        def pieces() -> Iterator[Sequence[str]]:
            for sentence in sentences:
                parts = list(_pieces(sentence)) or [sentence]
                piece_counts.append(len(parts))
                yield from parts

        empty: list[str] = []
        outputs = in_length_batches(pieces(), len, lambda length: _BATCH_WORDS // length, self._predict_batch, empty)
        for tags in outputs:
            yield [*tags, *chain.from_iterable(islice(outputs, piece_counts.popleft() - 1))]

    def tag(self, sentences: Iterable[conllu.Sentence]) -> Iterator[str]:
        """Yield the lines of a file with the tags of the model in their column; the rest is unchanged."""
        for sentence, tags in self.tags_of(sentences):
            yield from sentence.tagged(tags, self.column)

    def tags_of(self, sentences: Iterable[conllu.Sentence]) -> Iterator[tuple[conllu.Sentence, list[str]]]:
        """Yield each sentence of a file with its tags."""
        waiting: deque[conllu.Sentence] = deque()

        def words() -> Iterator[Sequence[str]]:
            for sentence in sentences:
                waiting.append(sentence)
                yield sentence.words

        for tags in self.predict(words()):
            yield waiting.popleft(), tags

    def score(self, examples: Sequence[TaggedSentence], *, confidence: bool = False) -> Scores:
        """Compare the tags of the model with those of the examples."""
        outputs = list(self.predict(example.words for example in examples))
        return score_tags(outputs, [example.tags for example in examples], confidence=confidence)

    def predict_with_weights(self, words: Sequence[str]) -> tuple[list[str], Float[Tensor, "layers heads T T"]]:
        """Return the tags of one sentence and the attention weights; `ArgumentError` if the encoder is recurrent."""
        if not 1 <= len(words) <= _LONGEST:
            raise ArgumentError(f"expected a sentence of 1 to {_LONGEST} words, got {len(words)}")
        self.model.eval()
        with torch.inference_mode():
            logits, observed = self.model(self._batch([words]), observe=Observe(weights=True))
        weights = torch.cat([layer.weights for layer in observed])
        return self._tags(logits.argmax(-1)[0].tolist()), weights.cpu()

    def _predict_batch(self, sentences: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        with torch.inference_mode():
            best = self.model(self._batch(sentences)).argmax(-1).tolist()
        for sentence, row in zip(sentences, best, strict=True):
            yield self._tags(row[: len(sentence)])

    def _batch(self, sentences: Sequence[Sequence[str]]) -> WordBatch:
        device = next(self.model.parameters()).device
        encoded = [Encoded(*self._ids(words), ()) for words in sentences]
        return WordBatch(*(tensor.to(device) for tensor in self.collate(encoded).words))

    def _tags(self, labels: Sequence[int]) -> list[str]:
        return [self.labels[label] for label in labels]

    def _ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        characters = chain.from_iterable((*self.characters.encode(_shorten(word)), EOS) for word in words)
        return tuple(self.words.encode(word.lower() for word in words)), tuple(characters)


def _pieces(sentence: Sequence[str]) -> Iterator[Sequence[str]]:
    return (sentence[i : i + _LONGEST] for i in range(0, len(sentence), _LONGEST))


def _shorten(word: str) -> str:
    """Return a word, or both ends of a long one, which are more informative about its tag than the middle."""
    return word if len(word) <= _MAX_CHARACTERS else word[: _MAX_CHARACTERS // 2] + word[-_MAX_CHARACTERS // 2 :]


def _split_words(characters: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the characters of each word, with the EOS at its end."""
    start = 0
    while start < len(characters):
        end = characters.index(EOS, start) + 1
        yield characters[start:end]
        start = end
