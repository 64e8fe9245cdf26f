"""Attention for PyTorch that you can see.

>>> import torch, regard
>>> query, memory = torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 5, 8)
>>> observe = regard.Observe(entropy=True)
>>> output, statistics = regard.attention(query, memory, memory, mask=regard.causal(), observe=observe)
>>> output.shape, statistics.entropy.shape
(torch.Size([2, 4, 3, 8]), torch.Size([2, 4, 3]))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from regard._version import __version__

if TYPE_CHECKING:
    from regard import errors, nn, positions
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
    from regard.look.watching.watch import watch
    from regard.nn._torch_multi_head import convert

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
    "convert",
    "dense",
    "errors",
    "explain_impl",
    "nn",
    "padding",
    "positions",
    "watch",
    "window",
]


def __getattr__(name: str) -> Any:
    # Imported at the first access and cached, so that `regard --help` does not import torch.
    if name in ("errors", "nn", "positions"):
        return importlib.import_module(f"regard.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    homes = {"convert": "regard.nn._torch_multi_head", "watch": "regard.look.watching.watch"}
    home = homes.get(name, "regard.functional")
    globals()[name] = found = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return __all__
