"""Watch any PyTorch model: what its attentions look at, while it runs as it is.

A `TorchFunctionMode` sees torch's attention functions and `regard.attention` as the model calls them, with the very
arguments; it calls them with these, and then computes statistics from query and key, without gradient. Hooks tell which
module is at work.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard._eager import is_eager
from regard.errors import ArgumentError, UnsupportedError
from regard.functional.attention import attention
from regard.functional.masks import Mask
from regard.functional.observe import Observe
from regard.functional.reporting import tell
from regard.functional.scores import Score
from regard.look.watch_record import WatchRecord
from regard.look.watching import huggingface
from regard.look.watching.attention_call import Call, of_attention, of_product, of_sdpa
from regard.look.watching.modules import Modules
from regard.look.watching.recorder import Recorder
from regard.nn._head_groups import attention_of_heads

__all__ = ["watch"]

_OBSERVE = Observe(entropy=True, received=True, top=8, distance=True, offsets=(0, -1))


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
    """See what the attentions of a model look at, while it runs: ``with watch(model) as record: model(...)``.

    P_i = softmax_j(score(q_i, k_j) + bias_ij) of every attention that the model computes by
    `F.scaled_dot_product_attention`, `F.multi_head_attention_forward` (`nn.MultiheadAttention`, `nn.Transformer`),
    `regard.attention`, or an attention function of transformers. Output, gradients and random numbers of the model stay
    what they are, bit for bit, but for the fast path of `nn.TransformerEncoder`, which is off while it is watched, and
    for what is compiled, which runs uncompiled.

    - ``observe``: the statistics, small ones by default; see `Observe`. A query that is padding of its own sequence
      (where the watch knows that a module attends to its own) sends nothing to ``received``. ``rows`` are those of each
      call. ``received`` is True or False.
    - ``layers``: only these modules, by name, by pattern ("*.self_attn"), or by number, in the order in which they
      first attend; ``heads``: only these, from 0.
    - ``keep_inputs``: keep query and key too, so that `Layer.observe` can be asked later, and rollout computed.
    - ``memory``: the bytes that may be kept; what comes after is counted in ``record.left_out``, with a warning.

    The steps of a generation are joined to one `Layer` for each module; ``record.layers`` are complete when the watch
    ends. Only the thread that watches is seen.

    Raises ArgumentError for wrong arguments, and for layers that were not there; UnsupportedError for scripted, traced
    or exported models, for attention whose weights cannot be told, and where no attention was seen.

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
        if huggingface.loaded():
            stack.enter_context(_INTERFACES)
        stack.callback(recorder.finish)
        stack.enter_context(modules.hooked())
        stack.enter_context(_Watcher(modules, recorder).listening())
        yield record
    recorder.check(modules.passes)


