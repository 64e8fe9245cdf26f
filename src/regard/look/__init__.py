"""Records of a model's attention (`regard.watch`): summaries, pictures and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard._lazy import lazy_names

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
# Imported at the first access, as watching a model does not need matplotlib.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Alignment": "pictures.heat_maps",
        "AttentionInputs": "record",
        "Layer": "record",
        "Summary": "reading.heads",
        "WatchRecord": "watch_record",
        "WordSpans": "reading.words",
        "alignment": "pictures.heat_maps",
        "alignments": "pictures.heat_maps",
        "grid": "pictures.heat_maps",
        "position_encoding": "pictures.heat_maps",
        "save": "pictures.heat_maps",
        "widget": "page.notebook",
    },
)
