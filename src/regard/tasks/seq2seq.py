"""Sequence to sequence: texts in, texts out, looked for with a beam."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from regard._symbols import PAD
from regard.data.batches import Batch, Encoded, collate, encode, pad
from regard.data.pair_columns import PLAIN, Normal, check_columns, compose
from regard.data.pairs import Example, Pairs, Units, read_pairs, split_source, unseen_notes, vocabularies
from regard.data.vocabulary import Vocabulary
from regard.errors import RunError
from regard.models import CONFIGS, Config, Seq2Seq, TransformerConfig, beam_search
from regard.tasks.metrics import Scores, score_texts, score_units
from regard.tasks.run import Run, in_windows

if TYPE_CHECKING:
    from regard.data.subwords import Subwords

__all__ = ["Answer", "Prediction", "Search", "Seq2SeqRun", "growth", "limits"]


@dataclass(frozen=True)
class Search:
    """How answers are looked for: width of the beam, how many to give, length penalty, with weights or without."""

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 0.0
    weights: bool = False
    batch_tokens: int = 4096


@dataclass(frozen=True)
class Prediction:
    """One hypothesis as text: its score (log probability over length to the power of the penalty) and its attention.

    ``weights`` (steps, source units), or (layers, heads, steps, source units), have one step more than there are units
    when the hypothesis is ``finished``: the step that ends it.
    """

    text: str
    units: list[str]
    score: float
    log_prob: float
    finished: bool
    weights: Tensor | None


@dataclass(frozen=True)
class Answer:
    """What a run makes of one line: predictions, best first; none for a blank line.

    ``unseen`` counts units that training never saw, ``cut`` tells that the line was longer than the run takes.
    """

    units: list[str]
    predictions: list[Prediction]
    unseen: int = 0
    cut: bool = False


@dataclass
class Seq2SeqRun(Run):
    """A trained sequence-to-sequence model: the network, both vocabularies and units, and how it came about.

    ``growth`` is the largest share of target to source units in training; see `limits`.
    """

    task: ClassVar[str] = "seq2seq"

    model: Seq2Seq
    source: Vocabulary
    target: Vocabulary
    source_units: Units | Subwords
    target_units: Units | Subwords
    max_length: int
    growth: float
    columns: tuple[str, ...] = PLAIN
    normal: Normal = "none"
    training: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def new(cls, pairs: Pairs, config: Config, *, max_length: int, seed: int, shared: bool = False) -> Self:
        """A run with a new model for these pairs; the sizes and lengths of ``config`` become those of the data.

        ``shared`` gives both sides one vocabulary.
        """
        source, target = vocabularies(pairs, shared=shared)
        share = growth((len(a), len(b)) for a, b in pairs.examples)
        sizes: dict[str, Any] = {"source_size": len(source), "target_size": len(target)}
        if isinstance(config, TransformerConfig):  # whose positions may be learned, each by itself, up to the longest
            sizes["max_length"] = max(1 + max_length, int(limits(torch.tensor(max_length), share)))
        torch.manual_seed(seed)
        model = replace(config, **sizes).build()
        units = (pairs.source_units, pairs.target_units)
        return cls(model, source, target, *units, max_length, share, pairs.columns, pairs.normal)

    def files(self) -> dict[str, str]:
        sides = {"source": (self.source, self.source_units), "target": (self.target, self.target_units)}
        files = {f"{side}.vocabulary.json": vocabulary.to_json() for side, (vocabulary, _) in sides.items()}
        learnt = {side: units for side, (_, units) in sides.items() if not isinstance(units, Units)}
        return files | {f"{side}.tokenizer.json": units.to_json() for side, units in learnt.items()}

    def settings(self) -> dict[str, Any]:
        return {
            "source_units": self.source_units.name,
            "target_units": self.target_units.name,
            "max_length": self.max_length,
            "growth": self.growth,
            "columns": list(self.columns),
            "normal": self.normal,
        }

    @classmethod
    def restore(cls, config: dict[str, Any], read: Callable[[str], str]) -> Self:
        source, target = (Vocabulary.from_json(read(f"{side}.vocabulary.json")) for side in ("source", "target"))
        model = _model(**config["model"])
        run = cls(
            model,
            source,
            target,
            _units(config["source_units"], "source", read),
            _units(config["target_units"], "target", read),
            max_length=int(config["max_length"]),
            growth=float(config["growth"]),
            columns=check_columns(config.get("columns", PLAIN)),
            normal=config.get("normal", "none"),
            training=dict(config["training"]),
        )
        if run.max_length < 1 or run.growth <= 0:
            raise RunError("max_length and growth are not above 0 in config.json")
        if (len(source), len(target)) != (model.config.source_size, model.config.target_size):
            raise RunError("the vocabularies do not have the sizes that config.json names")
        return run

    def read(self, path: str) -> Pairs:
        return read_pairs(
            path,
            self.source_units,
            self.target_units,
            columns=self.columns,
            normal=self.normal,
            max_length=self.max_length,
        )

    def unseen(self, split: Pairs) -> list[str]:  # type: ignore[override]  # it gets what it has read
        return unseen_notes(split, self.source, self.target)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        return encode(examples, self.source, self.target)

    def lengths(self, encoded: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        return [len(example.source) for example in encoded], [len(example.target) + 2 for example in encoded]

    def collate(self, encoded: Sequence[Encoded]) -> Batch:
        return collate(encoded)

    def loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        """Of the target symbols, EOS included, given the true ones before each (teacher forcing)."""
        logits = self.model(batch.source, batch.source_lengths, batch.target[:, :-1])
        wanted = batch.target[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted, ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
        )
        return loss, int((wanted != PAD).sum())

    @property
    def unit_error(self) -> str:
        """What errors per unit of the target are called: CER for characters, PER for phones and the like."""
        return "CER" if self.target_units.name == "chars" else "PER"

    def predict(self, lines: Iterable[str], search: Search = Search()) -> Iterator[Answer]:
        """An answer for each line, in order; the lines are read as they are needed."""
        return self.predict_units(map(self.split, lines), search)

    def split(self, line: str) -> list[str]:
        """The units of a line that asks for an answer: a source, or SOURCE TAB FEATURES."""
        return split_source(line, self.source_units, self.columns, self.normal)

    def predict_units(self, sources: Iterable[Sequence[str]], search: Search = Search()) -> Iterator[Answer]:
        """The same for sources that are cut into units already."""

        def fitting(length: int) -> int:
            return search.batch_tokens // (min(length, self.max_length) * search.beam)

        return in_windows(sources, len, fitting, lambda batch: self._predict_batch(batch, search), Answer([], []))

    def score(
        self, examples: Sequence[Example], search: Search = Search(beam=1), *, confidence: bool = False
    ) -> Scores:
        """Compare the best answers with the references: unit by unit, or as texts by BLEU where units are subwords."""
        self.model.eval()
        answers = self.predict_units([example.source for example in examples], search)
        outputs = [answer.predictions[0].units for answer in answers]
        references = [example.target for example in examples]
        if isinstance(self.target_units, Units):
            return score_units(outputs, references, self.unit_error, confidence=confidence)
        return score_texts(self._texts(outputs), self._texts(references), confidence=confidence)

    def test(self, examples: Sequence[Example]) -> Scores:
        return self.score(examples, Search())

    def _texts(self, targets: Iterable[Sequence[str]]) -> list[str]:
        return [compose(self.target_units.join(units), self.normal) for units in targets]

    def _predict_batch(self, sources: Sequence[Sequence[str]], search: Search) -> Iterator[Answer]:
        kept = [list(source[: self.max_length]) for source in sources]
        ids, lengths = pad([self.source.encode(source) for source in kept])
        device = next(self.model.parameters()).device
        found = beam_search(
            self.model,
            ids.to(device),
            lengths.to(device),
            max_lengths=limits(lengths, self.growth),
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
                        compose(self.target_units.join(answer), self.normal),
                        answer,
                        hypothesis.score,
                        hypothesis.log_prob,
                        hypothesis.finished,
                        hypothesis.weights,
                    )
                )
            yield Answer(units, predictions, self.source.unseen(units), len(units) < len(source))


def _units(name: str, side: str, read: Callable[[str], str]) -> Units | Subwords:
    if name != "subword":
        return Units(name)
    from regard.data.subwords import Subwords

    return Subwords.from_json(read(f"{side}.tokenizer.json"))


def _model(*, kind: str = "recurrent", **sizes: Any) -> Seq2Seq:
    """A new model by what config.json says of it; there were no kinds before there was more than one."""
    if kind not in CONFIGS:
        raise RunError(f"model: expected a kind of {', '.join(CONFIGS)}, got {kind!r}")
    return CONFIGS[kind](**sizes).build()


def limits(lengths: Tensor, growth: float) -> Tensor:
    """After how many symbols answers to sources of these lengths are broken off: 10 + growth · length.

    >>> import torch
    >>> limits(torch.tensor([2, 7]), 1.5)
    tensor([13, 21])
    """
    return 10 + (lengths * growth).ceil().long()


def growth(lengths: Iterable[tuple[int, int]]) -> float:
    """The largest share of target to source length, with room above it left to the caller.

    >>> growth([(4, 4), (2, 5)])
    2.5
    """
    return max((target / source for source, target in lengths), default=1.0)
