"""`regard predict`: an answer for each line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from regard.cli.notes import Tally, note
from regard.cli.options import Beam, LengthPenalty, NBest, RunDirectory

if TYPE_CHECKING:
    from regard.training.run import Answer, Run, Search


def predict(
    run: RunDirectory,
    file: Annotated[str, Argument(metavar="FILE", help="a source a line, plain or .gz; - is standard input")] = "-",
    beam: Beam = 5,
    n_best: NBest = 1,
    length_penalty: LengthPenalty = 0.0,
    scores: Annotated[bool, Option("--scores", help="the score of each answer in a column behind it")] = False,
    as_json: Annotated[bool, Option("--json", help="a JSON object a line")] = False,
) -> None:
    """Answer each line of a file.

    Answers go to standard output, line for line, those of one line with TABs between; what is to be said about them
    goes to standard error.
    """
    from regard.training.run import Run, Search

    search = Search(beam, n_best, length_penalty)
    model = Run.load(run)
    tally = Tally()
    for answer in _answers(model, file, search):
        tally.add(answer)
        print(_json(answer, model.source_units.join(answer.units)) if as_json else _row(answer, scores))
    tally.say(model.max_length)


def _answers(model: Run, file: str, search: Search) -> Iterator[Answer]:
    from regard.training.data import read_lines

    if file != "-" or not sys.stdin.isatty():
        yield from model.predict(read_lines(file), search)
        return
    note(f"a source a line, in {model.source_units}; Ctrl-D ends")
    for line in read_lines(file):  # one at a time: somebody waits for the answer
        yield from model.predict([line], search)


def _row(answer: Answer, scores: bool) -> str:
    columns = []
    for prediction in answer.predictions:
        columns.append(prediction.text)
        if scores:
            columns.append(f"{prediction.score:.4f}")
    return "\t".join(columns)


def _json(answer: Answer, source: str) -> str:
    predictions = [
        {"text": p.text, "score": p.score, "log_prob": p.log_prob, "finished": p.finished} for p in answer.predictions
    ]
    return json.dumps(
        {"source": source, "predictions": predictions, "unseen": answer.unseen, "cut": answer.cut}, ensure_ascii=False
    )
