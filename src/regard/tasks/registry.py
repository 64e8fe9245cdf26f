"""The registry of tasks: the class of run for each name, and opening a run of any task."""

from __future__ import annotations

from pathlib import Path

from regard.errors import RunError
from regard.tasks.classify import ClassifyRun
from regard.tasks.run import Run, read_config
from regard.tasks.seq2seq import Seq2SeqRun
from regard.tasks.tag import TagRun

__all__ = ["RUN_CLASSES", "open_run"]

RUN_CLASSES: dict[str, type[Run]] = {run.task: run for run in (Seq2SeqRun, TagRun, ClassifyRun)}


def open_run(directory: str | Path, *, trained: bool = True) -> Run:
    """Open a run directory of any task, ready to predict; see `Run.load`."""
    task = read_config(Path(directory))["task"]
    if task not in RUN_CLASSES:
        raise RunError(
            f"{directory}: expected one of the tasks {', '.join(RUN_CLASSES)}, got {task!r}; "
            f"restore config.json, or train again"
        )
    return RUN_CLASSES[task].load(directory, trained=trained)
