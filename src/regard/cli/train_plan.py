"""The plan of one `regard train`: its options, checked and sorted by purpose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.training import TrainingSettings

__all__ = ["LARGE_DATA", "DataSources", "TrainPlan"]

LARGE_DATA = 2**28  # bytes; in memory, units and ids take about twenty times as many


@dataclass(frozen=True)
class DataSources:
    """The files of examples, recorded in a run so that training can be resumed.

    Without ``data`` the examples are English pronunciation, with or without ``stress`` marks.
    """

    data: str | None = None
    dev: str | None = None
    test: str | None = None
    stress: bool = False
    on_disk: bool = False


@dataclass(frozen=True)
class TrainPlan:
    """A new run: its task and kind of model, where its data come from, and how it is trained.

    ``reading`` are the keyword arguments of the task's `read`, ``sizes`` the model's options that were chosen.
    """

    task: str
    model: str
    sources: DataSources
    reading: dict[str, Any]
    sizes: dict[str, Any]
    settings: TrainingSettings
    out: Path | None
