"""Additive attention as operators of torch: they can be compiled, exported and differentiated once.

`regard::additive` computes the output, `regard::additive_backward` the gradients, `regard::additive_statistics` what an
`Observe` asks for. Query (L, Hq, Tq, H), key (L, Hkv, Tk, H), value (L, Hkv, Tk, Ev), score vector (H,) or (Hq, H).
The mask is a `MaskParts`, taken apart; bias and table broadcast to (L, Hq, Tq, Tk). ``kernel`` is "cpu" or "triton",
which serves tensors on the CPU too where Triton interprets. The kernels, and Numba or Triton with them, are loaded at
the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard._kernels.dropout_mask import DropoutMask
from regard._kernels.dtypes import accumulation_dtype
from regard._kernels.mask_parts import MaskParts
from regard._kernels.statistics.request import StatisticsRequest
from regard.errors import UnsupportedError

__all__ = ["additive", "statistics"]

_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor score_vector, Tensor? bias"
_MASK = "SymInt low, SymInt high, Tensor? keep, Tensor? table"
_DROPOUT = "Tensor? seed, float dropout_p"
torch.library.define("regard::additive", f"({_INPUTS}, {_MASK}, {_DROPOUT}, bool save, str kernel) -> (Tensor, Tensor)")
torch.library.define(
    "regard::additive_backward",
    f"(Tensor grad_output, Tensor? output, Tensor saved, {_INPUTS}, {_MASK}, {_DROPOUT}, str kernel) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "regard::additive_statistics",
    f"({_INPUTS}, {_MASK}, str[] names, Tensor? received, int[] rows, int top, int[] offsets, str kernel) -> Tensor[]",
)
_DEVICES = ("cpu", "cuda")
additive = torch.ops.regard.additive.default
_backward = torch.ops.regard.additive_backward.default
statistics = torch.ops.regard.additive_statistics.default


def _additive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_vector: Tensor,
    bias: Tensor | None,
    low: int,
    high: int,
    keep: Tensor | None,
    table: Tensor | None,
    seed: Tensor | None,
    dropout_p: float,
    save: bool,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    mask = MaskParts(low, high, keep, table)
    if kernel == "triton":
        from regard._kernels.triton import additive as triton

        return triton.forward(triton.Inputs(query, key, value, score_vector, bias, mask), seed, dropout_p)
    from regard._kernels.cpu import additive as cpu
    from regard._kernels.cpu.prepared_inputs import prepare

    inputs = prepare(query, key, value, score_vector, bias, mask)
    output, saved = cpu.forward(inputs, DropoutMask.of(dropout_p, seed), save)
    return output.view(*query.shape[:-1], value.shape[-1]).to(value.dtype), saved


@torch.library.register_fake("regard::additive")
def _additive_fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    save, kernel = rest[-2:]
    if save:
        raise UnsupportedError("weights are saved in eager mode alone")
    output, dtype = value.new_empty(*query.shape[:-1], value.shape[-1]), accumulation_dtype(value.dtype)
    return output, value.new_empty(query.shape[:-1] if kernel == "triton" else 0, dtype=dtype)


def _additive_backward(
    grad_output: Tensor,
    output: Tensor | None,
    saved: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_vector: Tensor,
    bias: Tensor | None,
    low: int,
    high: int,
    keep: Tensor | None,
    table: Tensor | None,
    seed: Tensor | None,
    dropout_p: float,
    kernel: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    mask = MaskParts(low, high, keep, table)
    if kernel == "triton" and output is not None:
        from regard._kernels.triton import additive as triton

        given = triton.Inputs(query, key, value, score_vector, bias, mask)
        return triton.backward(given, grad_output, output, saved, seed, dropout_p)
    from regard._kernels.cpu import additive as cpu
    from regard._kernels.cpu.prepared_inputs import prepare

    inputs = prepare(query, key, value, score_vector, bias, mask)
    shape = (*inputs.query.shape[:2], value.shape[-1])
    grad_output = grad_output.detach().to(inputs.value.dtype).contiguous().view(shape)
    made = cpu.backward(inputs, grad_output, saved.detach(), bias, DropoutMask.of(dropout_p, seed))
    grad_vector = made.score_vector.view(-1, *score_vector.shape).sum(0)
    grad_bias = grad_output.new_empty(0) if made.bias is None else made.bias
    grad_key, grad_value = _sum_groups(made.key, key), _sum_groups(made.value, value)
    grads = (made.query.view(query.shape), grad_key, grad_value, grad_vector, grad_bias)
    # Compiled code counts on the layout that the fake has.
    grad_query, grad_key, grad_value, grad_vector, grad_bias = (grad.to(query.dtype).contiguous() for grad in grads)
    return grad_query, grad_key, grad_value, grad_vector.to(score_vector.dtype), grad_bias


def _sum_groups(grad: Tensor, tensor: Tensor) -> Tensor:
    """Add up the gradients of what was repeated for the query heads of a group."""
    L, heads, *rest = tensor.shape
    return grad.view(L, heads, -1, *rest).sum(2) if grad.numel() != tensor.numel() else grad.view(tensor.shape)


@torch.library.register_fake("regard::additive_backward")
def _additive_backward_fake(
    grad_output: Tensor,
    output: Tensor | None,
    saved: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_vector: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_bias = value.new_empty(0) if bias is None else value.new_empty(bias.shape)
    grads = [x.new_empty(x.shape) for x in (query, key, value, score_vector)]
    return grads[0], grads[1], grads[2], grads[3], grad_bias


class _Additive(torch.autograd.Function):
    """The derivative. (`torch.library.register_autograd` does the same, and takes 60 microseconds more a call.)"""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            output, saved = additive(*inputs)
        query, key, value, score_vector, bias, low, high, keep, table, seed, dropout_p, _, kernel = inputs
        kept = output if kernel == "triton" else None
        ctx.save_for_backward(kept, saved, query, key, value, score_vector, bias, keep, table, seed)
        ctx.options = (low, high, dropout_p, kernel)
        ctx.mark_non_differentiable(saved)
        ctx.set_materialize_grads(False)
        return output, saved

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_output is None:
            return (None,) * 13
        *tensors, keep, table, seed = ctx.saved_tensors
        low, high, dropout_p, kernel = ctx.options
        *grads, grad_bias = _backward(grad_output, *tensors, low, high, keep, table, seed, dropout_p, kernel)
        return (*grads, grad_bias if tensors[6] is not None else None, *(None,) * 8)


def _differentiable(*inputs: Any) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs):
        answer: tuple[Tensor, Tensor] = _Additive.apply(*inputs)
        return answer
    with torch._C._AutoDispatchBelowAutograd():
        answer = additive(*inputs)
    return answer


def _refuse(ctx: Any, *gradients: Tensor) -> None:
    raise UnsupportedError(
        'additive attention by a fused kernel has no second derivative: use impl="reference", which has all of them'
    )


torch.library.impl("regard::additive", _DEVICES, _additive)
torch.library.impl("regard::additive_backward", _DEVICES, _additive_backward)
_library = torch.library.Library("regard", "FRAGMENT")
_library.impl("additive", _differentiable, "Autograd")
torch.library.register_autograd("regard::additive_backward", _refuse)


def _statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_vector: Tensor,
    bias: Tensor | None,
    low: int,
    high: int,
    keep: Tensor | None,
    table: Tensor | None,
    names: Sequence[str],
    received: Tensor | None,
    rows: Sequence[int],
    top: int,
    offsets: Sequence[int],
    kernel: str,
) -> list[Tensor]:
    mask, request = MaskParts(low, high, keep, table), StatisticsRequest(names, received, rows, top, offsets)
    if kernel == "triton":
        from regard._kernels.triton import additive as triton

        answers = triton.statistics(triton.Inputs(query, key, value, score_vector, bias, mask), request)
    else:
        from regard._kernels.cpu import additive_statistics
        from regard._kernels.cpu.prepared_inputs import prepare

        inputs = prepare(query, key, value, score_vector, bias, mask)
        answers = additive_statistics.statistics(inputs, request)
    return [x.to(y.dtype).view(y.shape) for x, y in zip(answers, _empty_answers(query, key, request), strict=True)]


torch.library.impl("regard::additive_statistics", _DEVICES, _statistics)


@torch.library.register_fake("regard::additive_statistics")
def _statistics_fake(query: Tensor, key: Tensor, *rest: Any) -> list[Tensor]:
    return _empty_answers(query, key, StatisticsRequest(*rest[-6:-1]))


def _empty_answers(query: Tensor, key: Tensor, request: StatisticsRequest) -> list[Tensor]:
    L, heads, Tq, _ = query.shape
    dtype = accumulation_dtype(query.dtype)
    return [
        query.new_empty((L, heads, *size), dtype=torch.int64 if name == "keys" else dtype)
        for name, size in request.sizes(Tq, key.shape[2]).items()
    ]
