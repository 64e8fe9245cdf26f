"""Tagging: a label for each word of a sentence."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch

from regard._symbols import EOS
from regard._wording import counted_noun
from regard.data import conllu
from regard.data.batches import pad
from regard.data.lines import name_of
from regard.data.storage import store
from regard.data.vocabulary import Vocabulary
from regard.errors import ArgumentError, DataError, RunError
from regard.functional import Observe
from regard.models.tagger import Tagger, TaggerConfig, WordBatch
from regard.tasks.metrics import Scores, score_tags
from regard.tasks.run import Run, in_windows

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

__all__ = ["Batch", "Encoded", "Example", "TagRun", "Tagged", "read_tagged"]

_OFTEN = 2  # times that a word or a character has to be seen to be known: what is not known must be learned, too
_LONGEST = 512  # words that are tagged together; a longer sentence is tagged in pieces
_SPELT = 30  # characters of a word that are read; of a longer one half of them at each end
_BATCH_WORDS = 4096  # in prediction
_NO_LABEL = -1  # behind the end of a sentence, and for a tag that training never saw


class Example(NamedTuple):
    """One sentence: its words, and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Tagged:
    """The sentences of one file, or of a part of one, and what is to be said about them."""

    examples: Sequence[Example]
    name: str
    notes: list[str] = field(default_factory=list)


def read_tagged(path: str | PathLike[str], column: str = "upos") -> Tagged:
    """Read the tagged sentences of a file in one of the formats of `regard.data.conllu`, without its other columns.

    Raises ``DataError`` with file and line for a word without a tag, and when there
    is no word, or no tag in the column; ``ArgumentError`` when there can be no such column.
    """
    conllu.check_column(column)
    name = name_of(path)
    tags: Counter[str] = Counter()

    def found() -> Iterator[Example]:
        for sentence in conllu.read(path):
            if sentence.words:
                example = Example(sentence.words, sentence.tags(column))
                tags.update(example.tags)
                yield example

    examples = store(found())
    if not examples:
        raise DataError("expected words, CoNLL-U or WORD TAB TAG, found none; check the path", file=name)
    if tags.keys() == {"_"}:
        raise DataError(f"expected tags in the column {column}, found _ for every word; choose another one", file=name)
    sizes = [
        counted_noun(len(examples), "sentence"),
        counted_noun(tags.total(), "word"),
        counted_noun(len(tags), "tag"),
    ]
    return Tagged(examples, name, [f"{name}: {', '.join(sizes)} ({column})"])


class Encoded(NamedTuple):
    """One sentence as ids; the characters of all words follow each other, each word's with EOS at its end."""

    words: tuple[int, ...]
    characters: tuple[int, ...]
    labels: tuple[int, ...]


class Batch(NamedTuple):
    """B sentences, and the label of each word."""

    words: WordBatch
    labels: Int64[Tensor, "B T"]


