"""`regard look` on a Hugging Face or GGUF model: what its heads look at, as a table, a page or JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.messages import note
from regard.errors import DataError

if TYPE_CHECKING:
    from rich.table import Table

    from regard.look.local_models import LocalModel, Passage, WatchedText
    from regard.look.reading.heads import Summary

_PAGE = Path("look.html")
_MOST = 20  # rows of a table


def look(path: Path, text: str, out: Path | None, options: dict[str, Any]) -> None:
    """Run a model on a text, print what its heads look at, and write the page."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub's client
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # no progress bars in files
    from regard.look.local_models import LocalModel
    from regard.look.page.html import report

    text = _text(text)
    model = LocalModel.open(path)
    watched = model.watch(text, generate=options["generate"])
    if watched.cut:
        note("text of {:,} tokens cut to {:,}, the maximum of the model".format(*watched.cut))
    heads = watched.record.summary(model.separators)
    if options["as_json"]:
        print(_json(model, watched, heads))
    else:
        _print_tables(watched, heads)
    if out is not None or not options["as_json"]:
        shown = {"tokenizer": model.tokenizer, "tokens": watched.tokens, "title": model.name}
        written = report(watched.record, out or _PAGE, **shown, summaries=heads)
        print(written, file=sys.stderr if options["as_json"] else sys.stdout)


def _text(given: str) -> str:
    """Return the text itself, or the content of the file of this name, or of standard input."""
    from regard.data.lines import name_of, read_lines

    if given != "-" and not os.path.isfile(given):
        return given
    text = "\n".join(read_lines(given))
    if not text.strip():
        raise DataError("expected a text, found none; check the file", file=name_of(given))
    return text


def _print_tables(watched: WatchedText, heads: Sequence[Summary]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if watched.answer is not None:
        console.print(watched.answer, markup=False)
    if len(watched.passages) > 1:
        console.print(_passage_table(watched.passages))
    pointed = [one for one in heads if one.words]
    if pointed:
        console.print(_head_table(pointed))
    more = len(pointed) - _MOST
    console.print(
        f"heads with at least half of their weight on one place, such as the first token: "
        f"{len(pointed)} of {len(heads)}"
        f"{f'; the page and --json list {more} more' * (more > 0)}",
        soft_wrap=True,
    )


def _head_table(heads: Sequence[Summary]) -> Table:
    """Return a table of the heads that stand out, those with the largest share first."""
    from rich.table import Table

    table = Table("layer", "head", "looks at", box=None, pad_edge=False)
    for name in ("distance", "entropy"):
        table.add_column(name, justify="right")
    for one in sorted(heads, key=lambda one: -max(one.shares.values()))[:_MOST]:
        table.add_row(one.layer, str(one.head), one.words, f"{one.distance:.1f}", f"{one.entropy:.2f}")
    return table


def _passage_table(passages: Sequence[Passage]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("share", "of the answer's attention fell on", box=None, pad_edge=False)
    for passage in sorted(passages, key=lambda passage: -passage.share)[:_MOST]:
        line = Text(" ".join(passage.text.split()), no_wrap=True, overflow="ellipsis")
        table.add_row(f"{100 * passage.share:.1f} %", line)
    return table


def _json(model: LocalModel, watched: WatchedText, heads: Sequence[Summary]) -> str:
    def finite(number: Any) -> Any:
        return None if isinstance(number, float) and math.isnan(number) else number

    about = {
        "model": model.name,
        "kind": model.kind,
        "answer": watched.answer,
        "passages": [
            {"text": text, "tokens": [tokens.start, tokens.stop], "share": share}
            for text, tokens, share in watched.passages
        ],
        "heads": [{name: finite(number) for name, number in asdict(one).items()} for one in heads],
    }
    return json.dumps(about, ensure_ascii=False)
