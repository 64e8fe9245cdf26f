"""The watch on any PyTorch model: statistics of its attentions while it runs unchanged.

A `TorchFunctionMode` receives torch's attention functions and regard's own as the model calls them, with the same
arguments; it calls them, and then computes statistics from query and key, without gradient. Hooks track the module at
work.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard._eager import is_eager
from regard.errors import ArgumentError, UnsupportedError
from regard.functional.observe import Observe
from regard.look.reading.heads import SUMMARISED
from regard.look.watch_record import WatchRecord
from regard.look.watching import huggingface, torch_multi_head
from regard.look.watching.functions import FUNCTIONS, Function
from regard.look.watching.modules import Modules
from regard.look.watching.recorder import Recorder, naming

__all__ = ["watch"]

_OBSERVE = replace(SUMMARISED, top=8)


@contextmanager
def watch(
    model: nn.Module,
    observe: Observe = _OBSERVE,
    *,
    layers: str | int | Sequence[str | int] | None = None,
    heads: int | Sequence[int] | None = None,
    keep_inputs: bool = False,
    memory: int = 2**28,
) -> Iterator[WatchRecord]:
    """Record the attention of a model while it runs: ``with watch(model) as record: model(...)``.

    P_i = softmax_j(score(q_i, k_j) + bias_ij) of every attention that the model computes by
    `F.scaled_dot_product_attention`, `F.multi_head_attention_forward` (`nn.MultiheadAttention`, `nn.Transformer`),
    `regard.attention`, or an attention function of transformers. Output, gradients and random numbers of the model stay
    bit-identical, with two exceptions: the fast path of `nn.TransformerEncoder` is off while it is watched, and
    compiled code runs uncompiled.

    - ``observe``: the statistics, small ones by default; see `Observe`. A query that is padding of its own sequence
      (if the module is known to attend to its own) adds nothing to ``received``. ``rows`` are those of each call.
      ``received`` is True or False.
    - ``layers``: only these modules, by name, by pattern ("*.self_attn"), or by number, in the order in which they
      first attend; ``heads``: only these, from 0.
    - ``keep_inputs``: record query and key too, which `Layer.observe` and rollout need.
    - ``memory``: the limit of the record in bytes; attentions beyond it are counted in ``record.left_out``, with a
      warning.

    The steps of a generation are joined into one `Layer` for each module; ``record.layers`` are complete when the watch
    ends. Only calls in the watching thread are recorded.

    Raises ArgumentError for wrong arguments, and for layers that do not attend; UnsupportedError for scripted, traced
    or exported models, for attention whose weights cannot be known, and if the model calls no attention.

    >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with watch(layer) as record:
    ...     output, _ = layer(x, x, x)
    >>> record.layers[0].name, record.layers[0].shape, record.layers[0].statistics.entropy.shape
    ('MultiheadAttention', (1, 2, 5, 5), torch.Size([1, 2, 5]))
    """
    _check(model, observe, memory)
    record = WatchRecord(observe=observe)
    recorder = Recorder(
        record, observe, _listed("layers", layers, str | int), _listed("heads", heads, int), keep_inputs, memory
    )
    modules = Modules(model, record)
    with ExitStack() as stack:
        stack.enter_context(_SETTINGS)
        if huggingface.is_loaded():
            stack.enter_context(_INTERFACES)
        stack.callback(recorder.finish)
        stack.enter_context(modules.hooked())
        stack.enter_context(_Watcher(modules, recorder))
        yield record
    recorder.check(modules.passes)


def _check(model: nn.Module, observe: Observe, memory: int) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"watch: expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(observe, Observe):
        raise ArgumentError(f"watch: expected an Observe such as Observe(entropy=True), got {observe!r}")
    if isinstance(observe.received, Tensor):
        raise ArgumentError(
            "watch: expected Observe(received=True) or False, got a tensor; queries differ from layer to layer"
        )
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise ArgumentError(f"watch(memory=): expected a number of bytes, got {memory!r}")
    if torch.compiler.is_compiling():
        raise UnsupportedError("watch cannot be compiled: call it outside of torch.compile and torch.export")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UnsupportedError("a scripted model cannot be watched: watch the model that it was made from")


def _listed(name: str, given: Any, kind: Any) -> list[Any] | None:
    if given is None:
        return None
    items = [given] if isinstance(given, str | int) else list(given)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, kind) or (isinstance(item, int) and item < 0):
            raise ArgumentError(
                f"watch({name}=): expected {'numbers' if kind is int else 'names or numbers'} from 0, got {item!r}"
            )
    return items


class _Shared:
    """A setting of the whole process: changed by the first watch, restored by the last."""

    def __init__(self, change: Callable[[], AbstractContextManager[None]]) -> None:
        self.change = change
        self.lock = threading.Lock()
        self.count = 0
        self.stack = ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            if self.count == 0:
                self.stack.enter_context(self.change())
            self.count += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                self.stack.close()


@contextmanager
def _plain() -> Iterator[None]:
    """Turn off fused and compiled attention within the context."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Imported already if there is compiled code; otherwise the import would cost a second.
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Watcher(TorchFunctionMode):
    """A mode that calls the functions of this thread unchanged, and reads the arguments of those that attend."""

    def __init__(self, modules: Modules, recorder: Recorder) -> None:
        super().__init__()
        self.modules = modules
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            return torch_multi_head.compute_opened(self, args, kwargs)
        output = func(*args, **kwargs)
        if func in FUNCTIONS:
            self._read(FUNCTIONS[func], args, kwargs)
        return output

    def _read(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call, made by the running module, or by the ``layer`` among the arguments."""
        huggingface.note_reported()
        if not self.modules.frames:
            return  # called outside the model
        frame = self.modules.frames[-1]
        name = self.modules.names.get(kwargs.get("layer"), frame.name)
        if not self.recorder.wants(name):
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            with naming(name):
                call = function.read(*args, **kwargs) if is_eager() else None
                if call is None or not is_eager(call.query):
                    raise UnsupportedError("the model does not run: it is being traced, exported or transformed")
            cross = call.cross if frame.cross is None else frame.cross
            self.recorder.add(name, replace(call, cross=cross), frame.position, self.modules.passes)


_SETTINGS = _Shared(_plain)
_INTERFACES = _Shared(huggingface.interfaces)