@dataclass
class TagRun(Run):
    """A trained tagger: the network, what it knows of words, characters and labels, and how it came about.

    Words are looked up in lower case, and spelt as they are.
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
    def new(cls, split: Tagged, config: TaggerConfig, *, column: str, seed: int) -> Self:
        """A run with a new model for these sentences; the numbers in ``config`` of what is known become theirs."""
        forms = Counter(word for example in split.examples for word in example.words)
        lower: Counter[str] = Counter()
        spelt: Counter[str] = Counter()
        for form, n in forms.items():
            lower[form.lower()] += n
            for character in form:
                spelt[character] += n
        words, characters = (
            Vocabulary.from_units(unit for unit, n in units.items() if n >= _OFTEN) for units in (lower, spelt)
        )
        labels = tuple(sorted({tag for example in split.examples for tag in example.tags}))
        torch.manual_seed(seed)
        sizes = replace(config, word_size=len(words), character_size=len(characters), label_size=len(labels))
        return cls(Tagger(sizes), words, characters, labels, column)

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
            raise RunError("words, characters and labels are not as many as config.json says")
        conllu.check_column(config["column"])
        return cls(model, words, characters, labels, config["column"], dict(config["training"]))

    def read(self, path: str) -> Tagged:
        return read_tagged(path, self.column)

    def unseen(self, split: Tagged) -> list[str]:  # type: ignore[override]  # it gets what it has read
        """One line on the tags that training never saw, if there are any."""
        unseen = sorted({tag for example in split.examples for tag in example.tags} - set(self.labels))
        if not unseen:
            return []
        shown = " ".join(unseen[:5]) + (" ..." if len(unseen) > 5 else "")
        return [
            f"{split.name}: {counted_noun(len(unseen), 'tag')} that training never saw, they count as errors: {shown}"
        ]

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """A sentence that is longer than are tagged together becomes several."""
        find = self._labels.get
        return [
            Encoded(*self._spell(words), tuple(find(tag, _NO_LABEL) for tag in tags))
            for example in examples
            for words, tags in zip(_pieces(example.words), _pieces(example.tags), strict=True)
        ]

    def lengths(self, encoded: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        return [len(sentence.words) for sentence in encoded], [0] * len(encoded)

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        words, lengths = pad([sentence.words for sentence in encoded])
        rows: dict[tuple[int, ...], int] = {}
        forms = [[rows.setdefault(form, len(rows)) for form in _cut(sentence.characters)] for sentence in encoded]
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
        """A tag for each word of each sentence, in order; the sentences are read as they are needed."""
        self.model.eval()
        numbers: deque[int] = deque()  # of pieces of the sentences that have been read

        def pieces() -> Iterator[Sequence[str]]:
            for sentence in sentences:
                cut = list(_pieces(sentence)) or [sentence]
                numbers.append(len(cut))
                yield from cut

        empty: list[str] = []
        outputs = in_windows(pieces(), len, lambda length: _BATCH_WORDS // length, self._predict_batch, empty)
        for tags in outputs:
            yield [*tags, *chain.from_iterable(islice(outputs, numbers.popleft() - 1))]

    def tag(self, sentences: Iterable[conllu.Sentence]) -> Iterator[str]:
        """The lines of a file with this model's tags, all else as it is; its sentences are read as they are needed."""
        for sentence, tags in self.tags_of(sentences):
            yield from sentence.tagged(tags, self.column)

    def tags_of(self, sentences: Iterable[conllu.Sentence]) -> Iterator[tuple[conllu.Sentence, list[str]]]:
        """Each sentence of a file, with a tag for each of its words."""
        waiting: deque[conllu.Sentence] = deque()

        def words() -> Iterator[Sequence[str]]:
            for sentence in sentences:
                waiting.append(sentence)
                yield sentence.words

        for tags in self.predict(words()):
            yield waiting.popleft(), tags

    def score(self, examples: Sequence[Example], *, confidence: bool = False) -> Scores:
        """Compare the tags with those of the examples."""
        outputs = list(self.predict(example.words for example in examples))
        return score_tags(outputs, [example.tags for example in examples], confidence=confidence)

    def look(self, words: Sequence[str]) -> tuple[list[str], Float[Tensor, "layers heads T T"]]:
        """The tags of one sentence, and what each word attended to; `ArgumentError` when the encoder is recurrent."""
        if not 1 <= len(words) <= _LONGEST:
            raise ArgumentError(f"expected from 1 to {_LONGEST} words, got {len(words)}")
        self.model.eval()
        with torch.inference_mode():
            logits, seen = self.model(self._batch([words]), observe=Observe(weights=True))
        weights = torch.cat([layer.weights for layer in seen])
        return self._tags(logits.argmax(-1)[0].tolist()), weights.cpu()

    def _predict_batch(self, sentences: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        with torch.inference_mode():
            best = self.model(self._batch(sentences)).argmax(-1).tolist()
        for sentence, row in zip(sentences, best, strict=True):
            yield self._tags(row[: len(sentence)])

    def _batch(self, sentences: Sequence[Sequence[str]]) -> WordBatch:
        device = next(self.model.parameters()).device
        encoded = [Encoded(*self._spell(words), ()) for words in sentences]
        return WordBatch(*(tensor.to(device) for tensor in self.collate(encoded).words))

    def _tags(self, labels: Sequence[int]) -> list[str]:
        return [self.labels[label] for label in labels]

    def _spell(self, words: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        characters = chain.from_iterable((*self.characters.encode(_shorten(word)), EOS) for word in words)
        return tuple(self.words.encode(word.lower() for word in words)), tuple(characters)


def _pieces(sentence: Sequence[str]) -> Iterator[Sequence[str]]:
    return (sentence[i : i + _LONGEST] for i in range(0, len(sentence), _LONGEST))


def _shorten(word: str) -> str:
    """A word as it is spelt to the model: of a long one its ends, which tell more than the middle."""
    return word if len(word) <= _SPELT else word[: _SPELT // 2] + word[-_SPELT // 2 :]


def _cut(characters: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The words, each with the EOS at its end."""
    start = 0
    while start < len(characters):
        end = characters.index(EOS, start) + 1
        yield characters[start:end]
        start = end
