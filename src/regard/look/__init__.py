"""Pictures of what a model attended to."""

from __future__ import annotations

from regard.look.plots import Alignment, alignment, alignments, grid, position_encoding, save

__all__ = ["Alignment", "alignment", "alignments", "grid", "position_encoding", "save"]
