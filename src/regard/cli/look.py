"""`regard look`: what a model attends to, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from regard.errors import ArgumentError


def look(
    run: Annotated[Path, Argument(help="a run directory")],
    texts: Annotated[list[str], Argument(help="one or more sources", metavar="TEXT...")],
    out: Annotated[Path | None, Option(help="the picture, .png, .svg or .pdf; left out: RUN/look.png")] = None,
    beam: Annotated[int, Option(help="hypotheses to follow; 1 is greedy")] = 5,
    n_best: Annotated[int, Option(help="hypotheses to draw for each text")] = 1,
) -> None:
    """Answer TEXT, and draw which units of the source each unit of the answer attended to."""
    from regard.look import alignments, save
    from regard.look.answers import pictures
    from regard.training.run import Run, Search

    model = Run.load(run)
    if model.model.attention is None:
        raise ArgumentError(f"{run}: this model has no attention to look at; train one without --score none")
    answers = list(model.predict(texts, Search(beam, n_best, weights=True)))
    for text, answer in zip(texts, answers, strict=True):
        if not answer.predictions:
            raise ArgumentError(f"expected a text with at least one unit ({model.source_units}), got {text!r}")
        for prediction in answer.predictions:
            print(f"{text}\t{prediction.text}")
    path = out or run / "look.png"
    save(alignments(pictures(model, answers)), path)
    print(path)
