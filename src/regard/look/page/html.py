"""The page to explore a record: one HTML file with all its data, which needs no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from regard._files import write_atomically
from regard._wording import counted_noun
from regard.errors import ArgumentError
from regard.look.page.encoding import EncodedLayers, encode_layers
from regard.look.page.tokens import separator_ids, texts
from regard.look.reading.heads import NUMBERS, Summary, summary

if TYPE_CHECKING:
    from regard.look.page.tokens import Tokens
    from regard.look.record import Record

__all__ = ["Page", "page", "report", "script", "style"]

SIZE = 4_900_000
"""The maximum size of a page in bytes, unless the names of its tokens need more."""

_FOLDER = files("regard.look.page") / "web"
_VIEWS = ("text.js", "matrix.js", "step_by_step.js")  # each registers its views, in this order
_SCRIPTS = ("parts.js", "data.js", "heads.js", *_VIEWS, "page.js")
_A_LAYER = 400  # bytes of the facts of a layer
_KINDS = {"steps": "steps", "matrix": "matrices", "per_token": "entropy and received weights"}


@dataclass(frozen=True)
class Page:
    """The data of a page: facts that are read at once, and compressed bytes that are read when they are shown."""

    about: dict[str, Any]
    blobs: dict[str, bytes]


def report(
    record: Record,
    out: str | Path,
    *,
    tokenizer: Any = None,
    tokens: Tokens | None = None,
    title: str | None = None,
    summaries: Sequence[Summary] | None = None,
) -> Path:
    """Write the record as one page of HTML below 5 MB, to be opened in a browser, offline; return its path.

    The page shows a summary of each head; for each token the tokens that it attends to and that attend to it; matrices
    and alignments; for short texts the computation step by step. If there is no room for all links of tokens, the
    lightest are omitted, and a note states the threshold.

    ``tokens`` are a list, for a batch a list of lists; for an encoder-decoder a mapping from "source" and "target" to
    these, and from "answer" to the decoder's output at each token of the target, which then labels the rows of
    alignments. By default they are the Hugging Face ``tokenizer``'s names for the ids of the model's call, or numbers.
    ``summaries`` are those of the record, if they are computed already.

    Raises ArgumentError for a record without layers or tokens that do not fit, RunError if the file cannot be written.

    >>> import tempfile, torch, regard
    >>> from regard.look import Layer, WatchRecord
    >>> query = torch.eye(3)[None, None]
    >>> _, statistics = regard.attention(query, query, query, observe=regard.Observe(top=2, entropy=True))
    >>> record = WatchRecord([Layer("layer", statistics, (1, 1, 3, 3), heads=(0,))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report(record, f"{folder}/out.html", tokens=["a", "b", "c"]).name
    'out.html'
    """
    path = Path(out)
    content = _written(page(record, tokenizer=tokenizer, tokens=tokens, title=title, summaries=summaries))
    write_atomically(path, lambda temporary: temporary.write_text(content, "utf-8"))
    return path


def page(
    record: Record,
    *,
    tokenizer: Any = None,
    tokens: Tokens | None = None,
    title: str | None = None,
    summaries: Sequence[Summary] | None = None,
) -> Page:
    """Return the data that `report` writes, and that a notebook shows."""
    if not record.layers:
        raise ArgumentError(
            "report: expected a record of at least one attention, got none; call the model within the watch"
        )
    known, of_layers = texts(record, tokens, tokenizer)
    if summaries is None:
        summaries = summary(record, separator_ids(tokenizer))
    about = {"title": title or "Attention", "texts": known, "summaries": [_numbers(each) for each in summaries]}
    taken = len(_template() + style() + script("file.js") + as_json(about)) + _A_LAYER * len(record.layers)
    data = encode_layers(record.layers, max(SIZE - taken, SIZE // 4))
    layers = [{**layer, "of": of} for layer, of in zip(data.layers, of_layers, strict=True)]
    return Page({**about, "layers": layers, "notes": _notes(data, record.left_out)}, data.blobs)


def script(last: str) -> str:
    """Return the page's JavaScript as one module; ``last`` shows it, ``file.js`` or ``notebook.js``."""
    return "\n".join((_FOLDER / name).read_text("utf-8") for name in (*_SCRIPTS, last))


def style() -> str:
    """Return the page's style."""
    return (_FOLDER / "page.css").read_text("utf-8")


def _template() -> str:
    return (_FOLDER / "page.html").read_text("utf-8")


def as_json(about: dict[str, Any]) -> str:
    """Return JSON that is safe within a script element of a page: no token can end it."""
    return json.dumps(about, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _numbers(summary: Summary) -> list[float | None]:
    """Return the numbers of a head's summary, in the order of its fields, None for NaN."""
    numbers = [getattr(summary, name) for name in NUMBERS]
    return [float(f"{number:.4g}") if math.isfinite(number) else None for number in numbers]


def _notes(data: EncodedLayers, left_out: int) -> list[str]:
    """Return notes on missing data, with the reasons."""
    notes = [f"{_shown(layers)} without {_KINDS[kind]}." for kind, layers in data.left_out.items()]
    if data.threshold:
        notes.append(f"Links lighter than {100 * data.threshold:.2g} % are omitted.")
    if notes:
        notes.append("The page would be too large with all data.")
    if left_out:
        notes.append(f"{counted_noun(left_out, 'attention')} not recorded: the limit of watch(memory=) was reached.")
    return notes


def _shown(layers: int) -> str:
    return f"{counted_noun(layers, 'layer')} {'is' if layers == 1 else 'are'} shown"


def _written(page: Page) -> str:
    code = script("file.js")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    blobs = "\n".join(
        f'<script type="text/plain" id="regard-{key}">{base64.b64encode(blob).decode()}</script>'
        for key, blob in page.blobs.items()
    )
    return Template(_template()).substitute(
        title=html.escape(str(page.about["title"])),
        style=style(),
        digest=digest,
        about=as_json(page.about),
        blobs=blobs,
        script=code,
    )
