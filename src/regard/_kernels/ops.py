"""Additive attention as operators of torch: they can be compiled, exported and differentiated once.

`regard::additive` computes the output, `regard::additive_backward` the gradients, `regard::additive_statistics` what an
`Observe` asks for. Query (L, Hq, Tq, H), key (L, Hkv, Tk, H), value (L, Hkv, Tk, Ev), weight (H,) or (Hq, H). Query i
may attend to the keys i + low <= j < i + high that ``keep`` (B, Tk) and ``table`` leave; bias and table broadcast to
(L, Hq, Tq, Tk). The kernels, and Numba with them, are loaded at the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import UnsupportedError

__all__ = ["additive", "statistics"]

_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor weight, Tensor? bias, Tensor? table, Tensor? keep"
_RANGE = "SymInt low, SymInt high"
_DROP = "Tensor? seed, float dropout_p"
torch.library.define("regard::additive", f"({_INPUTS}, {_RANGE}, {_DROP}, bool save) -> (Tensor, Tensor)")
torch.library.define(
    "regard::additive_backward",
    f"(Tensor of_output, Tensor saved, {_INPUTS}, {_RANGE}, {_DROP}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "regard::additive_statistics",
    f"({_INPUTS}, {_RANGE}, Tensor? received, int[] rows, int top, str[] names) -> Tensor[]",
)
additive = torch.ops.regard.additive.default
_backward = torch.ops.regard.additive_backward.default
statistics = torch.ops.regard.additive_statistics.default


def _additive_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    keep: Tensor | None,
    low: int,
    high: int,
    seed: Tensor | None,
    dropout_p: float,
    save: bool,
) -> tuple[Tensor, Tensor]:
    from regard._kernels import cpu

    problem = cpu.pose(query, key, value, weight, cpu.Masked(bias, table, keep, low, high))
    output, saved = cpu.forward(problem, cpu.dropout(dropout_p, seed), save)
    return output.view(*query.shape[:-1], value.shape[-1]).to(value.dtype), saved


@torch.library.register_fake("regard::additive")
def _additive_fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    if rest[-1]:
        raise UnsupportedError("weights are saved in eager mode alone")
    output = value.new_empty(*query.shape[:-1], value.shape[-1])
    return output, value.new_empty(0, dtype=_wide(value.dtype))


def _backward_cpu(
    of_output: Tensor,
    saved: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    keep: Tensor | None,
    low: int,
    high: int,
    seed: Tensor | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from regard._kernels import cpu

    problem = cpu.pose(query, key, value, weight, cpu.Masked(bias, table, keep, low, high))
    shape = (*problem.query.shape[:2], value.shape[-1])
    of_output = of_output.detach().to(problem.value.dtype).contiguous().view(shape)
    found = cpu.backward(problem, of_output, saved.detach(), bias, cpu.dropout(dropout_p, seed))
    of_weight = found.weight.view(-1, *weight.shape).sum(0)
    of_bias = of_output.new_empty(0) if found.bias is None else found.bias
    return (
        found.query.view(query.shape).to(query.dtype),
        _of_group(found.key, key).to(key.dtype),
        _of_group(found.value, value).to(value.dtype),
        of_weight.to(weight.dtype),
        of_bias.to(value.dtype),
    )


def _of_group(found: Tensor, tensor: Tensor) -> Tensor:
    """Add up the gradients of what was repeated for the query heads of a group."""
    L, heads, *rest = tensor.shape
    return found.view(L, heads, -1, *rest).sum(2) if found.numel() != tensor.numel() else found.view(tensor.shape)


@torch.library.register_fake("regard::additive_backward")
def _backward_fake(
    of_output: Tensor,
    saved: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_bias = value.new_empty(0) if bias is None else value.new_empty(bias.shape)
    grads = [x.new_empty(x.shape) for x in (query, key, value, weight)]
    return grads[0], grads[1], grads[2], grads[3], of_bias


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, weight, bias, table, keep, low, high, seed, dropout_p, _ = inputs
    ctx.save_for_backward(output[1], query, key, value, weight, bias, table, keep, seed)
    ctx.options = (low, high, dropout_p)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, of_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if of_output is None:
        return (None,) * 12
    *tensors, seed = ctx.saved_tensors
    low, high, dropout_p = ctx.options
    *of_inputs, of_bias = _backward(of_output, *tensors, low, high, seed, dropout_p)
    return (*of_inputs, of_bias if tensors[5] is not None else None, *(None,) * 7)


def _refuse(ctx: Any, *gradients: Tensor) -> None:
    raise UnsupportedError(
        'additive attention by impl="cpu" has no second derivative: use impl="reference", which has all of them'
    )


torch.library.impl("regard::additive", "cpu", _additive_cpu)
torch.library.impl("regard::additive_backward", "cpu", _backward_cpu)
torch.library.register_autograd("regard::additive", _differentiate, setup_context=_setup)
torch.library.register_autograd("regard::additive_backward", _refuse)


def _statistics_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    table: Tensor | None,
    keep: Tensor | None,
    low: int,
    high: int,
    received: Tensor | None,
    rows: Sequence[int],
    top: int,
    names: Sequence[str],
) -> list[Tensor]:
    from regard._kernels import cpu, cpu_statistics

    problem = cpu.pose(query, key, value, weight, cpu.Masked(bias, table, keep, low, high))
    found = cpu_statistics.gather(problem, received, rows, top, names)
    return [x.to(y.dtype).view(y.shape) for x, y in zip(found, _like(query, key, rows, top, names), strict=True)]


torch.library.impl("regard::additive_statistics", "cpu", _statistics_cpu)


@torch.library.register_fake("regard::additive_statistics")
def _statistics_fake(query: Tensor, key: Tensor, *rest: Any) -> list[Tensor]:
    return _like(query, key, *rest[-3:])


def _like(query: Tensor, key: Tensor, rows: Sequence[int], top: int, names: Sequence[str]) -> list[Tensor]:
    """Empty tensors for what was asked, in the order of the names."""
    L, heads, Tq, _ = query.shape
    keys, dtype = key.shape[2], _wide(query.dtype)
    sizes = {"weights": (Tq, keys), "rows": (len(rows), keys), "received": (keys,), "top": (Tq, top), "keys": (Tq, top)}
    return [
        query.new_empty((L, heads, *sizes.get(name, (Tq,))), dtype=torch.int64 if name == "keys" else dtype)
        for name in names
    ]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
