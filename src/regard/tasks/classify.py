"""Classification: runs that give each text a label, with its probability and the attention to its words."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch

from regard.data.batches import pad
from regard.data.labelled_texts import LabelledText, LabelledTexts, TextUnits, read_labelled, split_text
from regard.data.vocabulary import Vocabulary
from regard.errors import DataError, RunError
from regard.functional import Observe
from regard.models.classifier import Classifier, ClassifierConfig, TextBatch
from regard.tasks.metrics import Scores, score_labels
from regard.tasks.run import Run, unseen_note
from regard.tasks.windows import in_length_batches

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

__all__ = ["Batch", "Classification", "ClassifyRun", "Encoded", "word_features"]

_BATCH_UNITS = 8192  # in prediction
_GRAM_LENGTHS = (3, 4, 5)  # characters
_MAX_GRAMS = 40  # of one word
_UNSEEN = -1  # in place of a label that did not occur in training


class Encoded(NamedTuple):
    """One text as ids: of its words, of the character n-grams of each word, and of the label."""

    words: tuple[int, ...]
    grams: tuple[tuple[int, ...], ...]
    label: int


class Batch(NamedTuple):
    """B texts, and a label for each."""

    texts: TextBatch
    labels: Int64[Tensor, " B"]


@dataclass(frozen=True)
class Classification:
    """The answer of a run to one text: the most probable label and all probabilities; both are empty for a blank text.

    ``weights`` (heads, units) are those of the attention, if they were requested. ``unseen`` are the units that
    did not occur in training, with repetitions; ``cut`` is True if the text was longer than the run accepts.
    """

    units: list[str]
    label: str
    probabilities: dict[str, float]
    weights: Float[Tensor, "heads T"] | None = None
    unseen: list[str] = field(default_factory=list)
    cut: bool = False


@dataclass
class ClassifyRun(Run):
    """A trained classifier with its vocabulary and labels.

    Words are looked up in lower case; capitals are among their features, see `word_features`.
    """

    task: ClassVar[str] = "classify"

    model: Classifier
    words: Vocabulary
    labels: tuple[str, ...]
    units: TextUnits
    columns: tuple[str, ...]
    max_length: int
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._labels = {label: i for i, label in enumerate(self.labels)}

    @classmethod
    def new(cls, texts: LabelledTexts, *, max_length: int = 400, seed: int = 0, **chosen: Any) -> Self:
        """Build a run with a new model for these texts; ``chosen`` are fields of `ClassifierConfig`.

        Raises `DataError` if there are fewer than two labels.
        """
        labels = tuple(sorted({example.label for example in texts.examples}))
        if len(labels) < 2:
            raise DataError(
                f"expected at least two labels, found only {labels[0]!r}; add texts with another label",
                file=texts.name,
            )
        words = Vocabulary.from_units(unit.lower() for example in texts.examples for unit in example.text)
        torch.manual_seed(seed)
        config = ClassifierConfig(len(words), len(labels), **chosen)
        return cls(config.build(), words, labels, texts.units, texts.columns, max_length)

    def files(self) -> dict[str, str]:
        return {"words.vocabulary.json": self.words.to_json(), "labels.json": Vocabulary(self.labels).to_json()}

    def settings(self) -> dict[str, Any]:
        return {"units": self.units, "columns": list(self.columns), "max_length": self.max_length}

    @classmethod
    def restore(cls, config: dict[str, Any], read: Callable[[str], str]) -> Self:
        words, labels = (Vocabulary.from_json(read(name)) for name in ("words.vocabulary.json", "labels.json"))
        sizes = dict(config["model"])
        if sizes.pop("kind") != ClassifierConfig.kind:
            raise RunError(f"model: expected the kind {ClassifierConfig.kind}, got {config['model']['kind']!r}")
        model = Classifier(ClassifierConfig(**sizes))
        if (model.config.word_size, model.config.label_size) != (len(words), len(labels.units)):
            raise RunError("the sizes of the vocabularies differ from those in config.json")
        units, max_length = config["units"], int(config["max_length"])
        if units not in ("words", "chars") or max_length < 1:
            raise RunError(f"expected units words or chars and max_length above 0, got {units!r} and {max_length}")
        columns = tuple(map(str, config["columns"]))
        return cls(model, words, labels.units, units, columns, max_length, dict(config["training"]))

    def read(self, path: str) -> LabelledTexts:
        return read_labelled(path, self.columns, self.units, max_length=self.max_length)

    def unseen_notes(self, examples: Sequence[LabelledText]) -> list[str]:
        return unseen_note((example.label for example in examples), self.labels, "label", "counted as errors")

    def encode(self, examples: Sequence[LabelledText]) -> list[Encoded]:
        return [Encoded(*self._ids(text), self._labels.get(label, _UNSEEN)) for text, label in examples]

    def lengths(self, encoded: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        return [len(text.words) for text in encoded], [0] * len(encoded)

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        words, lengths = pad([text.words for text in encoded])
        rows: dict[tuple[int, ...], int] = {}
        forms, _ = pad([[rows.setdefault(grams, len(rows)) for grams in text.grams] for text in encoded])
        grams, _ = pad(list(rows))
        return Batch(TextBatch(words, lengths, forms, grams), torch.tensor([text.label for text in encoded]))

    def loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        logits = self.model(batch.texts)
        loss = torch.nn.functional.cross_entropy(
            logits, batch.labels, ignore_index=_UNSEEN, label_smoothing=smoothing, reduction="sum"
        )
        return loss, int((batch.labels != _UNSEEN).sum())

    def predict(self, texts: Iterable[str], *, weights: bool = False) -> Iterator[Classification]:
        """Yield the classification of each text, in order; texts are read as they are needed.

        The probabilities are the softmax of the logits. Label smoothing moves them away from 0 and 1: with a fraction s
        spread over K labels, the target is 1 − s + s/K for the correct label.
        """
        return self.predict_units((split_text(text, self.units) for text in texts), weights=weights)

    def predict_units(self, texts: Iterable[Sequence[str]], *, weights: bool = False) -> Iterator[Classification]:
        """Yield the classification of each text, given in units."""
        self.model.eval()

        def batch_size(length: int) -> int:
            return _BATCH_UNITS // min(length, self.max_length)

        blank = Classification([], "", {})
        return in_length_batches(texts, len, batch_size, lambda batch: self._predict_batch(batch, weights), blank)

    def score(self, examples: Sequence[LabelledText], *, confidence: bool = False) -> Scores:
        """Compare the labels of the model with those of the examples."""
        outputs = [answer.label for answer in self.predict_units(example.text for example in examples)]
        return score_labels(outputs, [example.label for example in examples], confidence=confidence)

    def _predict_batch(self, texts: Sequence[Sequence[str]], weights: bool) -> Iterator[Classification]:
        kept = [list(text[: self.max_length]) for text in texts]
        device = next(self.model.parameters()).device
        batch = self.collate([Encoded(*self._ids(units), _UNSEEN) for units in kept]).texts
        with torch.inference_mode():
            logits, observed = self.model(
                TextBatch(*(tensor.to(device) for tensor in batch)), observe=Observe(weights=weights)
            )
        probabilities = logits.softmax(-1).cpu()
        for row, (text, units) in enumerate(zip(texts, kept, strict=True)):
            probability_of = dict(zip(self.labels, probabilities[row].tolist(), strict=True))
            yield Classification(
                units,
                max(probability_of, key=probability_of.__getitem__),
                probability_of,
                observed.weights[row, :, 0, : len(units)].cpu() if weights else None,
                self.words.unseen_units(unit.lower() for unit in units),
                len(units) < len(text),
            )

    def _ids(self, units: Sequence[str]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        size = self.model.config.gram_size
        return tuple(self.words.encode(unit.lower() for unit in units)), tuple(
            word_features(unit, size) for unit in units
        )


@lru_cache(maxsize=1_000_000)
def word_features(unit: str, size: int) -> tuple[int, ...]:
    """Return the features of a word, hashed into ids from 1 to size − 1: character n-grams, and its first character.

    The n-grams of 3 to 5 characters are those of the word in lower case between "<" and ">", at most the first forty.
    The last feature is the kind of the first character: a capital or a small letter, a digit, or another character.

    >>> len(word_features("cat", 10_007))  # "<ca", "cat", "at>", "<cat", "cat>", "<cat>", and a small letter
    7
    >>> [a == b for a, b in zip(word_features("Cat", 10_007), word_features("cat", 10_007))]
    [True, True, True, True, True, True, False]
    """
    marked = f"<{unit.lower()}>"
    grams = [marked[i : i + n] for n in _GRAM_LENGTHS for i in range(len(marked) - n + 1)][:_MAX_GRAMS]
    first = unit[0]
    written = "A" if first.isupper() else "a" if first.isalpha() else "0" if first.isdigit() else "."
    return tuple(1 + zlib.crc32(gram.encode("utf-8", "surrogatepass")) % (size - 1) for gram in [*grams, f"{written} "])
