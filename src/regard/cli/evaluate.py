"""`regard evaluate`: how right a model is on pairs."""

from __future__ import annotations

import json
from typing import Annotated

from typer import Argument, Option

from regard.cli.notes import note
from regard.cli.options import Beam, LengthPenalty, RunDirectory


def evaluate(
    run: RunDirectory,
    file: Annotated[
        str, Argument(metavar="FILE", help="source TAB target, a pair a line, plain or .gz; - is standard input")
    ],
    beam: Beam = 5,
    length_penalty: LengthPenalty = 0.0,
    as_json: Annotated[bool, Option("--json", help="one JSON object")] = False,
) -> None:
    """Score a model on pairs.

    Counts the answers that match their target exactly, those that do not (WER, in percent), and the edits that each
    unit of the targets would need (PER, or CER for characters).
    """
    from regard.training.data import read_pairs, unseen_notes
    from regard.training.run import Run, Search

    search = Search(beam, length_penalty=length_penalty)
    model = Run.load(run)
    pairs = read_pairs(file, model.source_units, model.target_units, max_length=model.max_length)
    for text in (*pairs.notes, *unseen_notes(pairs, model.source, model.target)):
        note(text)
    scores = model.score(pairs.examples, search)
    print(json.dumps(scores.as_dict()) if as_json else scores.text(model.unit_error))
