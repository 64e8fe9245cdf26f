"""Models of transformers: their attention functions, which the config names, and the caches they attend over.

While a model is watched, its interface returns the same functions, each wrapped in one that reports its arguments;
config and masks do not change. ``sdpa`` ends in `F.scaled_dot_product_attention`, which is read by itself; statistics
of the others are computed from their arguments, or from the weights that they return.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function

from regard.errors import UnsupportedError
from regard.functional.mask import Mask
from regard.functional.masks import causal, dense, padding, window
from regard.functional.reporting import is_watched
from regard.functional.scores import ScaledDot
from regard.look.watching.attention_call import AttentionCall, CachePosition

__all__ = [
    "cache_position",
    "interfaces",
    "is_cross",
    "is_loaded",
    "is_step",
    "note_reported",
    "read",
    "report_call",
    "within",
]

_MEMORIES = ("key_value_states", "encoder_hidden_states")
_CACHES = ("cache", "past_key_values", "past_key_value")  # the name depends on the version
_NO_SOFTMAX = ("softcap", "s_aux")  # capped scores, and further terms in the softmax


@dataclass(eq=False)
class PendingCall:
    """A call of an attention function under way; ``is_reported`` once a function within it was reported."""

    name: str
    module: nn.Module
    query: Tensor
    key: Tensor
    mask: Any
    options: dict[str, Any]
    is_reported: bool = False

    def unpack(self, call: AttentionCall) -> AttentionCall:
        """Return the call of torch's function with the model's own heads, and keys not repeated for them."""
        query, key = self.query.detach(), self.key.detach()
        Hq, Tq = query.shape[1:3]
        if call.query.shape != query.shape:
            if Tq != 1 or not torch.equal(call.query.reshape(-1), query.reshape(-1)):
                return call
            # Of a single token the queries of a group came as if they were queries of one head.
            call = call.map_scores(lambda x: x if x.shape[1] == 1 else x.reshape(x.shape[0], Hq, 1, x.shape[3]))
            call = replace(call, query=query)
        return replace(call, key=key[:, :, : call.key.shape[2]]) if self.name == "sdpa" else call

    def refuse(self, *unsupported: str) -> None:
        """Raise UnsupportedError for an option whose effect on the weights is unknown here."""
        for option in unsupported:
            if self.options.get(option) is not None:
                raise UnsupportedError(
                    f'attn_implementation="{self.name}" is called with {option}, and then its weights are unknown: '
                    'use attn_implementation="eager"'
                )

    def weights(self, answer: Any) -> Tensor:
        """Return the weights that the function returned; UnsupportedError if it returned none."""
        weights = answer[1] if isinstance(answer, tuple) and len(answer) > 1 else None
        if not isinstance(weights, Tensor) or weights.shape != (*self.query.shape[:3], self.key.shape[2]):
            raise UnsupportedError(
                f'attn_implementation="{self.name}" neither ends in torch\'s attention nor returns its weights: '
                'use "sdpa"'
            )
        drops = self.options.get("dropout") or any(m.p for m in self.module.modules() if isinstance(m, nn.Dropout))
        if self.module.training and drops:
            raise UnsupportedError(
                f'attn_implementation="{self.name}" returns its weights after dropout: call model.eval(), or use "sdpa"'
            )
        return weights


class _Local(threading.local):
    """The call under way in a thread."""

    call: PendingCall | None = None


_LOCAL = _Local()


def _call(
    name: str,
    function: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any = None,
    **options: Any,
) -> Any:
    """Call an attention function of transformers, and report it unless a function within it was."""
    before = _LOCAL.call
    _LOCAL.call = call = PendingCall(name, module, query, key, mask, options)
    try:
        answer = function(module, query, key, value, mask, **options)
    finally:
        _LOCAL.call = before
    if not call.is_reported:
        report_call(call, answer)
    return answer


def report_call(call: PendingCall, answer: Any) -> None:
    """Report a call that has ended to a watcher."""
    if is_watched():
        handle_torch_function(report_call, (call.query,), call, answer)


def note_reported() -> None:
    """Mark the call under way, if there is one, as reported by a function within it."""
    if _LOCAL.call is not None:
        _LOCAL.call.is_reported = True


def within(call: AttentionCall) -> AttentionCall:
    """Return the call as the enclosing attention function defines it, if there is one."""
    return call if _LOCAL.call is None else replace(_LOCAL.call.unpack(call), cross=False)


def read(call: PendingCall, answer: Any) -> AttentionCall:
    """Read the arguments of `report_call`: by the function's name, or by the weights that it returned."""
    query, key, mask, options = call.query.detach(), call.key.detach(), call.mask, call.options
    bias = options.get("position_bias")
    found = AttentionCall(query, key, ScaledDot(options.get("scaling")), cross=False)
    if "flex" in call.name:
        call.refuse(*_NO_SOFTMAX)
        mask, bias = _flex_mask(mask, query, key, bias)
        return replace(found, mask=mask, bias=bias)
    if "flash" in call.name:
        call.refuse(*_NO_SOFTMAX, "cu_seq_lens_q", "block_table")
        positions = options.get("position_ids")
        if mask is None and positions is not None and bool((positions.diff(dim=-1) != 1).any()):
            call.refuse("position_ids")
        return replace(found, mask=_flash_mask(call.module, mask, options))
    weights = call.weights(answer)
    is_softmax = all(options.get(option) is None for option in _NO_SOFTMAX)
    hidden = None
    if isinstance(mask, Tensor) and mask.ndim == 4:
        hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min
        hidden = hidden[..., : weights.shape[-1]]
    elif mask is not None:
        is_softmax, mask = False, None
    mask, bias = _split(mask, bias, weights.shape[-1])
    return replace(found, mask=mask, bias=bias, weights=weights, hidden=hidden, is_softmax=is_softmax)


