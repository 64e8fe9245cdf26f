"""The running modules of a model, tracked by hooks: their names, and the facts about their calls known in advance."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.look.record import Record
from regard.look.watching import huggingface
from regard.look.watching.attention_call import CachePosition

__all__ = ["Frame", "Modules"]

_OTHERS = ("key", "keys", "source", "memory")  # the names, in attention layers, of the sequence attended to


class Frame(NamedTuple):
    """A running module. ``cross``: whether it attends to another sequence, None if unknown."""

    name: str
    module: nn.Module
    position: CachePosition | None
    cross: bool | None


class Modules:
    """The running modules of a model in this thread, the innermost last."""

    def __init__(self, model: nn.Module, record: Record) -> None:
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # a compiled model wraps the original
        self.record = record
        self.thread = threading.get_ident()
        self.names = {module: name for name, module in self.model.named_modules()}
        self.names[self.model] = type(self.model).__name__
        self.parameters = {module: _parameters(module) for module in self.names}
        self.frames: list[Frame] = []
        self.passes = 0

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Track the running modules within the context."""
        handles = []
        try:
            for module in self.names:
                handles.append(module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True))
                handles.append(module.register_forward_hook(self._end, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self.thread:
            return
        given = dict(zip(self.parameters[module], args, strict=False)) | kwargs
        self.passes += module is self.model
        if not self.frames:
            self._take_inputs(given)
        frame = Frame(self.names[module], module, huggingface.cache_position(module, given), _is_cross(given))
        self.frames.append(frame)

    def _end(self, module: nn.Module, *_: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        for at in range(len(self.frames) - 1, -1, -1):
            if self.frames[at].module is module:
                del self.frames[at:]
                return

    def _take_inputs(self, given: Mapping[str, Any]) -> None:
        """Record tokens and masks of the calls that the user makes; the tokens of a step follow those before."""
        inputs, is_step = self.record.inputs, huggingface.is_step(given)
        for name, value in given.items():
            if (
                not isinstance(value, Tensor)
                or value.is_floating_point()
                or value.is_complex()
                or value.ndim not in (1, 2)
            ):
                continue
            value = value.detach().to("cpu", copy=True)
            before = inputs.get(name)
            if is_step and before is not None and name.endswith("ids") and before.shape[:-1] == value.shape[:-1]:
                value = torch.cat([before, value], -1)
            inputs[name] = value


def _parameters(module: nn.Module) -> list[str]:
    """Return the names of the module's arguments that can be positional."""
    parameters = inspect.signature(module.forward).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _is_cross(given: Mapping[str, Any]) -> bool | None:
    """Return whether a module with these arguments attends to another sequence than that of its queries."""
    if huggingface.is_cross(given):
        return True
    if "query" not in given:
        return None
    if getattr(given.get("cache"), "fixed", False):  # a `regard.nn.KeyValueCache` of a memory
        return True
    other = next((given[name] for name in _OTHERS if given.get(name) is not None), None)
    return other is not None and other is not given["query"]
