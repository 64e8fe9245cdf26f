"""Sequence to sequence: runs that map a text to a text, by beam search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from regard._symbols import BOS, EOS, PAD
from regard.data.batches import pad
from regard.data.pair_columns import DEFAULT_COLUMNS, UnicodeForm, check_columns, compose
from regard.data.pairs import Pair, Pairs, read_pairs, split_source, vocabularies
from regard.data.tokenizer import SeparatorTokenizer, Tokenizer
from regard.data.vocabulary import Vocabulary
from regard.errors import ArgumentError, RunError
from regard.models import CONFIGS, Seq2Seq, beam_search
from regard.tasks.metrics import Scores, score_texts, score_units
from regard.tasks.run import Run, unseen_note
from regard.tasks.windows import in_length_batches

if TYPE_CHECKING:
    from jaxtyping import Int64

__all__ = [
    "Answer",
    "Batch",
    "Encoded",
    "Prediction",
    "Search",
    "Seq2SeqRun",
    "max_length_ratio",
    "max_target_lengths",
]


class Encoded(NamedTuple):
    """One pair as ids, without BOS and EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class Batch(NamedTuple):
    """B pairs: padded sources, their lengths, and padded targets between BOS and EOS."""

    source: Int64[Tensor, "B Ts"]
    source_lengths: Int64[Tensor, " B"]
    target: Int64[Tensor, "B Tt"]


@dataclass(frozen=True)
class Search:
    """Settings of the beam search: width, number of answers, length penalty, and whether to return weights."""

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 0.0
    weights: bool = False
    batch_tokens: int = 4096


@dataclass(frozen=True)
class Prediction:
    """One hypothesis as text: its score (log probability over length to the power of the penalty) and its attention.

    ``weights`` are (steps, source units), or (layers, heads, steps, source units). A ``finished`` hypothesis has one
    step more than units: the step that ends it.
    """

    text: str
    units: list[str]
    score: float
    log_prob: float
    finished: bool
    weights: Tensor | None


@dataclass(frozen=True)
class Answer:
    """The answer of a run to one line: predictions, best first, or none for a blank line.

    ``unseen`` are the units that did not occur in training, with repetitions; ``cut`` is True if the line was longer
    than the run accepts.
    """

    units: list[str]
    predictions: list[Prediction]
    unseen: list[str] = field(default_factory=list)
    cut: bool = False


