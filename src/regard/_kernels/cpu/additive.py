"""Additive attention on the CPU in linear memory: blocks of rows, scores by Numba's loops, P V by torch's BLAS.

A block is some rows against all the keys that they may see, so the softmax of a row is complete within it, and only
blocks of a fixed number of weights exist at a time. Backward computes them anew; where there are no more weights than
inputs, forward may keep them (``save``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard._kernels.cpu.loops import additive_direct as direct
from regard._kernels.cpu.loops import additive_packed as packed
from regard._kernels.cpu.loops import rows
from regard._kernels.cpu.loops.additive_packed import TILE
from regard._kernels.cpu.loops.rows import Block, Drop, Reach

__all__ = ["Masked", "Problem", "backward", "bits", "dropout", "forward", "pose", "reach"]

_WEIGHTS = 2**20  # in a block
_SKEW = 16  # numbers between rows, without which rows of a power of two would fight for the same lines of the cache
_FEW = 4  # queries for which exponentials of keys do not pay
_PACKED_TERM, _DIRECT_TERM, _WEIGHT = 0.07, 0.4, 1.0  # nanoseconds, about
_NOTHING = np.zeros(4, np.int64)  # the strides of a tensor that is not there


class Masked(NamedTuple):
    """Who may attend to whom: query i to the keys i + low <= j < i + high that ``keep`` and ``table`` leave."""

    bias: Tensor | None  # broadcasts to (L, Hq, Tq, Tk)
    table: Tensor | None  # likewise, bool
    keep: Tensor | None  # (B, Tk) bool; L is a multiple of B
    low: int
    high: int


class Packed(NamedTuple):
    """What the packed loops read; see there."""

    A: Any
    B: Any  # flat
    wide: int  # keys of a tile
    inverse: Any
    scale: Any


class Problem(NamedTuple):
    """Inputs as the loops take them: the query heads of a key head are rows, side by side; float32 or float64."""

    query: Tensor  # (N, R, H)
    key: Tensor  # (N, Tk, H)
    value: Tensor  # (N, Tk, Ev)
    weight: Tensor  # (nw, H): key head n has vector n % nw
    reach: Reach
    packed: Packed | None

    def block(self, heads: tuple[int, int], rows: tuple[int, int], keys: tuple[int, int]) -> Block:
        """The block of so many heads, rows and keys from the first on: (first, count) each."""
        if self.packed is None:
            return Block(*heads, *rows, *keys, rows[1], keys[1])
        width = -(-keys[1] // self.tile) * self.tile
        return Block(*heads, *rows, keys[0], width, -(-rows[1] // 4) * 4, width + _SKEW)

    @property
    def tile(self) -> int:
        """Keys that are laid out together."""
        return 1 if self.packed is None else self.packed.wide

    @property
    def each(self) -> int:
        """Numbers that a buffer needs for all rows and keys of one head."""
        return size(self.block((0, 1), (0, self.query.shape[1]), (0, self.key.shape[1])))


def pose(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, masked: Masked) -> Problem:
    """The problem of query (L, Hq, Tq, H), key (L, Hkv, Tk, H), value (L, Hkv, Tk, Ev), weight (H,) or (Hq, H)."""
    L, Hq, Tq, H = query.shape
    group = Hq // max(key.shape[1], 1)
    if group > 1 and weight.ndim == 2:  # a vector for each row of a key head: give each its own copy of the keys
        key, value, group = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), 1
    Hkv, Tk = key.shape[1], key.shape[2]
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k = _plain(query, wide, L * Hkv, group * Tq, H), _plain(key, wide, L * Hkv, Tk, H)
    v, w = _plain(value, wide, L * Hkv, Tk, value.shape[-1]), _plain(weight, wide, -1, H)
    seen = reach(masked, (L, Hq, Tq, Tk), Hkv, group, wide)
    return Problem(q, k, v, w, seen, None if group * Tq < _FEW else _pack(q, k, v, w))


def _plain(tensor: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    tensor = tensor.detach()
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor.contiguous().view(shape)


def reach(masked: Masked, shape: tuple[int, int, int, int], Hkv: int, group: int, dtype: torch.dtype) -> Reach:
    """Who may attend to whom, as the loops read it, where scores have this shape."""
    L, _, Tq, Tk = shape
    keep, kept, holes = _NO_KEEP, _ALL_KEPT, False
    if masked.keep is not None:
        keep = masked.keep.detach().contiguous().view(torch.uint8).numpy()
        kept, holes = rows.bounds(keep)
    sharing = L * Hkv // max(1, keep.shape[0])
    table, table_strides = _storage(masked.table, shape, torch.uint8)
    bias, bias_strides = _storage(masked.bias, shape, dtype)
    return Reach(
        masked.low, masked.high, Tq, Tk, Hkv, group, max(sharing, 1), kept, masked.keep is not None, keep, holes,
        table, table_strides, masked.table is not None, bias, bias_strides, masked.bias is not None,
    )  # fmt: skip


_NO_KEEP, _ALL_KEPT = np.zeros((1, 1), np.uint8), np.zeros((1, 2), np.int64)
_EMPTY = {torch.uint8: _NO_KEEP[0], torch.float32: np.zeros(1, np.float32), torch.float64: np.zeros(1)}


def _storage(tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, Any]:
    """The numbers of a tensor as they lie in memory, and the strides with which it broadcasts to the shape."""
    if tensor is None or not tensor.numel():
        return _EMPTY[dtype], _NOTHING
    tensor = tensor.detach()
    tensor = tensor.view(dtype) if tensor.dtype == torch.bool else tensor.to(dtype)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((extent,), (1,)).numpy(), np.array(tensor.expand(shape).stride())


def _pack(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Packed | None:
    """Exponentials for the packed loops; None where these do not pay, or where a range or value forbids them."""
    N, H = k.shape[0], k.shape[2]
    if not k.numel() or not np.isfinite(packed.extremes(v.view(-1, v.shape[-1]).numpy())).all():
        return None
    inverse, shift = torch.empty_like(w).numpy(), np.zeros(H)
    of_q, of_k = (packed.extremes(x.view(-1, H).numpy()) for x in (q, k))
    if not packed.plan(of_q, of_k, w.numpy(), inverse, shift):
        return None
    shift = shift if shift.any() else shift[:0]
    wide = min(TILE, -(-k.shape[1] // 16) * 16)
    tiles = -(-k.shape[1] // wide)
    A = scratch.take("A", q.numel(), q.dtype).view(q.shape).numpy()
    B = scratch.take("B", N * tiles * H * wide, k.dtype).view(N, tiles, H, wide).numpy()
    packed.powers(q.numel() * 1.0 + k.numel() * 2.0, q.numpy(), k.numpy(), shift, -shift, A, B)
    return Packed(A, B.reshape(-1), wide, inverse, w.abs().amax(1).numpy())


class Scratch(threading.local):
    """Memory of a thread that serves one call after the other: new pages cost more than what is computed in them."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, torch.dtype], Any] = {}  # NumPy's, as a tensor made in inference mode stays one

    def take(self, name: str, numbers: int, dtype: torch.dtype) -> Tensor:
        """So many numbers, which hold until the same name is taken again; large ones are not kept."""
        if numbers > 2 * _WEIGHTS:
            return torch.empty(numbers, dtype=dtype)
        kept = self.kept.get((name, dtype))
        if kept is None or kept.size < numbers:
            kept = self.kept[name, dtype] = torch.empty(numbers, dtype=dtype).numpy()
        return torch.from_numpy(kept[:numbers])


