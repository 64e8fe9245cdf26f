"""The page to explore, within a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.look.page.html import as_json, page, script, style

if TYPE_CHECKING:
    from regard.look.page.tokens import Tokens
    from regard.look.record import Record

__all__ = ["widget"]


def widget(record: Record, *, tokenizer: Any = None, tokens: Tokens | None = None, title: str | None = None) -> Any:
    """Show what was seen in a notebook: the page of `WatchRecord.report`, as a widget of anywidget.

    Give it back as the last value of a cell. Raises ArgumentError as `WatchRecord.report` does, and RegardError where
    anywidget is not installed.

    >>> import torch, regard
    >>> from regard.look import Layer, WatchRecord, widget
    >>> query = torch.eye(3)[None, None]
    >>> _, told = regard.attention(query, query, query, observe=regard.Observe(top=2))
    >>> shown = widget(WatchRecord([Layer("layer", told, (1, 1, 3, 3), heads=(0,))]), tokens=["a", "b", "c"])
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
    found = page(record, tokenizer=tokenizer, tokens=tokens, title=title)

    class Explorer(anywidget.AnyWidget):
        _esm = script("notebook.js")
        _css = style()
        about = traitlets.Unicode(as_json(found.about)).tag(sync=True)
        blobs = traitlets.Dict(found.blobs).tag(sync=True)

    return Explorer()
