"""`F.multi_head_attention_forward`, computed by its own code in such a way that the attention within can be read."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode, handle_torch_function

from regard.functional.reporting import is_watched
from regard.functional.scores import Dot
from regard.look.watching.attention_call import AttentionCall

__all__ = ["compute_opened", "read", "report_scores", "within"]


@dataclass
class _TorchMultiHeadCall:
    """A call under way. It stands in for the module torch in the function's code, and reports the scores' product."""

    batch: int
    cross: bool
    is_reported: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def bmm(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the product of queries and keys, or later that of weights and values."""
        product = torch.bmm(query, key)
        self._report(query, key, None)
        return product

    def baddbmm(self, bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return the product of queries and keys, plus a bias."""
        product = torch.baddbmm(bias, query, key)
        self._report(query, key, bias)
        return product

    def _report(self, query: Tensor, key: Tensor, bias: Tensor | None) -> None:
        if not self.is_reported:
            self.is_reported = True
            report_scores(query, key, bias, self.batch)


class _Local(threading.local):
    """The call under way in a thread."""

    call: _TorchMultiHeadCall | None = None


_LOCAL = _Local()


def compute_opened(mode: TorchFunctionMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute `F.multi_head_attention_forward` so that the mode receives the functions it calls.

    Otherwise the function would dispatch the whole call to a mode again, as long as one is active.
    """
    whole = functional.multi_head_attention_forward
    query, key = args[:2]
    before = _LOCAL.call
    _LOCAL.call = call = _TorchMultiHeadCall(query.shape[1] if query.ndim == 3 else 1, key is not query)
    code = {**vars(functional), "has_torch_function": lambda _: False, "torch": call}
    opened = FunctionType(whole.__code__, code, whole.__name__, whole.__defaults__, whole.__closure__)
    try:
        with mode:
            return opened(*args, **kwargs)
    finally:
        _LOCAL.call = before


def report_scores(query: Tensor, key: Tensor, bias: Tensor | None, batch: int) -> None:
    """Report the product of scaled queries (B H, Tq, E) and keys (B H, E, Tk) to a watcher."""
    if is_watched():
        handle_torch_function(report_scores, (query,), query, key, bias, batch)


def read(query: Tensor, key: Tensor, bias: Tensor | None, batch: int) -> AttentionCall:
    """Read the arguments of `report_scores`."""
    query, key = (x.detach().reshape(batch, -1, *x.shape[1:]) for x in (query, key.mT))
    if bias is not None:
        bias = bias.detach().reshape(batch if bias.shape[0] > 1 else 1, -1, *bias.shape[1:])
    return within(AttentionCall(query, key, Dot(), None, bias))


def within(call: AttentionCall) -> AttentionCall:
    """Return the call with ``cross`` from the `F.multi_head_attention_forward` around it, if there is one."""
    return call if _LOCAL.call is None else replace(call, cross=_LOCAL.call.cross)
