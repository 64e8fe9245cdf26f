"""`regard look`: what a model attends to, as a picture, a table, or a page to explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from regard.cli.options import Beam, LengthPenalty, NBest, at_least_1, checked_options


# As long as it has options: Typer reads them off the signature
def look(
    context: Context,
    run: Annotated[
        Path, Argument(metavar="TARGET", help="a run directory, the folder of a Hugging Face model, or a GGUF file")
    ],
    texts: Annotated[
        list[str],
        Argument(metavar="TEXT", help="for a run: one or more texts; for any other model: one text, a file, or -"),
    ],
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="a picture (.png, .svg, .pdf) or a page (.html)  [default: RUN/look.png; look.html for other models]",
        ),
    ] = None,
    beam: Beam = 5,
    n_best: NBest = 1,
    length_penalty: LengthPenalty = 0.0,
    heads: Annotated[
        bool, Option("--heads", help="for a run: draw each layer and head of a transformer instead of their mean")
    ] = False,
    generate: Annotated[
        int | None,
        Option(
            metavar="N",
            callback=at_least_1,
            help="for a language model: generate up to N tokens, and include them",
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="for other models: print the summary of each head as one JSON object")
    ] = False,
) -> None:
    """Show what a model attends to.

    For a run, prints the answer to each TEXT, and draws which units of TEXT each unit of the answer attended to; for a
    classifier, which words it attended to.

    For any other model (Hugging Face or GGUF, in a local folder: encoder, causal or sequence-to-sequence), prints the
    heads that attend mostly to one place, such as the previous token, and the passages that an answer attended to, and
    writes a page with all heads and tokens. Nothing is downloaded.
    """
    from regard.look.local_models import is_model

    if is_model(run):
        from regard.cli.look_model import look as look_at_model

        if len(texts) != 1:
            context.fail(f"expected one TEXT for a Hugging Face or GGUF model, got {len(texts)}; quote it")
        allowed = {"generate", "as_json", "out"}
        look_at_model(run, texts[0], out, checked_options(context, "a Hugging Face or GGUF model", allowed))
    else:
        _look_at_run(context, run, texts, out or run / "look.png")


def _look_at_run(context: Context, directory: Path, texts: list[str], out: Path) -> None:
    """Print the answers of a run, and write the picture or page of their attention."""
    from regard.cli.tasks import TASK_MODULES
    from regard.tasks.registry import open_run

    is_page = out.suffix == ".html"
    if is_page and len(texts) > 1:
        context.fail(f"expected one TEXT for a page, got {len(texts)}; write one page for each")
    opened = open_run(directory)
    task = TASK_MODULES[opened.task]
    target, allowed = f"a `{opened.task}` run", task.LOOK_OPTIONS
    if is_page:
        target, allowed = f"the page of {target}", allowed - {"heads", "n_best"}
    options = checked_options(context, target, {*allowed, "out"})
    if is_page:
        record, tokens = task.watch(opened, texts[0], options)
        record.report(out, tokens=tokens, title=texts[0])
    else:
        from regard.look import save

        save(task.draw(opened, texts, options), out)
    print(out)
