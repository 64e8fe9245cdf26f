"""`regard look`: what a model attends to, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from regard.cli.options import Beam, LengthPenalty, NBest, RunDirectory, given


def look(
    context: Context,
    run: RunDirectory,
    texts: Annotated[list[str], Argument(metavar="TEXT", help="one or more texts")],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="the picture, .png, .svg or .pdf; left out: RUN/look.png")
    ] = None,
    beam: Beam = 5,
    n_best: NBest = 1,
    length_penalty: LengthPenalty = 0.0,
    heads: Annotated[
        bool, Option("--heads", help="a map for each layer and head of a transformer; left out: their mean")
    ] = False,
) -> None:
    """Draw what a model attends to.

    Answers each TEXT, and draws which units of it each unit of the answer attended to, or what the class was read from.
    """
    from regard.cli.tasks import TASKS
    from regard.training.tasks import open_run

    opened = open_run(run)
    task = TASKS[opened.task]
    task.look(opened, texts, out or run / "look.png", given(context, opened.task, task.OF_LOOK))
