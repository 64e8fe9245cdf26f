"""`regard evaluate`: how right a model is on examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from regard._wording import counted_noun
from regard.cli.messages import note
from regard.cli.options import Beam, LengthPenalty, RunDirectory, given

if TYPE_CHECKING:
    from rich.table import Table

    from regard.tasks.metrics import Scores


def evaluate(
    context: Context,
    run: RunDirectory,
    file: Annotated[str, Argument(metavar="FILE", help="examples as in training, plain or .gz; - is standard input")],
    beam: Beam = 5,
    length_penalty: LengthPenalty = 0.0,
    as_json: Annotated[bool, Option("--json", help="one JSON object")] = False,
) -> None:
    """Score a model on examples, with confidence intervals.

    Pairs: answers that match their target exactly, those that do not (WER, in percent), and the edits that each unit of
    the targets would need (PER, or CER for characters); BLEU and chrF for subwords. Tags and classes: accuracy and F1.
    Between the bounds beside a value lie 95 % of 1,000 samples that are drawn from the examples.
    """
    from rich.console import Console

    from regard.tasks.registry import open_run
    from regard.tasks.seq2seq import Search, Seq2SeqRun

    opened = open_run(run)
    searched = {"beam", "length_penalty"} if isinstance(opened, Seq2SeqRun) else set()
    options = given(context, f"a run of the task {opened.task}", {"as_json"} | searched)
    split = opened.read(file)
    for text in (*split.notes, *opened.unseen(split)):
        note(text)
    if isinstance(opened, Seq2SeqRun):
        search = Search(options["beam"], length_penalty=options["length_penalty"])
        scores = opened.score(split.examples, search, confidence=True)
    else:
        scores = opened.score(split.examples, confidence=True)
    if as_json:
        print(json.dumps(scores.as_dict()))
    else:
        Console(highlight=False).print(score_table(scores))
        if scores.signature:
            print(scores.signature)


def score_table(scores: Scores) -> Table:
    """Return scores as a table for a terminal, with intervals if there are any, but without the signature."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=counted_noun(scores.count, scores.thing))
    table.add_column("metric")
    table.add_column("value", justify="right")
    if scores.intervals:
        table.add_column("95 % confidence", justify="right")
    for name, label in scores.labels.items():
        bounds = scores.intervals.get(name)
        between = [" to ".join(scores.printed(name, bound) for bound in bounds)] if bounds else []
        table.add_row(label, scores.printed(name, scores.values[name]), *between)
    return table