def _check(model: nn.Module, observe: Observe, memory: int) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"watch: expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(observe, Observe):
        raise ArgumentError(f"watch: expected an Observe such as Observe(entropy=True), got {observe!r}")
    if isinstance(observe.received, Tensor):
        raise ArgumentError("watch: Observe(received=) must be True or False, as queries differ from layer to layer")
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise ArgumentError(f"watch(memory=) must be a number of bytes, got {memory!r}")
    if torch.compiler.is_compiling():
        raise UnsupportedError("watch cannot be compiled: leave it outside of torch.compile and torch.export")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UnsupportedError("a scripted model does not show its attention: watch the model that it was made of")


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
    """A setting of the whole process: changed by the first who watches, put back by the last."""

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
    """What is fused or compiled does not show its attention."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Whatever is compiled has imported this; it takes a second, which others need not wait for.
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclass
class _Product:
    """A call of `F.multi_head_attention_forward` under way: its batch, whether of two sequences, who saw its scores."""

    batch: int
    cross: bool
    seen: set[int] = field(default_factory=set)


class _Local(threading.local):
    """What is under way in a thread."""

    watchers: tuple[_Watcher, ...] = ()
    product: _Product | None = None
    asked: huggingface.Asked | None = None


_LOCAL = _Local()


class _Watcher(TorchFunctionMode):
    """Sees the calls of this thread, lets them compute what they compute, and reports what they were called with."""

    def __init__(self, modules: Modules, recorder: Recorder) -> None:
        super().__init__()
        self.modules = modules
        self.recorder = recorder

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = _LOCAL.watchers
        _LOCAL.watchers = (*before, self)
        try:
            with self:
                yield
        finally:
            _LOCAL.watchers = before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            return self._opened(args, kwargs)
        output = func(*args, **kwargs)
        product = _LOCAL.product
        if func is functional.scaled_dot_product_attention:
            self._sdpa(args, kwargs)
        elif func is attention:
            self.report(lambda: _of_attention(*args, **kwargs))
        elif func is attention_of_heads:
            self.report(lambda: replace(_of_attention(*args[1:], **kwargs), numbers=tuple(args[0].tolist())))
        elif func is tell:
            name = self.modules.names.get(kwargs["layer"])
            self.report(lambda: of_attention(args[0], args[1], kwargs["score"], kwargs["mask"]), cross=True, name=name)
        elif product is not None and func in (torch.bmm, torch.baddbmm) and id(self) not in product.seen:
            product.seen.add(id(self))  # of two products, scores and output, the first
            bias = args[0] if func is torch.baddbmm else None
            self.report(lambda: of_product(args[-2], args[-1], bias, product.batch), cross=product.cross)
        return output

    def _opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute `F.multi_head_attention_forward` by its own code, so that what it calls can be seen.

        By itself it hands the whole call to a mode once more, for as long as there is one.
        """
        whole = functional.multi_head_attention_forward
        code = {**vars(functional), "has_torch_function": lambda _: False}
        opened = FunctionType(whole.__code__, code, whole.__name__, whole.__defaults__, whole.__closure__)
        query, key = args[:2]
        before = _LOCAL.product
        _LOCAL.product = _Product(query.shape[1] if query.ndim == 3 else 1, key is not query)
        try:
            with self:
                return opened(*args, **kwargs)
        finally:
            _LOCAL.product = before

    def _sdpa(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        product, asked = _LOCAL.product, _LOCAL.asked
        if asked is None:
            self.report(lambda: of_sdpa(*args, **kwargs), cross=None if product is None else product.cross)
        else:
            asked.seen = True
            self.report(lambda: asked.unpacked(of_sdpa(*args, **kwargs)), cross=False)

    def report(self, called: Callable[[], Call], *, cross: bool | None = None, name: str | None = None) -> None:
        """Record a call, made by the module that is at work; ``cross`` is what is thought where that does not know."""
        if not self.modules.frames:
            return  # it is none of this model
        frame = self.modules.frames[-1]
        name = name or frame.name
        cross = cross if frame.cross is None else frame.cross
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self.recorder.add(name, partial(_checked, called, cross), frame.place, self.modules.passes)


def _checked(called: Callable[[], Call], cross: bool | None) -> Call:
    """The call, of a model that runs."""
    if is_eager():
        call = called()
        if is_eager(call.query):
            return replace(call, cross=cross)
    raise UnsupportedError("the model does not run: it is being traced, exported or transformed")


def _of_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    mask: Mask | Tensor | None,
    bias: Tensor | None,
    **_: Any,
) -> Call:
    return of_attention(query, key, score, mask, bias)


def _attend(
    name: str,
    function: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any = None,
    **options: Any,
) -> Any:
    """Call an attention function of transformers; what does not end in torch's own is reported by what it was given."""
    watchers, before = _LOCAL.watchers, _LOCAL.asked
    _LOCAL.asked = asked = huggingface.Asked(name, module, query, key, mask, options)
    try:
        answer = function(module, query, key, value, mask, **options)
    finally:
        _LOCAL.asked = before
    for watcher in () if asked.seen else watchers:
        watcher.report(partial(asked.call, answer, watcher.recorder), cross=False)
    return answer


_SETTINGS = _Shared(_plain)
_INTERFACES = _Shared(lambda: huggingface.interfaces(_attend))
