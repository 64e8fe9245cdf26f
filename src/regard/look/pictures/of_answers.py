"""From the answers of a run to pictures of their attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from regard.data.pairs import source_text
from regard.look.pictures.heat_maps import Alignment

if TYPE_CHECKING:
    from regard.tasks.seq2seq import Answer, Prediction, Seq2SeqRun

__all__ = ["grids", "pictures", "source_labels", "target_labels"]


def pictures(run: Seq2SeqRun, answers: Iterable[Answer]) -> list[Alignment]:
    """One picture for each prediction that comes with weights; the step that ends it is its last row.

    Where there are several layers and heads it shows their mean.
    """
    return [
        Alignment(
            prediction.weights if prediction.weights.dim() == 2 else prediction.weights.mean((0, 1)),
            target_labels(prediction),
            source_labels(answer),
            _title(run, answer),
        )
        for answer in answers
        for prediction in answer.predictions
        if prediction.weights is not None
    ]


def grids(run: Seq2SeqRun, answers: Iterable[Answer]) -> list[list[Alignment]]:
    """A picture for each layer and head of each prediction, one line a layer; of several texts each says which."""
    answers = list(answers)
    return [
        [
            Alignment(
                weights,
                target_labels(prediction),
                source_labels(answer),
                f"{_title(run, answer)}: " * (len(answers) > 1) + f"layer {layer}, head {head}",
            )
            for head, weights in enumerate(heads, 1)
        ]
        for answer in answers
        for prediction in answer.predictions
        if prediction.weights is not None
        for layer, heads in enumerate(prediction.weights, 1)
    ]


def target_labels(prediction: Prediction) -> list[str]:
    return [*prediction.units, *(["<eos>"] if prediction.finished else [])]


def source_labels(answer: Answer) -> list[str]:
    """The units of a source; those of features begin with a TAB that is not to be seen."""
    return [unit.removeprefix("\t") for unit in answer.units]


def _title(run: Seq2SeqRun, answer: Answer) -> str:
    return source_text(answer.units, run.source_units).replace("\t", "  ")
