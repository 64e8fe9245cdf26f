"""Heat maps of a run's answers: for each answer the mean of its layers and heads, or a grid of them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from regard.data.pairs import source_text
from regard.look.pictures.heat_maps import Alignment

if TYPE_CHECKING:
    from torch import Tensor

    from regard.tasks.seq2seq import Answer, Prediction, Seq2SeqRun

__all__ = ["AnswerWeights", "head_grids", "means", "source_labels", "target_labels", "weights_of"]


class AnswerWeights(NamedTuple):
    """The attention of one answer: weights (layers, heads, Tout, Tin) or (Tout, Tin), their labels, and the text."""

    weights: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    text: str


def weights_of(run: Seq2SeqRun, answers: Iterable[Answer]) -> list[AnswerWeights]:
    """Return the attention of each prediction that has weights; the step that ends it is its last row."""
    return [
        AnswerWeights(
            prediction.weights,
            target_labels(prediction),
            source_labels(answer),
            source_text(answer.units, run.source_tokenizer).replace("\t", "  "),
        )
        for answer in answers
        for prediction in answer.predictions
        if prediction.weights is not None
    ]


def means(answers: Iterable[AnswerWeights]) -> list[Alignment]:
    """Return one picture for each answer, of the mean over its layers and heads."""
    return [
        Alignment(weights if weights.dim() == 2 else weights.mean((0, 1)), rows, columns, text)
        for weights, rows, columns, text in answers
    ]


def head_grids(answers: Iterable[AnswerWeights], *, named: bool) -> list[list[Alignment]]:
    """Return a picture per layer and head, one line per layer; if ``named``, titles begin with the answer's text."""
    return [
        [
            Alignment(weights, rows, columns, f"{text}: " * named + f"layer {layer}, head {head}")
            for head, weights in enumerate(heads, 1)
        ]
        for of_layers, rows, columns, text in answers
        for layer, heads in enumerate(of_layers, 1)
    ]


def target_labels(prediction: Prediction) -> list[str]:
    """Return the units of a prediction, and the end if it was predicted."""
    return [*prediction.units, *(["<eos>"] if prediction.finished else [])]


def source_labels(answer: Answer) -> list[str]:
    """Return the units of a source; those of features begin with a TAB that is not shown."""
    return [unit.removeprefix("\t") for unit in answer.units]
