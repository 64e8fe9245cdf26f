"""Hyperparameters of training and their defaults for each task, without torch, so that the help can show them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from regard.errors import ArgumentError

__all__ = ["TrainingSettings", "training_defaults"]


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of one training with AdamW, for a number of minutes or of epochs.

    ``batch_tokens`` bounds B · (longest source + longest target). The learning rate rises to
    ``learning_rate`` over ``warmup`` updates and falls to 2 % of it. ``clip`` bounds the norm of the gradient.
    ``average`` is the decay of the exponential moving average of the weights. The averaged model is scored on the dev
    set ``evaluations`` times, and the best one is saved; training stops after ``patience`` consecutive scores without a
    better one.

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
            got = "neither" if self.minutes is None else "both"
            raise ArgumentError(f"expected either minutes or epochs, got {got}; set exactly one")
        length = "epochs" if self.minutes is None else "minutes"
        for name in (length, "learning_rate", "batch_tokens", "clip", "evaluations", "patience"):
            if getattr(self, name) <= 0:
                raise ArgumentError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        for name in ("warmup", "weight_decay"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"{name}: expected a number of at least 0, got {getattr(self, name)}")
        for name in ("label_smoothing", "average"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ArgumentError(f"{name}: expected a number of at least 0 and below 1, got {value}")

    @classmethod
    def for_task(cls, task: str, model: str = "recurrent", **chosen: Any) -> Self:
        """Return the settings of a task and kind of model: its defaults, replaced by the ``chosen`` ones."""
        defaults = training_defaults(task, model)
        if chosen.keys() & {"minutes", "epochs"}:
            del defaults["minutes"], defaults["epochs"]
        return cls(**{**defaults, **chosen})


# Differences of a task, or of a kind of model, from the defaults above
_BY_TASK: dict[str, dict[str, Any]] = {
    "seq2seq": {"minutes": 2.0},
    "tag": {"epochs": 10, "batch_tokens": 500},
    # With more epochs a small data set is memorised
    "classify": {"epochs": 8, "batch_tokens": 600, "label_smoothing": 0.1, "warmup": 100},
}
_BY_MODEL: dict[tuple[str, str], dict[str, Any]] = {("seq2seq", "transformer"): {"warmup": 300}}


def training_defaults(task: str, model: str) -> dict[str, Any]:
    """Return the default of each field of `TrainingSettings` for a task and kind of model."""
    if task not in _BY_TASK:
        raise ArgumentError(f"task: expected one of {', '.join(map(repr, _BY_TASK))}, got {task!r}")
    general = {field.name: field.default for field in fields(TrainingSettings)}
    return {**general, **_BY_TASK[task], **_BY_MODEL.get((task, model), {})}
