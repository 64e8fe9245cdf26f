"""Detection of eager code: not compiled, traced or transformed. Only this module reads torch's private state for it.

Eager code may branch on values, and may pass an array to a loop outside of torch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, maybe_current_level
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

__all__ = ["accepts_cpu_loop", "active_transform", "is_eager", "is_eager_on_cpu"]


def is_eager(*tensors: Tensor) -> bool:
    """Return False within `torch.compile`, export, tracing and the transforms of `torch.func`, and for fake tensors."""
    return not (
        torch.compiler.is_compiling()
        or maybe_current_level() is not None
        or torch._C._get_tracing_state() is not None
        or any(isinstance(tensor, FakeTensor) for tensor in tensors)
    )


def is_eager_on_cpu(*tensors: Tensor) -> bool:
    """Return True where code is eager and all tensors are plain ones on the CPU: reading values is free."""
    return is_eager() and all(type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_cpu for tensor in tensors)


def accepts_cpu_loop(tensor: Tensor) -> bool:
    """Return True where a loop with a backward pass of its own may take the tensor: float32 or float64, eager, CPU."""
    return (
        tensor.dtype in (torch.float32, torch.float64)
        and is_eager_on_cpu(tensor)
        and forward_ad._current_level < 0  # such a loop has no forward-mode derivative
    )


def active_transform() -> Literal["forward-mode", "vmap", "torch.func"] | None:
    """Return the transform of eager code that is active around this call; "torch.func" is any other than `vmap`."""
    if torch.compiler.is_compiling():
        return None
    if forward_ad._current_level >= 0:
        return "forward-mode"
    if maybe_current_level() is None:
        return None
    kinds = [interpreter.key() for interpreter in get_interpreter_stack() or ()]
    return "vmap" if TransformType.Vmap in kinds else "torch.func"