@dataclass
class Seq2SeqRun(Run):
    """A trained sequence-to-sequence model with the vocabularies and tokenizers of both sides.

    ``max_length_ratio`` is the largest ratio of target to source length in training; see `max_target_lengths`.
    """

    task: ClassVar[str] = "seq2seq"

    model: Seq2Seq
    source: Vocabulary
    target: Vocabulary
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    max_length: int
    max_length_ratio: float
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    unicode_form: UnicodeForm = "none"
    training: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def new(
        cls,
        pairs: Pairs,
        model: str = "recurrent",
        *,
        max_length: int = 200,
        seed: int = 0,
        shared: bool = False,
        **chosen: Any,
    ) -> Self:
        """Build a run with a new model for these pairs.

        ``model`` is "recurrent" or "transformer"; ``chosen`` are fields of its config, except the sizes of the data.
        ``shared`` gives both sides one vocabulary.
        """
        if model not in CONFIGS:
            raise ArgumentError(f"model: expected one of {', '.join(CONFIGS)}, got {model!r}")
        source, target = vocabularies(pairs, shared=shared)
        ratio = max_length_ratio((len(pair.source), len(pair.target)) for pair in pairs.examples)
        longest = max(1 + max_length, int(max_target_lengths(torch.tensor(max_length), ratio)))
        torch.manual_seed(seed)
        config = CONFIGS[model].for_data(len(source), len(target), longest, **chosen)
        return cls(
            config.build(),
            source,
            target,
            pairs.source_tokenizer,
            pairs.target_tokenizer,
            max_length,
            ratio,
            pairs.columns,
            pairs.unicode_form,
        )

    def files(self) -> dict[str, str]:
        files = {"source.vocabulary.json": self.source.to_json(), "target.vocabulary.json": self.target.to_json()}
        for side, tokenizer in (("source", self.source_tokenizer), ("target", self.target_tokenizer)):
            learned = tokenizer.to_json()
            if learned is not None:
                files[f"{side}.tokenizer.json"] = learned
        return files

    def settings(self) -> dict[str, Any]:
        return {
            "source_units": self.source_tokenizer.name,
            "target_units": self.target_tokenizer.name,
            "max_length": self.max_length,
            "growth": self.max_length_ratio,
            "columns": list(self.columns),
            "normal": self.unicode_form,
        }

    @classmethod
    def restore(cls, config: dict[str, Any], read: Callable[[str], str]) -> Self:
        source, target = (Vocabulary.from_json(read(f"{side}.vocabulary.json")) for side in ("source", "target"))
        model = _model(**config["model"])
        run = cls(
            model,
            source,
            target,
            _tokenizer(config["source_units"], "source", read),
            _tokenizer(config["target_units"], "target", read),
            max_length=int(config["max_length"]),
            max_length_ratio=float(config["growth"]),
            columns=check_columns(config.get("columns", DEFAULT_COLUMNS)),
            unicode_form=config.get("normal", "none"),
            training=dict(config["training"]),
        )
        if run.max_length < 1 or run.max_length_ratio <= 0:
            raise RunError(
                f"expected max_length and growth above 0 in config.json, got {run.max_length} and "
                f"{run.max_length_ratio:g}"
            )
        if (len(source), len(target)) != (model.config.source_size, model.config.target_size):
            raise RunError("the sizes of the vocabularies differ from those in config.json")
        return run

    def read(self, path: str) -> Pairs:
        return read_pairs(
            path,
            self.source_tokenizer,
            self.target_tokenizer,
            columns=self.columns,
            unicode_form=self.unicode_form,
            max_length=self.max_length,
        )

    def unseen_notes(self, examples: Sequence[Pair]) -> list[str]:
        sources = (unit for pair in examples for unit in pair.source)
        targets = (unit for pair in examples for unit in pair.target)
        return [
            *unseen_note(sources, self.source.units, "source unit", "read as unknown"),
            *unseen_note(targets, self.target.units, "target unit", "counted as errors"),
        ]

    def encode(self, examples: Sequence[Pair]) -> list[Encoded]:
        # Tuples of ints, unlike lists, are not tracked by the garbage collector: on a large file this halves the time.
        return [Encoded(tuple(self.source.encode(a)), tuple(self.target.encode(b))) for a, b in examples]

    def lengths(self, encoded: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        return [len(pair.source) for pair in encoded], [len(pair.target) + 2 for pair in encoded]

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        source, source_lengths = pad([pair.source for pair in encoded])
        target, _ = pad([[BOS, *pair.target, EOS] for pair in encoded])
        return Batch(source, source_lengths, target)

    def loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        """Return the loss of the target symbols, EOS included, given the true ones before each (teacher forcing)."""
        logits = self.model(batch.source, batch.source_lengths, batch.target[:, :-1])
        expected = batch.target[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), expected, ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
        )
        return loss, int((expected != PAD).sum())

    @property
    def unit_error(self) -> str:
        """The name of the error rate per target unit: CER for characters, PER for phones and the like."""
        return "CER" if self.target_tokenizer.name == "chars" else "PER"

    def predict(self, lines: Iterable[str], search: Search = Search()) -> Iterator[Answer]:
        """Yield an answer for each line, in order; lines are read as they are needed."""
        return self.predict_units(map(self.split, lines), search)

    def split(self, line: str) -> list[str]:
        """Return the units of a line to answer: a source, or SOURCE TAB FEATURES."""
        return split_source(line, self.source_tokenizer, self.columns, self.unicode_form)

    def predict_units(self, sources: Iterable[Sequence[str]], search: Search = Search()) -> Iterator[Answer]:
        """Yield an answer for each source, given in units."""

        def batch_size(length: int) -> int:
            return search.batch_tokens // (min(length, self.max_length) * search.beam)

        return in_length_batches(
            sources, len, batch_size, lambda batch: self._predict_batch(batch, search), Answer([], [])
        )

    def score(self, examples: Sequence[Pair], search: Search = Search(beam=1), *, confidence: bool = False) -> Scores:
        """Compare the best answers with the references: unit by unit, or, if units are subwords, as texts by BLEU."""
        self.model.eval()
        answers = self.predict_units([pair.source for pair in examples], search)
        outputs = [answer.predictions[0].units for answer in answers]
        references = [pair.target for pair in examples]
        if self.target_tokenizer.name == "subword":
            return score_texts(self._texts(outputs), self._texts(references), confidence=confidence)
        return score_units(outputs, references, self.unit_error, confidence=confidence)

    def test(self, examples: Sequence[Pair]) -> Scores:
        return self.score(examples, Search())

    def _texts(self, targets: Iterable[Sequence[str]]) -> list[str]:
        return [compose(self.target_tokenizer.join(units), self.unicode_form) for units in targets]

    def _predict_batch(self, sources: Sequence[Sequence[str]], search: Search) -> Iterator[Answer]:
        kept = [list(source[: self.max_length]) for source in sources]
        ids, lengths = pad([self.source.encode(source) for source in kept])
        device = next(self.model.parameters()).device
        found = beam_search(
            self.model,
            ids.to(device),
            lengths.to(device),
            max_lengths=max_target_lengths(lengths, self.max_length_ratio),
            beam=search.beam,
            n_best=search.n_best,
            length_penalty=search.length_penalty,
            weights=search.weights,
        )
        for source, units, hypotheses in zip(sources, kept, found, strict=True):
            predictions = []
            for hypothesis in hypotheses:
                answer = self.target.decode(hypothesis.ids)
                predictions.append(
                    Prediction(
                        compose(self.target_tokenizer.join(answer), self.unicode_form),
                        answer,
                        hypothesis.score,
                        hypothesis.log_prob,
                        hypothesis.finished,
                        hypothesis.weights,
                    )
                )
            yield Answer(units, predictions, self.source.unseen_units(units), len(units) < len(source))


def _tokenizer(name: str, side: str, read: Callable[[str], str]) -> Tokenizer:
    if name != "subword":
        return SeparatorTokenizer(name)
    from regard.data.subwords import SubwordTokenizer

    return SubwordTokenizer.from_json(read(f"{side}.tokenizer.json"))


def _model(*, kind: str = "recurrent", **sizes: Any) -> Seq2Seq:
    """Build a new model from the entries of config.json; in old files without a kind it is recurrent."""
    if kind not in CONFIGS:
        raise RunError(f"model: expected one of the kinds {', '.join(CONFIGS)}, got {kind!r}")
    return CONFIGS[kind](**sizes).build()


def max_target_lengths(lengths: Tensor, ratio: float) -> Tensor:
    """Return the maximum number of symbols of answers to sources of these lengths: 10 + ratio · length.

    >>> import torch
    >>> max_target_lengths(torch.tensor([2, 7]), 1.5)
    tensor([13, 21])
    """
    return 10 + (lengths * ratio).ceil().long()


def max_length_ratio(lengths: Iterable[tuple[int, int]]) -> float:
    """Return the largest ratio of target to source length.

    >>> max_length_ratio([(4, 4), (2, 5)])
    2.5
    """
    return max((target / source for source, target in lengths), default=1.0)
