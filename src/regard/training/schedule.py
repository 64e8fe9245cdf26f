"""The learning rate over the course of training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.training.settings import TrainingSettings

__all__ = ["learning_rate"]


def learning_rate(step: int, progress: float, settings: TrainingSettings) -> float:
    """Return the learning rate of update ``step`` (from 0) at ``progress``, the fraction of training done.

    η(step, p) = η_max · min(1, (step + 1) / warmup) · (0.02 + 0.98 · (1 + cos πp) / 2)

    Linear warmup, then half a cosine. The cosine follows progress rather than updates, so that training for a number of
    minutes needs no number of updates in advance.

    Source: the cosine is that of Loshchilov & Hutter 2017, "SGDR", arXiv 1608.03983, equation 5, without restarts.

    >>> from regard.training import TrainingSettings
    >>> settings = TrainingSettings(epochs=1, learning_rate=1.0, warmup=10)
    >>> points = ((0, 0.0), (9, 0.0), (50, 0.5), (100, 1.0))
    >>> [round(learning_rate(step, progress, settings), 3) for step, progress in points]
    [0.1, 1.0, 0.51, 0.02]
    """
    climbed = min(1.0, (step + 1) / max(1, settings.warmup))
    fallen = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return settings.learning_rate * climbed * fallen
