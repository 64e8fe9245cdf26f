"""`regard evaluate`: how right a model is on pairs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def evaluate(
    run: Annotated[Path, Argument(help="a run directory")],
    file: Annotated[Path, Argument(help="SOURCE TAB TARGET, a pair a line, plain or .gz")],
    beam: Annotated[int, Option(help="hypotheses to follow; 1 is greedy")] = 5,
    length_penalty: Annotated[float, Option(help="divide log p by length to this power")] = 0.0,
    as_json: Annotated[bool, Option("--json", help="one JSON object")] = False,
) -> None:
    """Score a model's answers against FILE: exact matches, wrong ones (WER), and edits a unit (PER or CER)."""
    from regard.training.data import read_pairs, unseen_notes
    from regard.training.run import Run, Search

    model = Run.load(run)
    pairs = read_pairs(file, model.source_units, model.target_units, max_length=model.max_length)
    for note in (*pairs.notes, *unseen_notes(pairs, model.source, model.target)):
        print(note, file=sys.stderr)
    scores = model.score(pairs.examples, Search(beam, length_penalty=length_penalty))
    print(json.dumps(scores.as_dict()) if as_json else scores.text(model.unit_error))
