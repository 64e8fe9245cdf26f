"""A run directory: a trained model with everything needed to use it.

config.json               format, sizes of the model, units, and how it was trained
source.vocabulary.json    the units of each side, sorted
target.vocabulary.json
model.safetensors         the best weights so far
log.csv, scores.json      what training measured
resume.ckpt               there while training can be resumed
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from regard import __version__
from regard.errors import RegardError, RunError
from regard.models import CONFIGS, Seq2Seq, beam_search, build
from regard.models.pretrained import plain_weights
from regard.training.batches import pad
from regard.training.data import Example, Units
from regard.training.files import write, writing
from regard.training.metrics import Scores, score
from regard.training.vocabulary import Vocabulary

__all__ = ["FORMAT", "Answer", "Run", "Search", "growth", "limits"]

FORMAT = 1
_WINDOW = 2048  # lines that are sorted by length together


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
class Run:
    """A trained sequence-to-sequence model: the network, both vocabularies and units, and how it came about.

    ``growth`` is the largest share of target to source units in training; see `limits`.
    """

    model: Seq2Seq
    source: Vocabulary
    target: Vocabulary
    source_units: Units
    target_units: Units
    max_length: int
    growth: float
    training: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: str | Path, *, trained: bool = True) -> Run:
        """Open a run directory, ready to predict; `RunError` when it is missing, damaged, or of a newer version.

        With ``trained=False`` the model is a new one: training can be resumed before there are weights to keep.
        """
        directory = Path(directory)
        config = _read_config(directory)
        try:
            source, target = (
                Vocabulary.from_json(_read(directory / f"{side}.vocabulary.json")) for side in ("source", "target")
            )
            model = _model(**config["model"])
            run = cls(
                model,
                source,
                target,
                Units(config["source_units"]),
                Units(config["target_units"]),
                int(config["max_length"]),
                float(config["growth"]),
                dict(config["training"]),
            )
            if run.max_length < 1 or run.growth <= 0:
                raise RunError("max_length and growth are not above 0 in config.json")
            if (len(source), len(target)) != (model.config.source_size, model.config.target_size):
                raise RunError("the vocabularies do not have the sizes that config.json names")
            weights = directory / "model.safetensors"
            if trained and not weights.exists():
                raise RunError("model.safetensors is not there: training was stopped before it had a model to keep")
            if trained:
                model.load_state_dict(load_file(weights))
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError, OSError, RegardError) as error:
            reason = " ".join(f"{'no ' if isinstance(error, KeyError) else ''}{error}".split())
            raise RunError(f"{directory}: the run is damaged ({reason}); restore it, or train again") from error
        model.eval()
        return run

    @property
    def unit_error(self) -> str:
        """What errors per unit of the target are called: CER for characters, PER for phones and the like."""
        return "CER" if self.target_units.name == "chars" else "PER"

    def create(self, directory: Path) -> None:
        """Make the directory and write all but the weights."""
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._write_text(directory / "source.vocabulary.json", self.source.to_json())
        self._write_text(directory / "target.vocabulary.json", self.target.to_json())
        config = {
            "format": FORMAT,
            "regard": __version__,
            "task": "seq2seq",
            "model": {"kind": self.model.config.kind, **asdict(self.model.config)},
            "source_units": self.source_units.name,
            "target_units": self.target_units.name,
            "max_length": self.max_length,
            "growth": self.growth,
            "training": self.training,
        }
        self._write_text(directory / "config.json", json.dumps(config, indent=2) + "\n")

    def save_weights(self, directory: Path) -> None:
        """Replace the weights by the model's."""
        content = save(plain_weights(self.model))
        write(directory / "model.safetensors", lambda path: path.write_bytes(content))

    @staticmethod
    def _write_text(path: Path, text: str) -> None:
        write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def predict(self, lines: Iterable[str], search: Search = Search()) -> Iterator[Answer]:
        """An answer for each line, in order; the lines are read as they are needed."""
        return self.predict_units((self.source_units.split(line) for line in lines), search)

    def predict_units(self, sources: Iterable[Sequence[str]], search: Search = Search()) -> Iterator[Answer]:
        """The same for sources that are cut into units already."""
        sources = iter(sources)
        while window := list(islice(sources, _WINDOW)):
            yield from self._predict_window(window, search)

    def score(self, examples: Sequence[Example], search: Search = Search()) -> Scores:
        """Compare the best answers with the references."""
        self.model.eval()
        answers = self.predict_units([example.source for example in examples], search)
        return score([answer.predictions[0].units for answer in answers], [example.target for example in examples])

    def _predict_window(self, sources: Sequence[Sequence[str]], search: Search) -> list[Answer]:
        order = sorted((i for i, source in enumerate(sources) if source), key=lambda i: len(sources[i]), reverse=True)
        answers = [Answer([], [])] * len(sources)
        while order:
            longest = min(len(sources[order[0]]), self.max_length)
            size = max(1, search.batch_tokens // max(1, longest * search.beam))
            rows, order = order[:size], order[size:]
            for row, answer in zip(rows, self._predict_batch([sources[i] for i in rows], search), strict=True):
                answers[row] = answer
        return answers

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
                answer = self.target.decode(hypothesis.symbols)
                predictions.append(
                    Prediction(
                        self.target_units.join(answer),
                        answer,
                        hypothesis.score,
                        hypothesis.log_prob,
                        hypothesis.finished,
                        hypothesis.weights,
                    )
                )
            yield Answer(units, predictions, self.source.unseen(units), len(units) < len(source))


def _model(*, kind: str = "recurrent", **sizes: Any) -> Seq2Seq:
    """A new model by what config.json says of it; there were no kinds before there was more than one."""
    if kind not in CONFIGS:
        raise RunError(f"model: expected a kind of {', '.join(CONFIGS)}, got {kind!r}")
    return build(CONFIGS[kind](**sizes))


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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _read_config(directory: Path) -> dict[str, Any]:
    if not (directory / "config.json").is_file():
        what = "there is no config.json in it" if directory.is_dir() else "there is no such folder"
        raise RunError(f"{directory}: expected a run directory, but {what}; `regard train --out {directory}` makes one")
    try:
        config = json.loads(_read(directory / "config.json"))
    except (ValueError, RecursionError, RunError) as error:
        raise RunError(f"{directory}: config.json is damaged ({error}); restore it, or train again") from error
    written = config.get("format") if isinstance(config, dict) else None
    if not isinstance(written, int):
        raise RunError(
            f"{directory}: config.json has no format number, so it is not of a run; restore it, or train again"
        )
    if written > FORMAT:
        raise RunError(
            f"{directory}: written by a newer regard ({config.get('regard')}, format {written}; "
            f"this one reads up to {FORMAT}); upgrade with: pip install -U regard"
        )
    return dict(config)
