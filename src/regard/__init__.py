"""Attention for PyTorch that you can see.

>>> import torch, regard
>>> query, memory = torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 5, 8)
>>> output, seen = regard.attention(query, memory, memory, mask=regard.causal(), observe=regard.Observe(entropy=True))
>>> output.shape, seen.entropy.shape
(torch.Size([2, 4, 3, 8]), torch.Size([2, 4, 3]))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regard import errors
from regard.functional import (
    Additive,
    Dot,
    General,
    Mask,
    Observation,
    Observe,
    ScaledDot,
    attention,
    causal,
    dense,
    explain_impl,
    padding,
    window,
)

if TYPE_CHECKING:
    from regard import nn, positions

__version__ = "0.1.0"
__all__ = [
    "Additive",
    "Dot",
    "General",
    "Mask",
    "Observation",
    "Observe",
    "ScaledDot",
    "__version__",
    "attention",
    "causal",
    "dense",
    "errors",
    "explain_impl",
    "nn",
    "padding",
    "positions",
    "window",
]


def __getattr__(name: str) -> Any:
    if name in ("nn", "positions"):  # imported when first named
        return importlib.import_module(f"regard.{name}")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
