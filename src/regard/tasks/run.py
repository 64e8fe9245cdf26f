"""A run directory: a trained model with everything needed to use it, whatever its task.

config.json               format, task, sizes of the model, what the task needs, and how it was trained
*.vocabulary.json, ...    the task's own files
model.safetensors         the best weights so far
log.csv, scores.json      what training measured
resume.ckpt               there while training can be resumed
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from regard._files import disk_errors, write_atomically
from regard._version import __version__
from regard.errors import RegardError, RunError
from regard.models.pretrained import plain_weights

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.splits import Split
    from regard.tasks.metrics import Scores

__all__ = ["FORMAT", "Run", "in_windows", "read_config"]

FORMAT = 1
_WINDOW = 2048  # inputs that are sorted by length together

Input = TypeVar("Input")
Output = TypeVar("Output")


class Run(ABC):
    """A trained model of one task: the network, what turns texts into its ids and back, and how it came about.

    What a task defines is what training, and every command, asks of a run. Examples are whatever the task's reader
    gives; what `encode` makes of them is held in memory, or on disk, and goes through `collate` to `loss`.
    """

    task: ClassVar[str]
    model: Any  # an nn.Module with a config
    training: dict[str, Any]

    @abstractmethod
    def files(self) -> dict[str, str]:
        """The text files beside config.json, by name."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The task's entries of config.json."""

    @classmethod
    @abstractmethod
    def restore(cls, config: dict[str, Any], read: Callable[[str], str]) -> Self:
        """A run with a new model, by the entries of config.json; ``read`` gives the text of a file by its name."""

    @abstractmethod
    def read(self, path: str) -> Split:
        """The examples of a file, read as those of training were, and what is to be said."""

    @abstractmethod
    def unseen(self, split: Split) -> list[str]:
        """What is to be said of examples that hold what training never saw."""

    @abstractmethod
    def encode(self, examples: Sequence[Any]) -> list[Any]:
        """Examples as tuples of ids; each by itself, so that they can be encoded in parts."""

    @abstractmethod
    def lengths(self, encoded: Sequence[Any]) -> tuple[list[int], list[int]]:
        """How long the two sides of each encoded example are; 0 for a side that the task does not have."""

    @abstractmethod
    def collate(self, encoded: Sequence[Any]) -> Any:
        """A batch of encoded examples."""

    @abstractmethod
    def loss(self, batch: Any, smoothing: float) -> tuple[Tensor, int]:
        """Cross-entropy with label smoothing, summed over the targets of a batch, and how many targets these are."""

    @abstractmethod
    def score(self, examples: Sequence[Any], *, confidence: bool = False) -> Scores:
        """How right the model is on examples, as quickly as can be told: what the best model is chosen by."""

    def test(self, examples: Sequence[Any]) -> Scores:
        """The same when the model takes its time, where a task lets it: what is said of it in the end."""
        return self.score(examples)

    @classmethod
    def load(cls, directory: str | Path, *, trained: bool = True) -> Self:
        """Open a run directory of this task, ready to predict; `RunError` when it is missing, damaged, or another's.

        With ``trained=False`` the model is a new one: training can be resumed before there are weights to keep.
        """
        directory = Path(directory)
        config = read_config(directory)
        if config["task"] != cls.task:
            raise RunError(f"{directory}: expected a run of the task {cls.task}, this one is of {config['task']}")
        try:
            run = cls.restore(config, lambda name: _read(directory / name))
            if trained:
                run.load_weights(directory)
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError, OSError, RegardError) as error:
            reason = " ".join(f"{'no ' if isinstance(error, KeyError) else ''}{error}".split())
            raise RunError(f"{directory}: the run is damaged ({reason}); restore it, or train again") from error
        run.model.eval()
        return run

    def load_weights(self, directory: Path) -> None:
        """Give the model the weights that are kept."""
        weights = directory / "model.safetensors"
        if not weights.exists():
            raise RunError("model.safetensors is not there: training was stopped before it had a model to keep")
        self.model.load_state_dict(load_file(weights))

    def save_weights(self, directory: Path) -> None:
        """Replace the weights that are kept by the model's."""
        content = save(plain_weights(self.model))
        write_atomically(directory / "model.safetensors", lambda path: path.write_bytes(content))

    def create(self, directory: Path) -> None:
        """Make the directory and write all but the weights."""
        with disk_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        for name, text in self.files().items():
            _write(directory / name, text)
        config = {**self.description(), "training": self.training}
        _write(directory / "config.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")

    def description(self) -> dict[str, Any]:
        """What config.json says of the model, but for how it was trained."""
        model = {"kind": self.model.config.kind, **asdict(self.model.config)}
        return {"regard": __version__, "task": self.task, "model": model, **self.settings()}


def in_windows(
    inputs: Iterable[Input],
    length: Callable[[Input], int],
    fitting: Callable[[int], int],
    answer: Callable[[list[Input]], Iterable[Output]],
    empty: Output,
) -> Iterator[Output]:
    """An output for each input, in order; inputs are read as they are needed, and answered in batches of like length.

    ``fitting`` tells how many inputs of a length make a batch; an input of length 0 is not asked about: it is
    answered by ``empty``.

    >>> list(in_windows(["abc", "", "d", "ef"], len, lambda n: 6 // n, lambda batch: [len(batch)] * len(batch), 0))
    [2, 0, 1, 2]
    """
    for window in _windows(iter(inputs)):
        lengths = [length(one) for one in window]
        order = sorted((i for i, n in enumerate(lengths) if n), key=lengths.__getitem__, reverse=True)
        outputs = [empty] * len(window)
        while order:
            size = max(1, fitting(lengths[order[0]]))
            rows, order = order[:size], order[size:]
            for row, output in zip(rows, answer([window[i] for i in rows]), strict=True):
                outputs[row] = output
        yield from outputs


def _windows(inputs: Iterator[Input]) -> Iterator[list[Input]]:
    """The inputs, some at a time; where reading fails, what was read before comes first, then the error."""
    window: list[Input] = []
    try:
        for one in inputs:
            window.append(one)
            if len(window) == _WINDOW:
                yield window
                window = []
    except RegardError:
        yield window
        raise
    if window:
        yield window


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_config(directory: Path) -> dict[str, Any]:
    """The entries of config.json, the task among them; `RunError` when there is no run, or none that can be read."""
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
    return {"task": "seq2seq", **config}  # before there was more than one task, none was named
