"""Inputs of additive attention as the CPU's loops take them: layout, mask, exponentials, and scratch memory."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard._kernels.cpu.loops import additive_packed as packed
from regard._kernels.cpu.loops import rows
from regard._kernels.cpu.loops.additive_packed import TILE
from regard._kernels.cpu.loops.rows import Block, Reach
from regard._kernels.dtypes import accumulation_dtype
from regard._kernels.mask_parts import MaskParts

__all__ = ["Packed", "PreparedInputs", "bits", "prepare", "reach", "scratch", "size"]

_WEIGHTS = 2**20  # in a block
_SKEW = 16  # numbers between rows, without which rows of a power of two would fight for the same lines of the cache
_FEW = 4  # queries for which exponentials of keys do not pay
_NO_STRIDES = np.zeros(4, np.int64)  # of a tensor that is not there
_NO_KEEP, _ALL_KEPT = np.zeros((1, 1), np.uint8), np.zeros((1, 2), np.int64)
_EMPTY = {torch.uint8: _NO_KEEP[0], torch.float32: np.zeros(1, np.float32), torch.float64: np.zeros(1)}


class Packed(NamedTuple):
    """The inputs of the packed loops, as `additive_packed.weigh` names them."""

    A: Any
    B: Any  # flat
    wide: int  # keys of a tile
    inverse: Any
    scale: Any


class PreparedInputs(NamedTuple):
    """Inputs in which the query heads of a key head are rows, side by side; in float32 or float64."""

    query: Tensor  # (N, R, H)
    key: Tensor  # (N, Tk, H)
    value: Tensor  # (N, Tk, Ev)
    score_vector: Tensor  # (nw, H): key head n has vector n % nw
    reach: Reach
    packed: Packed | None
    most: int = _WEIGHTS  # weights in a block

    def block(self, heads: tuple[int, int], rows: tuple[int, int], keys: tuple[int, int]) -> Block:
        """Return a block of heads, rows and keys: (first, count) each."""
        if self.packed is None:
            return Block(*heads, *rows, *keys, rows[1], keys[1])
        width = -(-keys[1] // self.tile) * self.tile
        return Block(*heads, *rows, keys[0], width, -(-rows[1] // 4) * 4, width + _SKEW)

    @property
    def tile(self) -> int:
        """Keys that are laid out together."""
        return 1 if self.packed is None else self.packed.wide

    @property
    def head_size(self) -> int:
        """Numbers in a buffer for all rows and keys of one head."""
        return size(self.block((0, 1), (0, self.query.shape[1]), (0, self.key.shape[1])))


def prepare(
    query: Tensor, key: Tensor, value: Tensor, score_vector: Tensor, bias: Tensor | None, mask: MaskParts
) -> PreparedInputs:
    """Prepare query (L, Hq, Tq, H), key (L, Hkv, Tk, H), value (L, Hkv, Tk, Ev) and score vector (H,) or (Hq, H)."""
    L, Hq, Tq, H = query.shape
    group = Hq // max(key.shape[1], 1)
    if group > 1 and score_vector.ndim == 2:  # each row of a key head has its own vector: give it its copy of the keys
        key, value, group = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), 1
    Hkv, Tk = key.shape[1], key.shape[2]
    dtype = accumulation_dtype(query.dtype)
    q, k = _plain(query, dtype, L * Hkv, group * Tq, H), _plain(key, dtype, L * Hkv, Tk, H)
    v, w = _plain(value, dtype, L * Hkv, Tk, value.shape[-1]), _plain(score_vector, dtype, -1, H)
    reached = reach(bias, mask, (L, Hq, Tq, Tk), Hkv, group, dtype)
    return PreparedInputs(q, k, v, w, reached, None if group * Tq < _FEW else _pack(q, k, v, w))


def _plain(tensor: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    tensor = tensor.detach()
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor.contiguous().view(shape)


def reach(
    bias: Tensor | None, mask: MaskParts, shape: tuple[int, int, int, int], Hkv: int, group: int, dtype: torch.dtype
) -> Reach:
    """Return mask and bias as the loops read them, for scores of this shape (L, Hq, Tq, Tk)."""
    L, _, Tq, Tk = shape
    keep, kept, holes = _NO_KEEP, _ALL_KEPT, False
    if mask.keep is not None:
        keep = mask.keep.detach().contiguous().view(torch.uint8).numpy()
        kept, holes = rows.bounds(keep)
    sharing = L * Hkv // max(1, keep.shape[0])
    table, table_strides = _storage(mask.table, shape, torch.uint8)
    numbers, bias_strides = _storage(bias, shape, dtype)
    return Reach(
        mask.low, mask.high, Tq, Tk, Hkv, group, max(sharing, 1), kept, mask.keep is not None, keep, holes,
        table, table_strides, mask.table is not None, numbers, bias_strides, bias is not None,
    )  # fmt: skip


def _storage(tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the numbers of a tensor as they lie in memory, and the strides with which it broadcasts to the shape."""
    if tensor is None or not tensor.numel():
        return _EMPTY[dtype], _NO_STRIDES
    tensor = tensor.detach()
    tensor = tensor.view(dtype) if tensor.dtype == torch.bool else tensor.to(dtype)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((extent,), (1,)).numpy(), np.array(tensor.expand(shape).stride())


def _pack(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Packed | None:
    """Return exponentials for the packed loops, or None if their range or a value forbids these loops."""
    N, H = k.shape[0], k.shape[2]
    if not k.numel() or not np.isfinite(packed.extremes(v.view(-1, v.shape[-1]).numpy())).all():
        return None
    inverse, shift = torch.empty_like(w).numpy(), np.zeros(H)
    largest_q, largest_k = (packed.extremes(x.view(-1, H).numpy()) for x in (q, k))
    if not packed.plan(largest_q, largest_k, w.numpy(), inverse, shift):
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
        """Return memory for so many numbers, valid until the same name is taken again; large memory is not kept."""
        if numbers > 2 * _WEIGHTS:
            return torch.empty(numbers, dtype=dtype)
        kept = self.kept.get((name, dtype))
        if kept is None or kept.size < numbers:
            kept = self.kept[name, dtype] = torch.empty(numbers, dtype=dtype).numpy()
        return torch.from_numpy(kept[:numbers])


scratch = Scratch()


def size(block: Block) -> int:
    """Return how many numbers the buffer of a block has."""
    return block.heads * block.pitch * block.stride


def bits(numbers: Any) -> Any:
    """Return the bits of an array of numbers, as integers in the same memory."""
    return numbers.view(np.int32 if numbers.itemsize == 4 else np.int64)