scratch = Scratch()


def blocks(problem: Problem, *, whole: bool = False) -> Iterator[Block]:
    """Blocks that cover all rows which may see a key; ``whole``: one block."""
    N, R, _ = problem.query.shape
    reach, keys = problem.reach, problem.reach.keys
    if not N * R * keys:
        return
    if whole or problem.each <= _WEIGHTS:
        heads = N if whole else _WEIGHTS // problem.each
        for n in range(0, N, heads):
            yield problem.block((n, min(heads, N - n)), (0, R), (0, keys))
        return
    reached, count = min(keys, reach.high - reach.low), 4
    while 2 * count * min(keys, reached + 2 * count) <= _WEIGHTS:
        count *= 2
    for n in range(N):
        for row in range(0, R, reach.queries):
            for i in range(0, reach.queries, count):
                rows = min(count, reach.queries - i)
                first, end = max(i + reach.low, 0), min(i + rows - 1 + reach.high, keys)
                if reach.has_kept:
                    kept = reach.kept[n // reach.sharing]
                    first, end = max(first, int(kept[0])), min(end, int(kept[1]))
                first = first // problem.tile * problem.tile
                if first < end:
                    yield problem.block((n, 1), (row + i, rows), (first, end - first))


def size(block: Block) -> int:
    """Numbers in the buffer of a block."""
    return block.heads * block.pitch * block.stride


def weigh(problem: Problem, block: Block, out: Any, logsumexp: Any, drop: Drop) -> None:
    """The weights of a block into ``out``, flat, after dropout, and the logsumexp of its rows (N, R)."""
    if problem.packed is None:
        _attend(problem, block, out, logsumexp, problem.query.new_empty(*problem.query.shape[:2], 0), drop)
        return
    work = block.heads * block.rows * block.width * (problem.query.shape[-1] * _PACKED_TERM + _WEIGHT)
    packed.weigh(work, *problem.packed, out, bits(out), logsumexp, block, problem.reach, drop)


def _attend(problem: Problem, block: Block, weights: Any, logsumexp: Any, output: Tensor, drop: Drop) -> None:
    """`numba_direct.attend`, with as many features of the values as the output has."""
    q, k, v, w = problem.query, problem.key, problem.value[..., : output.shape[2]].contiguous(), problem.weight
    inputs, outputs = [x.numpy() for x in (q, k, v, w)], (bits(weights), logsumexp, output.numpy())
    work = block.heads * block.rows * block.width * (q.shape[2] * _DIRECT_TERM + output.shape[2] * 0.1)
    direct.attend(work, *inputs, weights, *outputs, block, problem.reach, drop)


def bits(numbers: Any) -> Any:
    """The bits of numbers, in the same memory."""
    return numbers.view(np.int32 if numbers.itemsize == 4 else np.int64)


def dropout(probability: float, seed: Tensor | None) -> Drop:
    if not probability or seed is None:
        return Drop(0, 0, 1.0, False)
    threshold = min(int(probability * 2**32), 2**32 - 1)
    return Drop(int(seed), threshold, 0.0 if probability >= 1 else 1 / (1 - probability), True)


def forward(problem: Problem, drop: Drop, save: bool) -> tuple[Tensor, Tensor]:
    """Output (N, R, Ev), and all weights, flat, if they are to be saved."""
    value = problem.value
    output = value.new_zeros(*problem.query.shape[:2], value.shape[-1])
    saved, logsumexp = value.new_empty(0), value.new_empty(problem.query.shape[:2]).numpy()
    for block in blocks(problem, whole=save):
        buffer = saved = value.new_empty(size(block)) if save else scratch.take("weights", size(block), value.dtype)
        if problem.packed is None:
            _attend(problem, block, buffer.numpy(), logsumexp, output, drop)
            continue
        weigh(problem, block, buffer.numpy(), logsumexp, drop)
        heads, keys, some = _slices(block, value)
        torch.bmm(shaped(buffer, block, value.shape[1]), value[heads, keys], out=output[heads, some])
    return output, saved if save else value.new_empty(0)


class Gradients(NamedTuple):
    query: Tensor  # (N, R, H)
    key: Tensor  # (N, Tk, H)
    value: Tensor  # (N, Tk, Ev)
    weight: Tensor  # (N, H)
    bias: Tensor | None  # as the bias, before it is broadcast


def backward(problem: Problem, of_output: Tensor, saved: Tensor, bias: Tensor | None, drop: Drop) -> Gradients:
    """Gradients, given that of the output (N, R, Ev)."""
    value, logsumexp = problem.value, problem.value.new_empty(problem.query.shape[:2])
    key = problem.key
    if problem.packed is not None:
        key = torch.from_numpy(problem.packed.B).view(key.shape[0], -1, key.shape[2], problem.tile)
    made = torch.empty_like if 0 < problem.each <= _WEIGHTS else torch.zeros_like  # what one block adds to, it fills
    found = Gradients(
        torch.zeros_like(problem.query),
        made(key),
        made(value),
        value.new_zeros(problem.query.shape[0], problem.query.shape[-1]),
        None if bias is None else value.new_zeros(bias.shape),
    )
    keep = Drop(0, 0, 1.0, False)
    for block in blocks(problem, whole=saved.numel() > 0):
        weights, pulls = saved, scratch.take("pulls", size(block), value.dtype)
        if not saved.numel():
            weights = scratch.take("weights", size(block), value.dtype)
            weigh(problem, block, weights.numpy(), logsumexp.numpy(), keep)
        _pull(problem, block, weights, pulls, of_output, found, drop)
        if found.bias is not None:
            _pull_bias(problem.reach, block, shaped(pulls, block, value.shape[1]), found.bias)
    if problem.packed is not None:
        factor, N = 4 * _per_head(problem), problem.key.shape[0]
        found.query.mul_(factor)
        found.weight.mul_(-2)
        found = found._replace(key=found.key.mT.reshape(N, -1, factor.shape[-1])[:, : problem.key.shape[1]] * factor)
    return found


def _pull(
    problem: Problem,
    block: Block,
    weights: Tensor,
    pulls: Tensor,
    of_output: Tensor,
    found: Gradients,
    drop: Drop,
) -> None:
    """Add what the rows of a block bring to all gradients; ``pulls`` becomes that of their scores."""
    q, k, v = problem.query, problem.key, problem.value
    work = block.heads * block.rows * block.width * q.shape[-1]
    sums = [x.numpy() for x in (found.query, found.key, found.value, found.weight)]
    if problem.packed is None:
        inputs = [x.numpy() for x in (q, k, v, problem.weight, weights, pulls, of_output)]
        direct.gradients(work * 1.5 * _DIRECT_TERM, *inputs, *sums, block, drop)
        return
    heads, keys, some = _slices(block, v)
    dropped = shaped(weights, block, v.shape[1])
    of_block = of_output[heads, some]
    torch.bmm(of_block, v[heads, keys].mT, out=shaped(pulls, block, v.shape[1]))
    rows.pull(work / q.shape[-1] * _WEIGHT, weights.numpy(), pulls.numpy(), block, q.shape[1], v.shape[1], drop)
    if block.rows == q.shape[1]:
        torch.bmm(dropped.mT, of_block, out=found.value[heads, keys])
    else:
        found.value[heads, keys].baddbmm_(dropped.mT, of_block)
    A, B, *_ = problem.packed
    dq, dk, _, dw = sums
    packed.gradients(work * 2 * _PACKED_TERM, A, B, pulls.numpy(), dq, dk, dw, block, problem.reach)


def _per_head(problem: Problem) -> Tensor:
    """The weight's vector of each key head, to be multiplied with (N, T, H)."""
    count = problem.weight.shape[0]
    return problem.weight[:, None].repeat(problem.query.shape[0] // count, 1, 1) if count > 1 else problem.weight


def _pull_bias(reach: Reach, block: Block, of_scores: Tensor, found: Tensor) -> None:
    """Add the gradients of a block's scores (heads, rows, keys) to those of the bias (l, h, q, k), sizes 1 or all."""
    L, H, Q, K = found.shape
    group = max(1, block.rows // reach.queries)
    part = of_scores.reshape(block.heads, group, block.rows // group, of_scores.shape[2])
    part = part.sum(2, keepdim=True) if Q == 1 else part
    part = part.sum(3, keepdim=True) if K == 1 else part
    n = torch.arange(block.head, block.head + block.heads)[:, None]
    head = n % reach.kv_heads * reach.group + block.row // reach.queries + torch.arange(group)
    index = (n // reach.kv_heads if L > 1 else 0) * H + (head if H > 1 else 0 * head)
    start = block.row % reach.queries
    some = slice(None) if Q == 1 else slice(start, start + part.shape[2])
    keys = slice(None) if K == 1 else slice(block.key, block.key + part.shape[3])
    found.view(L * H, Q, K)[:, some, keys].index_add_(0, index.flatten(), part.flatten(0, 1))


def shaped(buffer: Tensor, block: Block, keys: int) -> Tensor:
    """The rows and keys that there are, of a buffer that is filled up to whole tiles and passes."""
    filled = buffer[: size(block)].view(block.heads, block.pitch, block.stride)
    return filled[:, : block.rows, : min(block.width, keys - block.key)]


def _slices(block: Block, value: Tensor) -> tuple[slice, slice, slice]:
    """Heads, keys and rows of a block."""
    keys = slice(block.key, min(block.key + block.width, value.shape[1]))
    return slice(block.head, block.head + block.heads), keys, slice(block.row, block.row + block.rows)
