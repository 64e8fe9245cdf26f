"""The tasks there are, and opening a run whatever its task."""

from __future__ import annotations

from pathlib import Path

from regard.errors import RunError
from regard.tasks.classify import ClassifyRun
from regard.tasks.run import Run, read_config
from regard.tasks.seq2seq import Seq2SeqRun
from regard.tasks.tag import TagRun

__all__ = ["TASKS", "open_run"]

TASKS: dict[str, type[Run]] = {run.task: run for run in (Seq2SeqRun, TagRun, ClassifyRun)}


def open_run(directory: str | Path, *, trained: bool = True) -> Run:
    """Open a run directory, ready to predict; as `Run.load` of its task does."""
    task = read_config(Path(directory))["task"]
    if task not in TASKS:
        raise RunError(f"{directory}: expected a task of {', '.join(TASKS)}, got {task!r}; restore it, or train again")
    return TASKS[task].load(directory, trained=trained)
