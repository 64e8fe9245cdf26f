"""How the models of transformers attend: by the function that their config names, behind one interface.

While a model is watched the interface hands out the same functions, each within one of ours that looks at what it was
called with; config and masks are left as they are. ``sdpa`` ends in `F.scaled_dot_product_attention`, which is seen
anyhow; what is said of the others is computed from what they were given, or taken from the matrix that they return.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UnsupportedError
from regard.functional.attention import observed
from regard.functional.masks import Mask, causal, dense, padding, window
from regard.functional.observe import Observe
from regard.functional.scores import ScaledDot
from regard.look.watching.attention_call import CachePosition, Call
from regard.look.watching.recorder import Recorder

__all__ = ["Asked", "interfaces", "is_cross", "is_step", "loaded", "place_of"]

_MEMORIES = ("key_value_states", "encoder_hidden_states")
_CACHES = ("cache", "past_key_values", "past_key_value")  # by which name it comes depends on the version
_NO_SOFTMAX = ("softcap", "s_aux")  # scores that are capped, and what else takes part in the softmax
_AGREE = 1e-3


@dataclass
class Asked:
    """A call of an attention function that is under way; ``seen`` once it has ended in torch's own."""

    name: str
    module: nn.Module
    query: Tensor
    key: Tensor
    mask: Any
    options: dict[str, Any]
    seen: bool = False

    def unpacked(self, call: Call) -> Call:
        """What torch was called with, with the heads that the model means and keys that are not repeated for them."""
        query, key = self.query.detach(), self.key.detach()
        Hq, Tq = query.shape[1:3]
        if call.query.shape != query.shape:
            if Tq != 1 or not torch.equal(call.query.reshape(-1), query.reshape(-1)):
                return call
            # Of a single token the queries of a group came as if they were queries of one head.
            call = call.each(lambda x: x if x.shape[1] == 1 else x.reshape(x.shape[0], Hq, 1, x.shape[3]))
            call = replace(call, query=query)
        return replace(call, key=key[:, :, : call.key.shape[2]]) if self.name == "sdpa" else call

    def call(self, answer: Any, recorder: Recorder) -> Call:
        """What another function was called with, and gave back: by its name, or by the weights that it returns."""
        query, key, mask, options = self.query.detach(), self.key.detach(), self.mask, self.options
        score = ScaledDot(options.get("scaling"))
        if "flex" in self.name:
            self._refuse(*_NO_SOFTMAX)
            return Call(query, key, score, *_flex_mask(mask, query, key, options.get("position_bias")))
        if "flash" in self.name:
            self._refuse(*_NO_SOFTMAX, "cu_seq_lens_q", "block_table")
            positions = options.get("position_ids")
            if mask is None and positions is not None and bool((positions.diff(dim=-1) != 1).any()):
                self._refuse("position_ids")
            return Call(query, key, score, _flash_mask(self.module, mask, options))
        weights = self._weights(answer)
        hidden = None
        if isinstance(mask, Tensor) and mask.ndim == 4:
            hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min
            hidden = hidden[..., : weights.shape[-1]]
        if not recorder.keep and not recorder.observe.logsumexp:
            return Call(query, key, score, weights=weights, hidden=hidden)
        call = Call(query, key, score, *_added(mask, options.get("position_bias"), weights.shape[-1]))
        if any(options.get(option) is not None for option in _NO_SOFTMAX) or not _gives(call, weights):
            raise UnsupportedError(
                "its weights are no softmax of scaled products of query and key: these cannot be kept (keep=True), nor "
                "their logsumexp be told"
            )
        return call

    def _refuse(self, *unsupported: str) -> None:
        """What changes the weights in a way that no statistic here knows is refused rather than overlooked."""
        for option in unsupported:
            if self.options.get(option) is not None:
                raise UnsupportedError(
                    f'attn_implementation="{self.name}" is called with {option}, and then does not tell its weights: '
                    'use attn_implementation="eager"'
                )

    def _weights(self, answer: Any) -> Tensor:
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


def loaded() -> bool:
    """Whether there can be a model of transformers."""
    interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    return hasattr(interface, "get_interface")


@contextmanager
def interfaces(attend: Callable[..., Any]) -> Iterator[None]:
    """Within, each attention function ``f`` of transformers is called as ``attend(name, f, module, query, ...)``."""
    from transformers.modeling_utils import AttentionInterface

    original = AttentionInterface.get_interface

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return partial(attend, name, original(self, name, default))

    AttentionInterface.get_interface = get_interface  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        AttentionInterface.get_interface = original  # type: ignore[method-assign]


def is_cross(given: Mapping[str, Any]) -> bool:
    """Whether a module with these arguments attends to another sequence."""
    return any(given.get(name) is not None for name in _MEMORIES)


def is_step(given: Mapping[str, Any]) -> bool:
    """Whether a model with these arguments goes on where a cache ends."""
    cache = _cache(given)
    return cache is not None and int(cache.get_seq_length()) > 0


def _cache(given: Mapping[str, Any]) -> Any:
    found = next((given[name] for name in _CACHES if given.get(name) is not None), None)
    return found if hasattr(found, "get_mask_sizes") else None


def place_of(module: nn.Module, given: Mapping[str, Any]) -> CachePosition | None:
    """Where a call of this module stands, by the cache it is given; for cross-attention the end of the queries."""
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
    """Mask and bias; a block mask is written out, as its function may be any."""
    if mask is None or isinstance(mask, Tensor):
        return _added(mask, position_bias, key.shape[2])
    from torch.nn.attention.flex_attention import create_mask

    heads = mask.shape[1] if mask.shape[1] > 1 else None
    table = create_mask(mask.mask_mod, mask.shape[0], heads, query.shape[2], key.shape[2], device=str(query.device))
    return dense(table), position_bias


def _added(mask: Tensor | None, bias: Tensor | None, keys: int) -> tuple[Mask | None, Tensor | None]:
    """A mask or bias as eager attention adds it, and the bias of positions."""
    if mask is None:
        return None, bias
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return dense(mask), bias
    return None, mask if bias is None else mask + bias


def _gives(call: Call, weights: Tensor) -> bool:
    """Whether query and key of a call give the weights that the model returned, tried at the first and last query."""
    if not call.shape[2] or not call.shape[3]:
        return True
    what = Observe(rows=[0, -1])
    rows = observed(call.query, call.key, what, score=call.score, mask=call.mask, bias=call.bias).rows
    return rows is not None and bool((rows - weights[:, :, [0, -1]]).abs().max() <= _AGREE)
