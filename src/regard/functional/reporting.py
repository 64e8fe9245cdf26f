"""How attention is heard by whoever watches: by torch's own protocol, as `F.scaled_dot_product_attention` is.

A `torch.overrides.TorchFunctionMode` sees `attention` as one function, and nothing of what it calls within; `tell` is
for an attention that is part of a larger operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function

if TYPE_CHECKING:
    from regard.functional.masks import Mask
    from regard.functional.scores import Score

__all__ = ["is_heard", "tell"]


def is_heard() -> bool:
    """Whether a mode is active that may want to see a call. Compiled graphs have none."""
    return not torch.compiler.is_compiling() and bool(torch._C._is_torch_function_mode_enabled())


def tell(query: Tensor, key: Tensor, *, score: Score, mask: Mask | None, layer: nn.Module) -> None:
    """Say that ``layer`` has attended so, though neither it nor `attention` was called; arguments as of `attention`."""
    if is_heard():
        handle_torch_function(tell, (query, key), query, key, score=score, mask=mask, layer=layer)
