"""`regard look`: what a model attends to, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from regard.cli.notes import Tally
from regard.cli.options import Beam, LengthPenalty, NBest, RunDirectory
from regard.errors import ArgumentError


def look(
    run: RunDirectory,
    texts: Annotated[list[str], Argument(metavar="TEXT", help="one or more sources")],
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

    Answers each TEXT, and draws which units of it each unit of the answer attended to.
    """
    from regard.look import alignments, grid, save
    from regard.look.answers import grids, pictures
    from regard.models import RecurrentConfig
    from regard.training.run import Run, Search

    search = Search(beam, n_best, length_penalty, weights=True)
    model = Run.load(run)
    if not model.model.config.attends:
        raise ArgumentError(f"{run}: this model has no attention to look at; train one without --score none")
    if heads and isinstance(model.model.config, RecurrentConfig):
        raise ArgumentError(f"{run}: this model has one attention, with one head; leave --heads away")
    for text in texts:
        if not model.source_units.split(text):
            raise ArgumentError(f"expected texts with at least one unit (in {model.source_units}), got {text!r}")
    answers = list(model.predict(texts, search))
    tally = Tally()
    for text, answer in zip(texts, answers, strict=True):
        tally.add(answer)
        for prediction in answer.predictions:
            print(f"{text}\t{prediction.text}")
    tally.say(model.max_length)
    path = out or run / "look.png"
    save(grid(grids(model, answers)) if heads else alignments(pictures(model, answers)), path)
    print(path)
