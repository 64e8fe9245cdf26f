"""Hyperparameters of training and their defaults for each task; imports no torch, so that help texts can name them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from regard.errors import ArgumentError

__all__ = ["TrainingSettings", "training_defaults"]


@dataclass(frozen=True)
class TrainingSettings:
    """A description of one training: for so many minutes or so many epochs, with AdamW.

    ``batch_tokens`` bounds B · (longest source + longest target). `learning_rate` (the schedule) climbs to
    ``learning_rate`` over ``warmup`` updates and falls to 2 % of it. ``clip`` bounds the norm of the gradient.
    ``average`` is the decay of the exponential moving average of the weights, which is the model that is kept. It is
    scored on the dev set ``evaluations`` times; after ``patience`` scores in a row without a better one training stops.

    >>> TrainingSettings.for_task("seq2seq").minutes, TrainingSettings.for_task("classify", epochs=3).label_smoothing
    (2.0, 0.1)
    """

    minutes: float | None = None
    epochs: int | None = None
    learning_rate: float = 3e-3
    warmup: int = 200
    batch_tokens: int = 1200
    weight_decay: float = 0.01
    label_smoothing: float = 0.05
    clip: float = 1.0
    average: float = 0.998
    evaluations: int = 12
    patience: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.epochs is None):
            raise ArgumentError("expected one of minutes and epochs; give exactly one")
        if (self.minutes or self.epochs or 0) <= 0:
            raise ArgumentError(f"expected a time above 0, got minutes={self.minutes}, epochs={self.epochs}")
        for name in ("learning_rate", "batch_tokens", "clip", "evaluations", "patience"):
            if getattr(self, name) <= 0:
                raise ArgumentError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        for name in ("warmup", "weight_decay"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"{name}: expected a number of at least 0, got {getattr(self, name)}")
        for name in ("label_smoothing", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ArgumentError(f"{name}: expected a number from 0 to below 1, got {getattr(self, name)}")

    @classmethod
    def for_task(cls, task: str, model: str = "recurrent", **chosen: Any) -> Self:
        """Return the default settings of a task and kind of model, with the ``chosen`` ones in place of theirs."""
        defaults = training_defaults(task, model)
        if chosen.keys() & {"minutes", "epochs"}:
            del defaults["minutes"], defaults["epochs"]
        return cls(**{**defaults, **chosen})


# Where a task, or a task's kind of model, differs from the defaults above.
_BY_TASK: dict[str, dict[str, Any]] = {
    "seq2seq": {"minutes": 2.0},
    "tag": {"epochs": 10, "batch_tokens": 500},
    # A small data set is learned by heart when it is read more often
    "classify": {"epochs": 8, "batch_tokens": 600, "label_smoothing": 0.1, "warmup": 100},
}
_BY_MODEL: dict[tuple[str, str], dict[str, Any]] = {("seq2seq", "transformer"): {"warmup": 300}}


def training_defaults(task: str, model: str) -> dict[str, Any]:
    """Return the default of each field of `TrainingSettings` for a task and kind of model."""
    if task not in _BY_TASK:
        raise ArgumentError(f"task: expected one of {', '.join(map(repr, _BY_TASK))}, got {task!r}")
    general = {field.name: field.default for field in fields(TrainingSettings)}
    return {**general, **_BY_TASK[task], **_BY_MODEL.get((task, model), {})}
