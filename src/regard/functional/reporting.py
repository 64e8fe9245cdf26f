"""Reports of attention calls to a watcher, by torch's own protocol, as for `F.scaled_dot_product_attention`.

A `torch.overrides.TorchFunctionMode` receives each call of `regard.functional.attention.attend` once, as one function,
without the calls inside it. `report_attention` is for an attention that is part of a larger operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function

if TYPE_CHECKING:
    from regard.functional.mask import Mask
    from regard.functional.scores import Score

__all__ = ["is_watched", "report_attention"]


def is_watched() -> bool:
    """Return whether a mode is active that receives reports of calls; False in compiled graphs."""
    return not torch.compiler.is_compiling() and bool(torch._C._is_torch_function_mode_enabled())


def report_attention(query: Tensor, key: Tensor, *, score: Score, mask: Mask | None, layer: nn.Module) -> None:
    """Report an attention that ``layer`` computed within another operation; the arguments are those of `attention`."""
    if is_watched():
        handle_torch_function(report_attention, (query, key), query, key, score=score, mask=mask, layer=layer)
