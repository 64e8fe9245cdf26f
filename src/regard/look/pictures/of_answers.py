"""From the answers of a run to pictures of their attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from regard._symbols import BOS, SPECIALS
from regard.data.pairs import Example, source_text
from regard.look.pictures.heat_maps import Alignment
from regard.look.watching.watch import watch

if TYPE_CHECKING:
    from regard.look.record import WatchRecord
    from regard.tasks.seq2seq import Answer, Prediction, Seq2SeqRun

__all__ = ["grids", "pictures", "watched"]


def pictures(run: Seq2SeqRun, answers: Iterable[Answer]) -> list[Alignment]:
    """One picture for each prediction that comes with weights; the step that ends it is its last row.

    Where there are several layers and heads it shows their mean.
    """
    return [
        Alignment(
            prediction.weights if prediction.weights.dim() == 2 else prediction.weights.mean((0, 1)),
            _rows(prediction),
            _columns(answer),
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
                _rows(prediction),
                _columns(answer),
                f"{_title(run, answer)}: " * (len(answers) > 1) + f"layer {layer}, head {head}",
            )
            for head, weights in enumerate(heads, 1)
        ]
        for answer in answers
        for prediction in answer.predictions
        if prediction.weights is not None
        for layer, heads in enumerate(prediction.weights, 1)
    ]


def watched(run: Seq2SeqRun, answer: Answer) -> tuple[WatchRecord, dict[str, list[str]]]:
    """What the model attended to while it gave its best answer, and the tokens of both sides as a page takes them.

    The answer is known: it is given to the decoder as in training, so that the queries are its own, whatever other
    hypotheses a search had followed.
    """
    prediction = answer.predictions[0]
    batch = run.collate(run.encode([Example(tuple(answer.units), tuple(prediction.units))]))
    read = batch.target[:, : -1 if prediction.finished else -2]
    device = next(run.model.parameters()).device
    with torch.inference_mode(), watch(run.model, keep_inputs=True) as record:
        run.model(batch.source.to(device), batch.source_lengths.to(device), read.to(device))
    symbols = [SPECIALS[BOS], *prediction.units][: read.shape[1]]
    return record, {"source": _columns(answer), "target": symbols, "answer": _rows(prediction)}


def _rows(prediction: Prediction) -> list[str]:
    return [*prediction.units, *(["<eos>"] if prediction.finished else [])]


def _columns(answer: Answer) -> list[str]:
    """The units of a source; those of features begin with a TAB that is not to be seen."""
    return [unit.removeprefix("\t") for unit in answer.units]


def _title(run: Seq2SeqRun, answer: Answer) -> str:
    return source_text(answer.units, run.source_units).replace("\t", "  ")
