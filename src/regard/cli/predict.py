"""`regard predict`: what a model makes of a file."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option

from regard.cli.options import Beam, LengthPenalty, NBest, RunDirectory, given


def predict(
    context: Context,
    run: RunDirectory,
    file: Annotated[str, Argument(metavar="FILE", help="inputs, plain or .gz; - is standard input")] = "-",
    beam: Beam = 5,
    n_best: NBest = 1,
    length_penalty: LengthPenalty = 0.0,
    scores: Annotated[bool, Option("--scores", help="the score of each answer in a column behind it")] = False,
    as_json: Annotated[bool, Option("--json", help="a JSON object a line")] = False,
) -> None:
    """Answer each line of a file, or tag each word.

    Answers go to standard output, line for line, those of one line with TABs between; a tagger gives its file back,
    with the tags in their column. What is to be said about them goes to standard error.
    """
    from regard.cli.tasks import TASKS
    from regard.tasks.registry import open_run

    opened = open_run(run)
    task = TASKS[opened.task]
    task.predict(opened, file, given(context, f"a run of the task {opened.task}", task.OF_PREDICT))
