"""The operator `attention`, its score functions and masks, and the statistics of its weights."""

from __future__ import annotations

from regard.functional.attention import Impl, attention, explain_impl
from regard.functional.mask import Mask
from regard.functional.masks import causal, dense, from_torch, padding, window
from regard.functional.observe import Observation, Observe, Top
from regard.functional.observed import observed
from regard.functional.scores import Additive, Dot, General, ScaledDot, Score

__all__ = [
    "Additive",
    "Dot",
    "General",
    "Impl",
    "Mask",
    "Observation",
    "Observe",
    "ScaledDot",
    "Score",
    "Top",
    "attention",
    "causal",
    "dense",
    "explain_impl",
    "from_torch",
    "observed",
    "padding",
    "window",
]


def __dir__() -> list[str]:
    return __all__
