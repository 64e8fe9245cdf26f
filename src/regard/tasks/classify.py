"""Classification: a label for each text, how probable it is, and which words it was seen by."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch

from regard._wording import counted_noun
from regard.data.batches import pad
from regard.data.labelled_texts import Labelled, LabelledTexts, TextUnits, read_labelled, split_text
from regard.data.vocabulary import Vocabulary
from regard.errors import DataError, RunError
from regard.functional import Observe
from regard.models.classifier import Classifier, ClassifierConfig, TextBatch
from regard.tasks.metrics import Scores, score_labels
from regard.tasks.run import Run, in_windows

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

__all__ = ["Answer", "Batch", "ClassifyRun", "Encoded", "spelling"]

_BATCH_UNITS = 8192  # in prediction
_GRAMS = (3, 4, 5)  # characters
_MOST_GRAMS = 40  # of one word
_UNSEEN = -1  # in place of a label that training never saw


class Encoded(NamedTuple):
    """One text as ids: of each word, of the n-grams that it is spelt by, and of the label."""

    words: tuple[int, ...]
    grams: tuple[tuple[int, ...], ...]
    label: int


class Batch(NamedTuple):
    """B texts, and the label of each."""

    texts: TextBatch
    labels: Int64[Tensor, " B"]


@dataclass(frozen=True)
class Answer:
    """What a run makes of one text: the most probable label, and the probability of every one; nothing for a blank.

    ``weights`` (heads, units) tell what was attended to, where they were asked for. ``unseen`` counts units that
    training never saw, ``cut`` tells that the text was longer than the run takes.
    """

    units: list[str]
    label: str
    probabilities: dict[str, float]
    weights: Float[Tensor, "heads T"] | None = None
    unseen: int = 0
    cut: bool = False


@dataclass
class ClassifyRun(Run):
    """A trained classifier: the network, the words and labels that it knows, and how it came about.

    Words are looked up in lower case; whether they have capitals is among what spells them, see `spelling`.
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
    def new(cls, texts: LabelledTexts, config: ClassifierConfig, *, max_length: int, seed: int) -> Self:
        """A run with a new model for these texts; the numbers in ``config`` of what is known become theirs.

        Raises `DataError` when there are not two labels.
        """
        labels = tuple(sorted({example.label for example in texts.examples}))
        if len(labels) < 2:
            raise DataError(
                f"expected at least two labels to tell apart, found {labels[0]!r} alone; add texts with another",
                file=texts.name,
            )
        words = Vocabulary.from_units(unit.lower() for example in texts.examples for unit in example.text)
        torch.manual_seed(seed)
        model = Classifier(replace(config, word_size=len(words), label_size=len(labels)))
        return cls(model, words, labels, texts.units, texts.columns, max_length)

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
            raise RunError("words and labels are not as many as config.json says")
        units, max_length = config["units"], int(config["max_length"])
        if units not in ("words", "chars") or max_length < 1:
            raise RunError(f"expected units words or chars and max_length above 0, got {units!r} and {max_length}")
        columns = tuple(map(str, config["columns"]))
        return cls(model, words, labels.units, units, columns, max_length, dict(config["training"]))

    def read(self, path: str) -> LabelledTexts:
        return read_labelled(path, self.columns, self.units, max_length=self.max_length)

    def unseen(self, split: LabelledTexts) -> list[str]:  # type: ignore[override]  # it gets what it has read
        """One line on the labels that training never saw, if there are any."""
        unseen = sorted({example.label for example in split.examples} - set(self.labels))
        if not unseen:
            return []
        shown = ", ".join(unseen[:5]) + (", ..." if len(unseen) > 5 else "")
        return [
            f"{split.name}: {counted_noun(len(unseen), 'label')} that training never saw, they count as errors: {shown}"
        ]

    def encode(self, examples: Sequence[Labelled]) -> list[Encoded]:
        return [Encoded(*self._spell(text), self._labels.get(label, _UNSEEN)) for text, label in examples]

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

    def predict(self, texts: Iterable[str], *, weights: bool = False) -> Iterator[Answer]:
        """An answer for each text, in order; the texts are read as they are needed.

        The probabilities are the softmax of the model. Label smoothing keeps them from 0 and 1: with a share s spread
        over K labels, a text of which the model is certain has 1 − s + s/K.
        """
        return self.predict_units((split_text(text, self.units) for text in texts), weights=weights)

    def predict_units(self, texts: Iterable[Sequence[str]], *, weights: bool = False) -> Iterator[Answer]:
        """The same for texts that are cut into units already."""
        self.model.eval()

        def fitting(length: int) -> int:
            return _BATCH_UNITS // min(length, self.max_length)

        return in_windows(texts, len, fitting, lambda batch: self._predict_batch(batch, weights), Answer([], "", {}))

    def score(self, examples: Sequence[Labelled], *, confidence: bool = False) -> Scores:
        """Compare the most probable labels with those of the examples."""
        outputs = [answer.label for answer in self.predict_units(example.text for example in examples)]
        return score_labels(outputs, [example.label for example in examples], confidence=confidence)

    def _predict_batch(self, texts: Sequence[Sequence[str]], weights: bool) -> Iterator[Answer]:
        kept = [list(text[: self.max_length]) for text in texts]
        device = next(self.model.parameters()).device
        batch = self.collate([Encoded(*self._spell(units), _UNSEEN) for units in kept]).texts
        with torch.inference_mode():
            logits, seen = self.model(
                TextBatch(*(tensor.to(device) for tensor in batch)), observe=Observe(weights=weights)
            )
        probabilities = logits.softmax(-1).cpu()
        for row, (text, units) in enumerate(zip(texts, kept, strict=True)):
            shares = dict(zip(self.labels, probabilities[row].tolist(), strict=True))
            yield Answer(
                units,
                max(shares, key=shares.__getitem__),
                shares,
                seen.weights[row, :, 0, : len(units)].cpu() if weights else None,
                self.words.unseen(unit.lower() for unit in units),
                len(units) < len(text),
            )

    def _spell(self, units: Sequence[str]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        size = self.model.config.gram_size
        return tuple(self.words.encode(unit.lower() for unit in units)), tuple(spelling(unit, size) for unit in units)


@lru_cache(maxsize=1_000_000)
def spelling(unit: str, size: int) -> tuple[int, ...]:
    """What a word is spelt by, hashed into ids from 1 to size − 1: n-grams of its characters, and how it is written.

    The n-grams, of 3 to 5 characters, are of the word in lower case between "<" and ">"; a long word has the first
    forty. How it is written: whether it begins with a capital or a small letter, a digit, or another character.

    >>> len(spelling("cat", 10_007))  # "<ca", "cat", "at>", "<cat", "cat>", "<cat>", and a small letter
    7
    >>> [a == b for a, b in zip(spelling("Cat", 10_007), spelling("cat", 10_007))]
    [True, True, True, True, True, True, False]
    """
    spelt = f"<{unit.lower()}>"
    grams = [spelt[i : i + n] for n in _GRAMS for i in range(len(spelt) - n + 1)][:_MOST_GRAMS]
    first = unit[0]
    written = "A" if first.isupper() else "a" if first.isalpha() else "0" if first.isdigit() else "."
    return tuple(1 + zlib.crc32(gram.encode("utf-8", "surrogatepass")) % (size - 1) for gram in [*grams, f"{written} "])
