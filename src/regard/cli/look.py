"""`regard look`: what a model attends to, as a picture, a table, or a page to explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from regard.cli.options import Beam, LengthPenalty, NBest, at_least_1, given


# As long as it has options: Typer reads them off the signature
def look(
    context: Context,
    run: Annotated[
        Path, Argument(metavar="TARGET", help="a run directory, the folder of a Hugging Face model, or a GGUF file")
    ],
    texts: Annotated[
        list[str], Argument(metavar="TEXT", help="one or more texts; for a model of others one text, a file, or -")
    ],
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="a picture, .png, .svg or .pdf, or a page, .html; left out: RUN/look.png, for others look.html",
        ),
    ] = None,
    beam: Beam = 5,
    n_best: NBest = 1,
    length_penalty: LengthPenalty = 0.0,
    heads: Annotated[
        bool, Option("--heads", help="of a run: a map for each layer and head of a transformer; left out: their mean")
    ] = False,
    generate: Annotated[
        int | None,
        Option(
            metavar="N",
            callback=at_least_1,
            help="of a language model: let it go on for up to N tokens, and look at these too",
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="of a language model: what each head looks at, as one JSON object")
    ] = False,
) -> None:
    """Show what a model attends to.

    A run answers each TEXT, and a picture shows which units of it each unit of the answer attended to, or what the
    class was read from.

    Any other language model, an encoder, a causal or a sequence-to-sequence model in a local folder, is run on TEXT:
    a table tells the heads that look at one place, such as the previous token, and what an answer was read from; a
    page shows all heads and tokens. Nothing is fetched from the network.
    """
    from regard.look.local_models import is_model

    if is_model(run):
        from regard.cli.look_model import look as look_at_model

        if len(texts) != 1:
            context.fail(f"expected one TEXT for a language model, got {len(texts)}; quote it")
        options = given(context, "a language model that is no run", {"generate", "as_json"})
        look_at_model(run, texts[0], out, options)
        return
    from regard.cli.tasks import TASKS
    from regard.tasks.registry import open_run

    out = out or run / "look.png"
    page = out.suffix == ".html"
    if page and len(texts) > 1:
        context.fail(f"a page shows one TEXT, got {len(texts)}; write one page for each")
    opened = open_run(run)
    task = TASKS[opened.task]
    of_run = f"a run of the task {opened.task}"
    options = (
        given(context, f"a page about {of_run}", task.OF_LOOK - {"heads", "n_best"})
        if page
        else given(context, of_run, task.OF_LOOK)
    )
    task.look(opened, texts, out, options)
