"""Records of what a model attended to (`regard.watch`): summaries, pictures and pages."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.look.page.notebook import widget
    from regard.look.pictures.heat_maps import Alignment, alignment, alignments, grid, position_encoding, save
    from regard.look.reading.heads import Summary
    from regard.look.reading.words import WordSpans
    from regard.look.record import AttentionInputs, Layer
    from regard.look.watch_record import WatchRecord

__all__ = [
    "Alignment",
    "AttentionInputs",
    "Layer",
    "Summary",
    "WatchRecord",
    "WordSpans",
    "alignment",
    "alignments",
    "grid",
    "position_encoding",
    "save",
    "widget",
]
_HOMES = {
    "AttentionInputs": "record",
    "Layer": "record",
    "Summary": "reading.heads",
    "WatchRecord": "watch_record",
    "WordSpans": "reading.words",
    "widget": "page.notebook",
}


def __getattr__(name: str) -> Any:
    # Imported when first named: watching a model needs no matplotlib.
    if name not in __all__:
        raise AttributeError(f"module 'regard.look' has no attribute {name!r}")
    home = _HOMES.get(name, "pictures.heat_maps")
    globals()[name] = found = getattr(importlib.import_module(f"regard.look.{home}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
