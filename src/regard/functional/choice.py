"""Which kernel serves a call, and why not the others."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor
from torch._C._functorch import CInterpreter, TransformType, get_interpreter_stack
from torch.autograd import forward_ad

from regard.errors import ArgumentError, UnsupportedError
from regard.functional.scores import Additive, Score

__all__ = ["Impl", "choose", "explain"]

Impl = Literal["auto", "reference", "sdpa", "cpu", "triton"]
_FAST = ("sdpa", "cpu", "triton")  # what auto tries, in this order, before the reference
_ABOUT = {
    "reference": "the plain formula, which builds the matrix of scores",
    "sdpa": "torch's fused kernel",
    "cpu": "a kernel for additive scores, in linear memory",
    "triton": "a kernel for additive scores on a GPU, in linear memory",
}
_HAS_TRITON, _INTERPRETS = find_spec("triton") is not None, os.environ.get("TRITON_INTERPRET") == "1"
_TRANSFORMED = "a torch.func transform may differentiate twice, which it cannot"


def choose(impl: str, score: Score, query: Tensor) -> str:
    """The kernel that serves; a named one, or UnsupportedError."""
    if impl not in ("auto", *_ABOUT):
        raise ArgumentError(f"impl must be one of {('auto', *_ABOUT)}, got {impl!r}")
    if impl == "reference":
        return impl
    if impl == "auto":
        if _interpreters():
            return "reference"
        return next((kernel for kernel in _FAST if not _obstacle(kernel, score, query)), "reference")
    obstacle = _obstacle(impl, score, query, interprets=_INTERPRETS)
    if obstacle:
        raise UnsupportedError(f'impl="{impl}" cannot serve this: {obstacle}; use impl="reference"')
    return impl


def explain(impl: str, score: Score, query: Tensor, note: str = "") -> str:
    """A line for the kernel taken, with a note on sdpa, and one for each that is not."""
    taken = choose(impl, score, query)
    lines = [f"{impl} takes {taken}: {_ABOUT[taken]}{note if taken == 'sdpa' else ''}"]
    for kernel in _ABOUT:
        if kernel == taken:
            continue
        if kernel == "reference":
            why = "it builds the matrix of scores"
        else:
            asked = _TRANSFORMED if _interpreters() else f'impl="{impl}" was asked for'
            why = _obstacle(kernel, score, query) or asked
        lines.append(f"not {kernel}: {why}")
    return "\n".join(lines)


def _obstacle(kernel: str, score: Score, query: Tensor, *, interprets: bool = False) -> str:
    """Why a fused kernel cannot serve, empty where it can; a named one also where Triton interprets it on the CPU."""
    additive = isinstance(score, Additive)
    if kernel == "sdpa" and additive:
        return "it computes dot products, and Additive is none"
    if kernel in ("cpu", "triton") and not additive:
        return f"it computes additive scores, and {type(score).__name__} is none"
    if kernel == "cpu" and not query.is_cpu:
        return f"the tensors are on {query.device}"
    if kernel == "triton" and not (query.is_cuda or (interprets and query.is_cpu)):
        return f"the tensors are on {query.device}"
    if kernel == "triton" and not _HAS_TRITON:
        return "triton is not installed (pip install triton)"
    if torch.compiler.is_compiling():
        return ""
    if forward_ad._current_level >= 0:
        return "it has no forward-mode derivative"
    if any(interpreter.key() == TransformType.Vmap for interpreter in _interpreters()):
        return "it has no batching rule for vmap"
    if kernel in ("cpu", "triton") and _interpreters():
        return "it has no rule for the transforms of torch.func"
    return ""


def _interpreters() -> list[CInterpreter]:
    """The function transforms (torch.func) that are active around this call, outermost first."""
    return [] if torch.compiler.is_compiling() else get_interpreter_stack() or []
