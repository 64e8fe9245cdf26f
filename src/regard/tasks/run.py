"""A run: a trained model with everything needed to use it, and its directory.

config.json               format, task, sizes of the model, settings of the task, and how the model was trained
*.vocabulary.json, ...    files of the task
model.safetensors         the best weights so far
log.csv, scores.json      measurements of the training
resume.ckpt               exists while training can be resumed
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from regard._files import disk_errors, write_atomically
from regard._version import __version__
from regard._wording import counted_noun, first_few
from regard.errors import RegardError, RunError
from regard.models.pretrained import plain_weights

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.splits import Split
    from regard.tasks.metrics import Scores

__all__ = ["FORMAT", "Run", "read_config", "unseen_note"]

FORMAT = 1


class Run(ABC):
    """A trained model of one task: the network, the map between texts and its ids, and how it was trained.

    A task defines the abstract methods; training and all commands use only these. `read` returns examples, `encode`
    turns them into tuples of ids, which are stored in memory or on disk, and `collate` turns these into batches for
    `loss`.
    """

    task: ClassVar[str]
    model: Any  # an nn.Module with a config
    training: dict[str, Any]

    @abstractmethod
    def files(self) -> dict[str, str]:
        """Return the text files beside config.json, by name."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the task's entries of config.json."""

    @classmethod
    @abstractmethod
    def restore(cls, config: dict[str, Any], read: Callable[[str], str]) -> Self:
        """Build a run with a new model from the entries of config.json; ``read`` returns the text of a named file."""

    @abstractmethod
    def read(self, path: str) -> Split:
        """Read the examples of a file in the same way as those of training."""

    @abstractmethod
    def unseen_notes(self, examples: Sequence[Any]) -> list[str]:
        """Return notes for the user on units, tags or labels of the examples that did not occur in training."""

    @abstractmethod
    def encode(self, examples: Sequence[Any]) -> list[Any]:
        """Return examples as tuples of ids; each depends on its example alone."""

    @abstractmethod
    def lengths(self, encoded: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Return the lengths of both sides of each encoded example; 0 for a side that the task does not have."""

    @abstractmethod
    def collate(self, encoded: Sequence[Any]) -> Any:
        """Return a batch of encoded examples."""

    @abstractmethod
    def loss(self, batch: Any, smoothing: float) -> tuple[Tensor, int]:
        """Return the cross-entropy with label smoothing, summed over the targets of a batch, and their number."""

    @abstractmethod
    def score(self, examples: Sequence[Any], *, confidence: bool = False) -> Scores:
        """Score the model on examples, quickly: training chooses the best model by this."""

    def test(self, examples: Sequence[Any]) -> Scores:
        """Score the finished model on test examples, more slowly if that gives better answers."""
        return self.score(examples)

    @classmethod
    def load(cls, directory: str | Path, *, trained: bool = True) -> Self:
        """Open a run directory of this task, ready to predict.

        With ``trained=False`` the model is a new one, so that training can resume before any weights were saved.
        Raises `RunError` if the directory is missing, damaged, or of another task.
        """
        directory = Path(directory)
        config = read_config(directory)
        if config["task"] != cls.task:
            raise RunError(
                f"{directory}: expected a run of the task {cls.task}, found one of {config['task']}; "
                f"open it with regard.tasks.open_run"
            )
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
        """Load the weights in the directory."""
        weights = directory / "model.safetensors"
        if not weights.exists():
            raise RunError("no model.safetensors: training was stopped before it saved a model")
        self.model.load_state_dict(load_file(weights))

    def save_weights(self, directory: Path) -> None:
        """Replace the weights in the directory."""
        content = save(plain_weights(self.model))
        write_atomically(directory / "model.safetensors", lambda path: path.write_bytes(content))

    def create(self, directory: Path) -> None:
        """Make the directory and write everything except the weights."""
        with disk_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        for name, text in self.files().items():
            _write(directory / name, text)
        config = {**self.description(), "training": self.training}
        _write(directory / "config.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")

    def description(self) -> dict[str, Any]:
        """Return the entries of config.json that describe the model, without those about its training."""
        model = {"kind": self.model.config.kind, **asdict(self.model.config)}
        return {"regard": __version__, "task": self.task, "model": model, **self.settings()}


def unseen_note(found: Iterable[str], known: Iterable[str], noun: str, effect: str) -> list[str]:
    """Return a note with the number and names of those that did not occur in training, or no note.

    >>> unseen_note(["a", "b", "b"], ["a"], "tag", "counted as errors")
    ['1 tag that did not occur in training, counted as errors: b']
    """
    unseen = sorted(set(found).difference(known))
    if not unseen:
        return []
    return [f"{counted_noun(len(unseen), noun)} that did not occur in training, {effect}: {first_few(unseen)}"]


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_config(directory: Path) -> dict[str, Any]:
    """Return the entries of config.json, always with the task; `RunError` if there is no readable run."""
    if not (directory / "config.json").is_file():
        found = "no config.json in it" if directory.is_dir() else "no such folder"
        raise RunError(
            f"{directory}: expected a run directory, found {found}; `regard train --out {directory}` creates one"
        )
    try:
        config = json.loads(_read(directory / "config.json"))
    except (ValueError, RecursionError, RunError) as error:
        raise RunError(f"{directory}: config.json is damaged ({error}); restore it, or train again") from error
    written = config.get("format") if isinstance(config, dict) else None
    if not isinstance(written, int):
        raise RunError(
            f"{directory}: expected the config.json of a run, found one without a format number; "
            "restore it, or train again"
        )
    if written > FORMAT:
        raise RunError(
            f"{directory}: written by a newer regard ({config.get('regard')}, format {written}; "
            f"this one reads up to {FORMAT}); upgrade with: pip install -U regard"
        )
    return {"task": "seq2seq", **config}  # earlier versions had a single task and did not name it
