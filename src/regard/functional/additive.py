"""Additive attention by the operators of `regard._kernels.ops`: arguments as they want them, answers as asked for.

Nothing of the size of the scores is made here, and nothing needs to be shielded: kernels do not read what is masked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard._kernels import ops
from regard.functional.masks import Mask
from regard.functional.observe import Observation, Observe, answered, asked_of

__all__ = ["attend_additive", "broadcast", "four_axes", "observe_additive"]


def attend_additive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Mask | None,
    shape: tuple[int, ...],
    dropout_p: float,
    observe: Observe | None,
    kernel: str,
) -> tuple[Tensor, Observation | None]:
    """The output, and what is to be observed of scores of this ``shape``; ``kernel`` is "cpu" or "triton"."""
    inputs, low, high = _inputs(query, key, value, weight, bias, mask, shape)
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout_p else None
    save = kernel == "cpu" and not dropout_p and _worth_saving(inputs)
    output, _ = ops.additive(*inputs, low, high, seed, dropout_p, save, kernel)
    output = output.view(*query.shape[:-1], value.shape[-1])
    if observe is None:
        return output, None
    with torch.no_grad():
        return output, _observation(observe, inputs, low, high, shape, kernel)


def observe_additive(
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Mask | None,
    shape: tuple[int, ...],
    observe: Observe,
    kernel: str,
) -> Observation:
    """What is to be observed, without an output."""
    inputs, low, high = _inputs(query, key, key, weight, bias, mask, shape)
    return _observation(observe, inputs, low, high, shape, kernel)


def _inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Mask | None,
    shape: tuple[int, ...],
) -> tuple[tuple[Tensor | None, ...], int, int]:
    """The tensors as the operators take them, and which keys a query sees at most."""
    low, high, keep, table = (mask or Mask()).parts(shape, query.device)
    masked = broadcast(bias, shape), broadcast(table, shape), keep
    return (*map(four_axes, (query, key, value)), weight, *masked), low, high


def _worth_saving(inputs: tuple[Tensor | None, ...]) -> bool:
    """Whether backward will come, and the weights are no larger than query and output."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    _, key, value, *_ = inputs
    small = key is not None and value is not None and key.shape[2] <= key.shape[3] + value.shape[3]
    return small and any(x is not None and x.requires_grad for x in inputs)


def _observation(
    what: Observe, inputs: tuple[Tensor | None, ...], low: int, high: int, shape: tuple[int, ...], kernel: str
) -> Observation:
    asked = asked_of(what, shape[-1])
    return answered(asked, ops.statistics(*inputs, low, high, *asked, kernel), shape)


def four_axes(tensor: Tensor) -> Tensor:
    """(..., heads, T, E) as (L, heads, T, E)."""
    if tensor.ndim <= 4:
        return tensor[(None,) * (4 - tensor.ndim)] if tensor.ndim < 4 else tensor
    return tensor.reshape(-1, *tensor.shape[-3:])


def broadcast(tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """What broadcasts to (..., heads, Tq, Tk), so that it broadcasts to (L, heads, Tq, Tk)."""
    if tensor is None or tensor.ndim <= 4:
        return None if tensor is None else four_axes(tensor)
    if any(size != 1 for size in tensor.shape[:-3]):
        tensor = tensor.expand(*shape[:-3], *tensor.shape[-3:])
    return four_axes(tensor)
