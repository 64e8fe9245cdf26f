"""`regard predict`: an answer for each line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from regard.training.run import Answer


def predict(
    run: Annotated[Path, Argument(help="a run directory")],
    file: Annotated[str, Argument(help="a source a line, plain or .gz; - is standard input")] = "-",
    beam: Annotated[int, Option(help="hypotheses to follow; 1 is greedy")] = 5,
    n_best: Annotated[int, Option(help="answers a line, best first, with TABs between")] = 1,
    length_penalty: Annotated[float, Option(help="divide log p by length to this power")] = 0.0,
    scores: Annotated[bool, Option("--scores", help="a column with the score behind each answer")] = False,
    as_json: Annotated[bool, Option("--json", help="a JSON object a line")] = False,
) -> None:
    """Write the model's answer for each line of FILE, line for line; what is to be said goes to standard error."""
    from regard.training.data import read_lines
    from regard.training.run import Run, Search

    search = Search(beam, n_best, length_penalty)
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    model = Run.load(run)
    seen: Counter[str] = Counter()
    for answer in model.predict(read_lines(file), search):
        seen["units"] += answer.unseen
        seen["lines"] += answer.unseen > 0
        seen["cut"] += answer.cut
        seen["endless"] += bool(answer.predictions) and not answer.predictions[0].finished
        print(_json(answer, model.source_units.join(answer.units)) if as_json else _row(answer, scores))
    for note in _notes(seen, model.max_length):
        print(f"regard: {note}", file=sys.stderr)


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


def _notes(seen: Counter[str], max_length: int) -> list[str]:
    notes = []
    if seen["units"]:
        notes.append(f"{seen['units']:,} units in {seen['lines']:,} lines that training never saw, read as unknown")
    if seen["cut"]:
        notes.append(f"{seen['cut']:,} lines cut to the {max_length} units that the model takes")
    if seen["endless"]:
        notes.append(f"{seen['endless']:,} answers broken off at the greatest length")
    return notes
