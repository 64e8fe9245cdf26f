"""A run's model, watched while it predicts an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard._symbols import BOS, SPECIALS
from regard.data.pairs import Pair
from regard.look.pictures.of_answers import source_labels, target_labels
from regard.look.watching.watch import watch

if TYPE_CHECKING:
    from regard.look.watch_record import WatchRecord
    from regard.tasks.seq2seq import Answer, Seq2SeqRun

__all__ = ["watch_answer"]


def watch_answer(run: Seq2SeqRun, answer: Answer) -> tuple[WatchRecord, dict[str, list[str]]]:
    """Record the attention of the best answer; return it with the tokens of both sides as a page takes them.

    The decoder receives the known answer, as in training, so that the queries are those of the answer and not of the
    other hypotheses of a beam search.
    """
    prediction = answer.predictions[0]
    batch = run.collate(run.encode([Pair(tuple(answer.units), tuple(prediction.units))]))
    read = batch.target[:, : -1 if prediction.finished else -2]
    device = next(run.model.parameters()).device
    with torch.inference_mode(), watch(run.model, keep_inputs=True) as record:
        run.model(batch.source.to(device), batch.source_lengths.to(device), read.to(device))
    symbols = [SPECIALS[BOS], *prediction.units][: read.shape[1]]
    return record, {"source": source_labels(answer), "target": symbols, "answer": target_labels(prediction)}
