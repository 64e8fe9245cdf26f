"""Additive attention on the CPU in linear memory: blocks of rows, scores by Numba's loops, P V by torch's BLAS.

A block is some rows against all the keys that they may attend to, so the softmax of a row is complete within it, and
only blocks of a fixed number of weights exist at a time. The backward pass computes them again; if there are no more
weights than inputs, the forward pass may keep them (``save``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard._kernels.cpu.loops import additive_direct as direct
from regard._kernels.cpu.loops import additive_packed as packed
from regard._kernels.cpu.loops import rows
from regard._kernels.cpu.loops.rows import Block, Reach
from regard._kernels.cpu.prepared_inputs import PreparedInputs, bits, scratch, size
from regard._kernels.dropout_mask import NO_DROPOUT, DropoutMask

__all__ = ["Gradients", "backward", "blocks", "fill_weights", "forward", "view_of"]

_PACKED_TERM, _DIRECT_TERM, _WEIGHT = 0.07, 0.4, 1.0  # nanoseconds, about


def blocks(inputs: PreparedInputs, *, whole: bool = False) -> Iterator[Block]:
    """Yield blocks that cover all rows which may attend to a key; ``whole``: one block."""
    N, R, _ = inputs.query.shape
    reach, keys, most = inputs.reach, inputs.reach.keys, inputs.most
    if not N * R * keys:
        return
    if whole or inputs.head_size <= most:
        heads = N if whole else most // inputs.head_size
        for n in range(0, N, heads):
            yield inputs.block((n, min(heads, N - n)), (0, R), (0, keys))
        return
    reached, count = min(keys, reach.high - reach.low), 4
    while 2 * count * min(keys, reached + 2 * count) <= most:
        count *= 2
    for n in range(N):
        for row in range(0, R, reach.queries):
            for i in range(0, reach.queries, count):
                rows = min(count, reach.queries - i)
                first, end = max(i + reach.low, 0), min(i + rows - 1 + reach.high, keys)
                if reach.has_kept:
                    kept = reach.kept[n // reach.sharing]
                    first, end = max(first, int(kept[0])), min(end, int(kept[1]))
                first = first // inputs.tile * inputs.tile
                if first < end:
                    yield inputs.block((n, 1), (row + i, rows), (first, end - first))


def fill_weights(inputs: PreparedInputs, block: Block, out: Any, logsumexp: Any, dropout: DropoutMask) -> None:
    """Write the weights of a block, after dropout, into ``out``, flat, and the logsumexp of its rows into (N, R)."""
    if inputs.packed is None:
        _attend(inputs, block, out, logsumexp, inputs.query.new_empty(*inputs.query.shape[:2], 0), dropout)
        return
    work = block.heads * block.rows * block.width * (inputs.query.shape[-1] * _PACKED_TERM + _WEIGHT)
    packed.weigh(work, *inputs.packed, out, bits(out), logsumexp, block, inputs.reach, dropout)


def _attend(
    inputs: PreparedInputs, block: Block, weights: Any, logsumexp: Any, output: Tensor, dropout: DropoutMask
) -> None:
    """Call `additive_direct.attend`, with as many features of the values as the output has."""
    q, k, v, w = inputs.query, inputs.key, inputs.value[..., : output.shape[2]].contiguous(), inputs.score_vector
    arrays, outputs = [x.numpy() for x in (q, k, v, w)], (bits(weights), logsumexp, output.numpy())
    work = block.heads * block.rows * block.width * (q.shape[2] * _DIRECT_TERM + output.shape[2] * 0.1)
    direct.attend(work, *arrays, weights, *outputs, block, inputs.reach, dropout)


def forward(inputs: PreparedInputs, dropout: DropoutMask, save: bool) -> tuple[Tensor, Tensor]:
    """Return the output (N, R, Ev), and all weights, flat, if they are to be saved."""
    value = inputs.value
    output = value.new_zeros(*inputs.query.shape[:2], value.shape[-1])
    saved, logsumexp = value.new_empty(0), value.new_empty(inputs.query.shape[:2]).numpy()
    for block in blocks(inputs, whole=save):
        buffer = saved = value.new_empty(size(block)) if save else scratch.take("weights", size(block), value.dtype)
        if inputs.packed is None:
            _attend(inputs, block, buffer.numpy(), logsumexp, output, dropout)
            continue
        fill_weights(inputs, block, buffer.numpy(), logsumexp, dropout)
        heads, keys, of_rows = _slices(block, value)
        torch.bmm(view_of(buffer, block, value.shape[1]), value[heads, keys], out=output[heads, of_rows])
    return output, saved if save else value.new_empty(0)


class Gradients(NamedTuple):
    """The gradients of the inputs as these are prepared."""

    query: Tensor  # (N, R, H)
    key: Tensor  # (N, Tk, H)
    value: Tensor  # (N, Tk, Ev)
    score_vector: Tensor  # (N, H)
    bias: Tensor | None  # as the bias, before it is broadcast


def backward(
    inputs: PreparedInputs, grad_output: Tensor, saved: Tensor, bias: Tensor | None, dropout: DropoutMask
) -> Gradients:
    """Return the gradients, given that of the output (N, R, Ev)."""
    value, logsumexp = inputs.value, inputs.value.new_empty(inputs.query.shape[:2])
    key = inputs.key
    if inputs.packed is not None:
        key = torch.from_numpy(inputs.packed.B).view(key.shape[0], -1, key.shape[2], inputs.tile)
    # A gradient to which a single block contributes is written by it, not added to.
    new_like = torch.empty_like if 0 < inputs.head_size <= inputs.most else torch.zeros_like
    grads = Gradients(
        torch.zeros_like(inputs.query),
        new_like(key),
        new_like(value),
        value.new_zeros(inputs.query.shape[0], inputs.query.shape[-1]),
        None if bias is None else value.new_zeros(bias.shape),
    )
    for block in blocks(inputs, whole=saved.numel() > 0):
        weights, grad_scores = saved, scratch.take("grad_scores", size(block), value.dtype)
        if not saved.numel():
            weights = scratch.take("weights", size(block), value.dtype)
            fill_weights(inputs, block, weights.numpy(), logsumexp.numpy(), NO_DROPOUT)
        _backward_block(inputs, block, weights, grad_scores, grad_output, grads, dropout)
        if grads.bias is not None:
            _backward_bias(inputs.reach, block, view_of(grad_scores, block, value.shape[1]), grads.bias)
    if inputs.packed is not None:
        factor, N = 4 * _per_head(inputs), inputs.key.shape[0]
        grads.query.mul_(factor)
        grads.score_vector.mul_(-2)
        grads = grads._replace(key=grads.key.mT.reshape(N, -1, factor.shape[-1])[:, : inputs.key.shape[1]] * factor)
    return grads


def _backward_block(
    inputs: PreparedInputs,
    block: Block,
    weights: Tensor,
    grad_scores: Tensor,
    grad_output: Tensor,
    grads: Gradients,
    dropout: DropoutMask,
) -> None:
    """Add what the rows of a block contribute to all gradients, and fill in that of their scores."""
    q, k, v = inputs.query, inputs.key, inputs.value
    work = block.heads * block.rows * block.width * q.shape[-1]
    sums = [x.numpy() for x in grads[:4]]
    if inputs.packed is None:
        arrays = [x.numpy() for x in (q, k, v, inputs.score_vector, weights, grad_scores, grad_output)]
        direct.gradients(work * 1.5 * _DIRECT_TERM, *arrays, *sums, block, dropout)
        return
    heads, keys, of_rows = _slices(block, v)
    dropped = view_of(weights, block, v.shape[1])
    grad_rows = grad_output[heads, of_rows]
    torch.bmm(grad_rows, v[heads, keys].mT, out=view_of(grad_scores, block, v.shape[1]))
    sizes = q.shape[1], v.shape[1]
    rows.pull(work / q.shape[-1] * _WEIGHT, weights.numpy(), grad_scores.numpy(), block, *sizes, dropout)
    if block.rows == q.shape[1]:
        torch.bmm(dropped.mT, grad_rows, out=grads.value[heads, keys])
    else:
        grads.value[heads, keys].baddbmm_(dropped.mT, grad_rows)
    A, B, *_ = inputs.packed
    dq, dk, _, dw = sums
    packed.gradients(work * 2 * _PACKED_TERM, A, B, grad_scores.numpy(), dq, dk, dw, block, inputs.reach)


def _per_head(inputs: PreparedInputs) -> Tensor:
    """Return the score vector of each key head, to be multiplied with (N, T, H)."""
    w = inputs.score_vector
    return w[:, None].repeat(inputs.query.shape[0] // w.shape[0], 1, 1) if w.shape[0] > 1 else w


def _backward_bias(reach: Reach, block: Block, grad_scores: Tensor, grad_bias: Tensor) -> None:
    """Add the gradients of a block's scores (heads, rows, keys) to those of the bias (l, h, q, k), sizes 1 or all."""
    L, H, Q, K = grad_bias.shape
    group = max(1, block.rows // reach.queries)
    part = grad_scores.reshape(block.heads, group, block.rows // group, grad_scores.shape[2])
    part = part.sum(2, keepdim=True) if Q == 1 else part
    part = part.sum(3, keepdim=True) if K == 1 else part
    n = torch.arange(block.head, block.head + block.heads)[:, None]
    head = n % reach.kv_heads * reach.group + block.row // reach.queries + torch.arange(group)
    index = (n // reach.kv_heads if L > 1 else 0) * H + (head if H > 1 else 0 * head)
    start = block.row % reach.queries
    queries = slice(None) if Q == 1 else slice(start, start + part.shape[2])
    keys = slice(None) if K == 1 else slice(block.key, block.key + part.shape[3])
    grad_bias.view(L * H, Q, K)[:, queries, keys].index_add_(0, index.flatten(), part.flatten(0, 1))


def view_of(buffer: Tensor, block: Block, keys: int) -> Tensor:
    """Return the rows and keys that exist, of a buffer that is filled up to whole tiles and passes."""
    filled = buffer[: size(block)].view(block.heads, block.pitch, block.stride)
    return filled[:, : block.rows, : min(block.width, keys - block.key)]


def _slices(block: Block, value: Tensor) -> tuple[slice, slice, slice]:
    """Return heads, keys and rows of a block."""
    keys = slice(block.key, min(block.key + block.width, value.shape[1]))
    return slice(block.head, block.head + block.heads), keys, slice(block.row, block.row + block.rows)
