"""A mask as kernels take it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["MaskParts"]


class MaskParts(NamedTuple):
    """Query i may attend to the keys j with ``i + low <= j < i + high`` that ``keep`` and ``table`` leave."""

    low: int
    high: int
    keep: Tensor | None  # (B, Tk) bool; the first axis L of the scores is a multiple of B
    table: Tensor | None  # bool, broadcasts to the scores
