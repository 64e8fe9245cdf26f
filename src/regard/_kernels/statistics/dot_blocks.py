"""Scores of dot products in blocks of queries: memory grows with Tq + Tk, not with Tq * Tk.

A block is small enough to stay in the processor's cache from the product of its queries with the keys to its last sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard._eager import is_eager_on_cpu
from regard._kernels.dtypes import accumulation_dtype
from regard._kernels.mask_parts import MaskParts
from regard._kernels.statistics.request import StatisticsRequest

__all__ = ["BlockSlices", "DotScores", "fits_one_block", "prepare", "score_blocks", "served_by_scan", "set_nan"]

_SCORES = 2**19  # of one block
_ROWS = 128  # at least so many queries share one pass over the keys
_ON_GPU = 2**8  # times as many scores, to keep it busy
_SCANNED = 2**2  # times as many where Numba reads them once, as two threads multiply large blocks better
# The statistics that a scan computes; a request for any other is served by torch's operators.
_SCANNABLE = frozenset(
    ["rows", "received", "logsumexp", "entropy", "max", "position", "distance", "top", "keys", "offsets"]
)
_MOST_SORTED = 64  # so many of the largest weights a scan keeps in order


class DotScores(NamedTuple):
    """The scores ``scale`` * q . k + bias, of which one block exists at a time."""

    query: Tensor  # (L, Hq, Tq, E)
    key: Tensor  # (L, Hkv, Tk, E), in float32 or wider
    scale: float
    bias: Tensor | None  # broadcasts to (L, Hq, Tq, Tk)
    mask: MaskParts  # without ``keep``
    nan_rows: Tensor | None  # (L, Hq, Tq, 1) bool, broadcasts: their weights are NaN


class BlockSlices(NamedTuple):
    """Some queries of one head, or all queries of some heads, or all of some examples; and the visible keys."""

    examples: slice
    heads: slice  # of the query
    rows: slice
    keys: slice

    def of(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that broadcasts to (L, Hq, Tq, Tk)."""
        return tensor[tuple(at if n > 1 else slice(None) for at, n in zip(self, tensor.shape, strict=True))]


def prepare(
    query: Tensor, key: Tensor, scale: float, bias: Tensor | None, mask: MaskParts, nan_rows: Tensor | None
) -> DotScores:
    """Detach query and key, widen keys of half precision, and put the mask's ``keep`` into its ``table``."""
    keep, table = mask.keep, mask.table
    if keep is not None:
        keep = keep.repeat_interleave(query.shape[0] // max(keep.shape[0], 1), 0)[:, None, None]
        table = keep if table is None else table & keep
    mask = mask._replace(keep=None, table=table)
    return DotScores(query.detach(), key.detach().to(accumulation_dtype(key.dtype)), scale, bias, mask, nan_rows)


def fits_one_block(query: Tensor, keys: int) -> bool:
    """Return whether the matrix of the scores of these queries (..., Tq, E) is no larger than a block."""
    return query.shape[:-1].numel() * keys <= _most(query)


def served_by_scan(scores: DotScores, request: StatisticsRequest) -> bool:
    """Return whether `cpu.dot_statistics` can answer, which scans each row once by Numba."""
    known = _SCANNABLE.issuperset(request.names) and request.top <= _MOST_SORTED
    return known and scores.key.dtype == torch.float32 and is_eager_on_cpu(scores.key)


def set_nan(rows: Tensor, scores: DotScores, request: StatisticsRequest, answers: Sequence[Tensor]) -> None:
    """Set to NaN what ``rows`` (L, Hq, Tq, 1) contribute to "received", "rows" and "offsets", hidden keys included."""
    (L, Hq, Tq, _), Tk, device = scores.query.shape, scores.key.shape[2], rows.device
    for name, answer in zip(request.names, answers, strict=True):
        if name == "received":
            answer.view(L, Hq, Tk).masked_fill_(rows.any(2), torch.nan)
        elif name == "rows":
            answer.view(L, Hq, -1, Tk).masked_fill_(rows[:, :, list(request.rows)], torch.nan)
        elif name == "offsets":
            keys = torch.arange(Tk - Tq, Tk, device=device)[:, None] + torch.tensor(request.offsets, device=device)
            none = (keys < 0) | (keys >= Tk)
            answer.view(L, Hq, Tq, -1).masked_fill_(rows & ~none, torch.nan).masked_fill_(none, 0.0)


def score_blocks(scores: DotScores, *, scanned: bool = False) -> Iterator[tuple[BlockSlices, Tensor]]:
    """Yield the scores of each block, (examples, heads, rows, keys), with nothing hidden yet, in one buffer for all."""
    group = scores.query.shape[1] // scores.key.shape[1]
    buffer = scores.key.new_empty(0)
    for block in _blocks(scores, _SCORES * _SCANNED if scanned else _most(scores.query)):
        query = scores.query[block[:3]].to(buffer.dtype)
        key = scores.key[block.examples, block.heads.start // group : -(-block.heads.stop // group), block.keys]
        shape = (*query.shape[:3], key.shape[2])
        if buffer.numel() < math.prod(shape):
            buffer = buffer.new_empty(math.prod(shape))
        products = buffer[: math.prod(shape)].view(shape)
        queries, keys = query.reshape(key.shape[0] * key.shape[1], -1, query.shape[3]), key.flatten(0, 1)
        by_key_head = products.view(*queries.shape[:2], key.shape[2])
        torch.baddbmm(products.new_empty(1, 1, 1), queries, keys.mT, beta=0, alpha=scores.scale, out=by_key_head)
        if scores.bias is not None:
            products += block.of(scores.bias)
        yield block, products


def _most(query: Tensor) -> int:
    return _SCORES if query.is_cpu else _SCORES * _ON_GPU


def _blocks(scores: DotScores, most: int) -> Iterator[BlockSlices]:
    L, Hq, Tq, _ = scores.query.shape
    Hkv, Tk = scores.key.shape[1:3]
    group, (low, high, *_) = Hq // Hkv, scores.mask
    # Of a band a block of n rows reaches n keys further than a row: this is the wider of both, twice.
    row = min(Tk, 2 * max(high - low, math.isqrt(most)))
    rows = max(most // max(row, 1), _ROWS)  # how many in a block, of whatever heads
    if low > -Tq or high < Tk:  # and an eighth of the keys that each may see, or less, is multiplied in vain
        rows = min(rows, max(min(high - low, Tk) // 8, _ROWS))
    queries = min(rows, Tq)
    heads = 1 if rows < group * Tq else min(rows // (group * Tq), Hkv) * group
    examples = 1 if heads < Hq else max(rows // (Hq * Tq), 1)
    for example in range(0, L, examples):
        for head in range(0, Hq, heads):
            for first in range(0, Tq, queries):
                end = min(first + queries, Tq)
                keys = slice(max(first + low, 0), min(end - 1 + high, Tk))
                if keys.start < keys.stop:
                    lead = slice(example, min(example + examples, L)), slice(head, min(head + heads, Hq))
                    yield BlockSlices(*lead, slice(first, end), keys)