def is_loaded() -> bool:
    """Return whether a model of transformers can exist in this process."""
    interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    return hasattr(interface, "get_interface")


@contextmanager
def interfaces() -> Iterator[None]:
    """Report the calls of transformers' attention functions within the context."""
    from transformers.modeling_utils import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return partial(_call, name, original(self, name, default))

    AttentionInterface.get_interface = get_interface  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        AttentionInterface.get_interface = original  # type: ignore[method-assign]


def is_cross(given: Mapping[str, Any]) -> bool:
    """Return whether a module with these arguments attends to another sequence."""
    return any(given.get(name) is not None for name in _MEMORIES)


def is_step(given: Mapping[str, Any]) -> bool:
    """Return whether a model with these arguments continues where a cache ends."""
    cache = _cache(given)
    return cache is not None and int(cache.get_seq_length()) > 0


def _cache(given: Mapping[str, Any]) -> Any:
    found = next((given[name] for name in _CACHES if given.get(name) is not None), None)
    return found if hasattr(found, "get_mask_sizes") else None


def cache_position(module: nn.Module, given: Mapping[str, Any]) -> CachePosition | None:
    """Return the position of a call in the cache that the module is given; in cross-attention, the queries' end."""
    cache = _cache(given)
    layer = getattr(module, "layer_idx", None)
    if layer is None or cache is None:
        return None
    length = int(cache.get_seq_length(layer))
    if is_cross(given):
        return CachePosition(weakref.ref(cache), length, 0, cross=True)
    held = getattr(cache, "self_attention_cache", cache).layers
    roomy = layer < len(held) and bool(getattr(held[layer], "is_compileable", False))
    return CachePosition(weakref.ref(cache), length, int(cache.get_mask_sizes(1, layer)[1]), cross=False, roomy=roomy)


def _flash_mask(module: nn.Module, mask: Tensor | None, options: dict[str, Any]) -> Mask:
    is_causal, size = options.get("is_causal"), options.get("sliding_window")
    found = causal() if (module.is_causal if is_causal is None else is_causal) else Mask()
    if size is not None:
        found &= window(size)
    return found if mask is None else found & padding(mask.bool())


def _flex_mask(
    mask: Any, query: Tensor, key: Tensor, position_bias: Tensor | None
) -> tuple[Mask | None, Tensor | None]:
    """Return mask and bias; a block mask becomes a table, as its function can be any."""
    if mask is None or isinstance(mask, Tensor):
        return _split(mask, position_bias, key.shape[2])
    from torch.nn.attention.flex_attention import create_mask

    heads = mask.shape[1] if mask.shape[1] > 1 else None
    table = create_mask(mask.mask_mod, mask.shape[0], heads, query.shape[2], key.shape[2], device=str(query.device))
    return dense(table), position_bias


def _split(mask: Tensor | None, bias: Tensor | None, keys: int) -> tuple[Mask | None, Tensor | None]:
    """Return mask and bias of eager attention, which adds to the scores a mask, bool or not, and a position bias."""
    if mask is None:
        return None, bias
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return dense(mask), bias
    return None, mask if bias is None else mask + bias
