"""One page to explore what a model attended to: a file that needs no network, with all the data in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from regard._files import write_atomically
from regard.errors import ArgumentError
from regard.look.page.encoding import packed
from regard.look.page.tokens import texts
from regard.look.reading.heads import summary

if TYPE_CHECKING:
    from regard.look.page.tokens import Tokens
    from regard.look.record import Record

__all__ = ["Page", "page", "report", "script", "style"]

SIZE = 4_900_000
"""Bytes that a page takes at most, as long as the names of its tokens leave room."""

_FOLDER = files("regard.look.page") / "web"
_SCRIPTS = ("data.js", "parts.js", "heads.js", "text.js", "matrix.js", "step_by_step.js", "page.js")
_A_LAYER = 400  # bytes of what is said of a layer
_WHAT = {"steps": "steps", "matrix": "matrices", "figures": "entropy and received weights"}


@dataclass(frozen=True)
class Page:
    """What there is to show: what is told at once, and compressed bytes that are read when they are looked at."""

    about: dict[str, Any]
    blobs: dict[str, bytes]


def report(
    record: Record,
    out: str | Path,
    *,
    tokenizer: Any = None,
    tokens: Tokens | None = None,
    title: str | None = None,
) -> Path:
    """Write what was seen as one page of HTML below 5 MB, to be opened in a browser, offline.

    It shows all heads by what they look at; for each token where it looks and who looks at it; matrices and
    alignments; for short texts the computation step by step. Where not all links of tokens go in, the lightest are
    left out, and the page says from which weight on.

    ``tokens`` are a list, for a batch a list of lists; for an encoder-decoder a mapping from "source" and "target" to
    these, and from "answer" to what the decoder said at each token of the target, which then names the rows of
    alignments. Left out, they are what the Hugging Face ``tokenizer`` calls the ids of the model's call; without it,
    numbers. Returns the path.

    Raises ArgumentError where nothing was seen or the tokens do not fit, RunError where the file cannot be written.

    >>> import tempfile, torch, regard
    >>> from regard.look import Layer, WatchRecord
    >>> query = torch.eye(3)[None, None]
    >>> _, told = regard.attention(query, query, query, observe=regard.Observe(top=2, entropy=True))
    >>> record = WatchRecord([Layer("layer", told, (1, 1, 3, 3), heads=(0,))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report(record, f"{folder}/out.html", tokens=["a", "b", "c"]).name
    'out.html'
    """
    path = Path(out)
    content = _written(page(record, tokenizer=tokenizer, tokens=tokens, title=title))
    write_atomically(path, lambda temporary: temporary.write_text(content, "utf-8"))
    return path


def page(record: Record, *, tokenizer: Any = None, tokens: Tokens | None = None, title: str | None = None) -> Page:
    """What `report` writes, and what a notebook shows."""
    if not record.layers:
        raise ArgumentError("report: expected at least one attention, none was seen; call the model within the watch")
    known, of_layers = texts(record, tokens, tokenizer)
    about = {"title": title or "Attention", "texts": known, "summaries": _summaries(record, tokenizer)}
    taken = len(_written(Page(about, {}))) + _A_LAYER * len(record.layers)
    data = packed(record.layers, max(SIZE - taken, SIZE // 4))
    notes = [f"{count} layers are shown without their {_WHAT[kind]}." for kind, count in data.left_out.items()]
    if data.lightest:
        notes.append(f"Links lighter than {100 * data.lightest:.2g} % are left out.")
    if notes:
        notes.append("The page would have become too large.")
    if record.left_out:
        notes.append(f"{record.left_out} attentions were not kept: the watch had no more memory for them.")
    layers = [{**layer, "of": of} for layer, of in zip(data.layers, of_layers, strict=True)]
    return Page({**about, "layers": layers, "notes": notes}, data.blobs)


def script(last: str) -> str:
    """The page's JavaScript as one module, which ends with what shows it: ``file.js`` or ``notebook.js``."""
    return "\n".join((_FOLDER / name).read_text("utf-8") for name in (*_SCRIPTS, last))


def style() -> str:
    """The page's style."""
    return (_FOLDER / "page.css").read_text("utf-8")


def as_json(about: dict[str, Any]) -> str:
    """JSON that can stand within a script of a page: no token can end it."""
    return json.dumps(about, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _summaries(record: Record, tokenizer: Any) -> list[list[float | None]]:
    """Of each head of each layer the numbers of its summary, in the order of its fields, None for NaN."""
    separators = [] if tokenizer is None else {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
    rows = (list(asdict(each).values())[2:] for each in summary(record, sorted(separators)))
    return [[float(f"{number:.4g}") if math.isfinite(number) else None for number in row] for row in rows]


def _written(page: Page) -> str:
    code = script("file.js")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    blobs = "\n".join(
        f'<script type="text/plain" id="regard-{key}">{base64.b64encode(blob).decode()}</script>'
        for key, blob in page.blobs.items()
    )
    return Template((_FOLDER / "page.html").read_text("utf-8")).substitute(
        title=html.escape(str(page.about["title"])),
        style=style(),
        digest=digest,
        about=as_json(page.about),
        blobs=blobs,
        script=code,
    )
