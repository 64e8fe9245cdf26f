"""The page to explore a record, as a widget in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.look.page.html import as_json, page, script, style

if TYPE_CHECKING:
    from regard.look.page.tokens import Tokens
    from regard.look.record import Record

__all__ = ["widget"]


def widget(record: Record, *, tokenizer: Any = None, tokens: Tokens | None = None, title: str | None = None) -> Any:
    """Return the page of `WatchRecord.report` as a widget of anywidget, to be the last value of a notebook's cell.

    Raises ArgumentError as `WatchRecord.report` does, and RegardError if anywidget is not installed.

    >>> import torch, regard
    >>> from regard.look import Layer, WatchRecord, widget
    >>> query = torch.eye(3)[None, None]
    >>> _, statistics = regard.attention(query, query, query, observe=regard.Observe(top=2))
    >>> shown = widget(WatchRecord([Layer("layer", statistics, (1, 1, 3, 3), heads=(0,))]), tokens=["a", "b", "c"])
    >>> sorted(shown.blobs)
    ['0.0.links']
    """
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError as error:
        raise RegardError(
            "a page in a notebook needs anywidget, which is not installed: pip install 'regard[notebook]'"
        ) from error
    shown = page(record, tokenizer=tokenizer, tokens=tokens, title=title)

    class Explorer(anywidget.AnyWidget):
        _esm = script("notebook.js")
        _css = style()
        about = traitlets.Unicode(as_json(shown.about)).tag(sync=True)
        blobs = traitlets.Dict(shown.blobs).tag(sync=True)

    return Explorer()
