"""Choice of the kernel for a call, and the reasons against the others."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from regard._eager import active_transform
from regard.errors import ArgumentError, UnsupportedError
from regard.functional.scores import Score

__all__ = ["Impl", "choose", "explain"]

Impl = Literal["auto", "reference", "sdpa", "cpu", "triton"]
_FAST = ("sdpa", "cpu", "triton")  # tried by auto in this order, before the reference
_ABOUT = {
    "reference": "the plain formula, which builds the matrix of scores",
    "sdpa": "torch's fused kernel",
    "cpu": "a kernel for additive scores, in linear memory",
    "triton": "a kernel for additive scores on a GPU, in linear memory",
}
# Sizes at which the formula was measured to be faster than torch's fused kernel on a CPU: the most weights in a head;
# in all heads, the least that outweigh a few more calls, and the most that do not cost too much memory.
_HEAD, _CALLS, _BUILT = 2**14, 2**14, 2**20
_ADDITIVE = ("additive", "additive scores")
_COMPUTES = {"sdpa": ("dot", "dot products"), "cpu": _ADDITIVE, "triton": _ADDITIVE}
_NO_RULE = {
    "forward-mode": "it has no forward-mode derivative",
    "vmap": "it has no batching rule for vmap",
    "torch.func": "it has no rule for the transforms of torch.func",
}
_HAS_TRITON, _INTERPRETS = find_spec("triton") is not None, os.environ.get("TRITON_INTERPRET") == "1"


def choose(impl: str, score: Score, query: Tensor, key: Tensor, dropout_p: float) -> str:
    """Return the kernel that serves a call; raise UnsupportedError if the named one cannot."""
    if impl not in ("auto", *_ABOUT):
        raise ArgumentError(f"impl must be one of {('auto', *_ABOUT)}, got {impl!r}")
    if impl == "reference":
        return impl
    if impl == "auto":
        if _why_reference(score, query, key, dropout_p):
            return "reference"
        return next((kernel for kernel in _FAST if not _why_not(kernel, score, query)), "reference")
    reason = _why_not(impl, score, query, interprets=_INTERPRETS)
    if reason:
        raise UnsupportedError(f'impl="{impl}" cannot serve this: {reason}; use impl="reference"')
    return impl


def explain(impl: str, taken: str, score: Score, query: Tensor, key: Tensor, dropout_p: float, note: str = "") -> str:
    """Return one line for the kernel that `choose` returned, with a note if that is sdpa, and one for each other."""
    why = _why_reference(score, query, key, dropout_p)
    if taken == "reference":
        note = f", {why}" if why and impl == "auto" else ""
    elif taken != "sdpa":
        note = ""
    lines = [f"{impl} takes {taken}: {_ABOUT[taken]}{note}"]
    for kernel in _ABOUT:
        if kernel == taken:
            continue
        if kernel == "reference":
            why = "it builds the matrix of scores"
        else:
            asked = "it would take longer" if impl == "auto" else f'impl="{impl}" was requested'
            why = _why_not(kernel, score, query) or asked
        lines.append(f"not {kernel}: {why}")
    return "\n".join(lines)


def _why_reference(score: Score, query: Tensor, key: Tensor, dropout_p: float) -> str:
    """Return why the reference is the fastest on a CPU; empty if it is not, or if a graph must serve all sizes."""
    if score.form != "dot" or torch.compiler.is_compiling():
        return ""
    if not query.is_cpu or query.dtype not in (torch.float32, torch.float64):
        return ""
    pairs = query.shape[-2] * key.shape[-2]
    if pairs <= _HEAD and _CALLS <= query.shape[:-2].numel() * pairs <= _BUILT:
        return "the fastest at this size"
    return "as torch's kernel does on a CPU where there is dropout" if dropout_p else ""


def _why_not(kernel: str, score: Score, query: Tensor, *, interprets: bool = False) -> str:
    """Return why a fused kernel cannot serve, or ""; with ``interprets`` Triton may run it on the CPU."""
    form, scores = _COMPUTES[kernel]
    if score.form != form:
        return f"it computes {scores}; {type(score).__name__} is not one"
    if kernel == "cpu" and not query.is_cpu:
        return f"the tensors are on {query.device}"
    if kernel == "triton" and not (query.is_cuda or (interprets and query.is_cpu)):
        return f"the tensors are on {query.device}"
    if kernel == "triton" and not _HAS_TRITON:
        return "triton is not installed (pip install triton)"
    transform = active_transform()
    return "" if transform is None else _NO_RULE[transform]
