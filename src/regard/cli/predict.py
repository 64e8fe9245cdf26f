"""`regard predict`: a model's answers to the lines of a file."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option

from regard.cli.options import Beam, LengthPenalty, NBest, RunDirectory, checked_options


def predict(
    context: Context,
    run: RunDirectory,
    file: Annotated[str, Argument(metavar="FILE", help="inputs, plain or .gz; - is standard input")] = "-",
    beam: Beam = 5,
    n_best: NBest = 1,
    length_penalty: LengthPenalty = 0.0,
    scores: Annotated[
        bool,
        Option(
            "--scores",
            help="add a column with the score after each answer: log p (0 is certain, exp(score) is p), normalised by "
            "--length-penalty; for a class, its probability",
        ),
    ] = False,
    as_json: Annotated[bool, Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """Answer each line of a file, or tag each word.

    Answers go to standard output, one line for each line of input; several answers to a line are separated by TABs. A
    tagger prints its input with the tags in their column. Messages go to standard error.
    """
    from regard.cli.tasks import TASK_MODULES
    from regard.tasks.registry import open_run

    opened = open_run(run)
    task = TASK_MODULES[opened.task]
    task.predict(opened, file, checked_options(context, f"a `{opened.task}` run", task.PREDICT_OPTIONS))
