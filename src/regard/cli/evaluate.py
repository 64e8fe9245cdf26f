"""`regard evaluate`: the scores of a model on examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from regard._wording import counted_noun
from regard.cli.messages import note
from regard.cli.options import Beam, LengthPenalty, RunDirectory, checked_options

if TYPE_CHECKING:
    from rich.table import Table

    from regard.tasks.metrics import Scores


def evaluate(
    context: Context,
    run: RunDirectory,
    file: Annotated[str, Argument(metavar="FILE", help="examples as in training, plain or .gz; - is standard input")],
    beam: Beam = 5,
    length_penalty: LengthPenalty = 0.0,
    as_json: Annotated[bool, Option("--json", help="print one JSON object")] = False,
) -> None:
    """Score a model on examples, with confidence intervals.

    Pairs: exact answers, wrong answers (WER, in percent), and edits per unit of the targets (PER, or CER if the units
    are characters); for subwords, BLEU and chrF. Tags and classes: accuracy and F1. The interval beside a value
    contains 95 % of the values on 1,000 bootstrap samples of the examples.
    """
    from rich.console import Console

    from regard.cli.tasks import TASK_MODULES
    from regard.tasks.registry import open_run

    opened = open_run(run)
    task = TASK_MODULES[opened.task]
    options = checked_options(context, f"a `{opened.task}` run", task.EVALUATE_OPTIONS)
    split = opened.read(file)
    for text in (*split.notes, *(f"{split.name}: {unseen}" for unseen in opened.unseen_notes(split.examples))):
        note(text)
    scores = task.score(opened, split.examples, options)
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
