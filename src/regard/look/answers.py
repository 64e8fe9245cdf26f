"""From the answers of a run to pictures of their attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from regard.look.plots import Alignment

if TYPE_CHECKING:
    from regard.training.run import Answer, Run

__all__ = ["pictures"]


def pictures(run: Run, answers: Iterable[Answer]) -> list[Alignment]:
    """One picture for each prediction that comes with weights; the step that ends it is its last row."""
    return [
        Alignment(
            prediction.weights,
            [*prediction.units, *(["<eos>"] if prediction.finished else [])],
            answer.units,
            run.source_units.join(answer.units),
        )
        for answer in answers
        for prediction in answer.predictions
        if prediction.weights is not None
    ]
