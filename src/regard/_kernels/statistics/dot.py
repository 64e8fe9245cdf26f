"""What an attention by dot products looked at, in blocks of its queries: memory grows with Tq + Tk, not with Tq * Tk.

A block is small enough to stay in the processor's cache from the product of its queries with the keys to its last sum.
The entropy comes from the scores while they are at hand, for no more than a product and a sum:

entropy_i = -sum_j P_ij ln P_ij = ln Z_i - sum_j P_ij (s_ij - max_i),  Z_i = sum_j exp(s_ij - max_i)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard._eager import is_eager_on_cpu
from regard._kernels.statistics import from_weights as statistics
from regard._kernels.statistics.from_weights import Asked

__all__ = ["Looked", "fits_one_block", "gather", "scored", "spoil"]

_SCORES = 2**19  # of one block
_ROWS = 128  # at least so many queries share one pass over the keys
_ON_GPU = 2**8  # times as many scores, to keep it busy
_VISITED = 2**2  # times as many where Numba reads them once, as two threads multiply large blocks better
_FEW = 64  # so many of the largest are kept in order while a row is visited
_NOTHING = -1000.0  # exp of it is 0 in every dtype, and so is 0 times it


class Looked(NamedTuple):
    """Query (L, Hq, Tq, E), key (L, Hkv, Tk, E), and what broadcasts to (L, Hq, Tq, Tk): nothing of that size is made.

    Query i sees the keys i + low <= j < i + high that ``table`` leaves, and a bias of -inf. Spoiled rows weigh NaN.
    """

    query: Tensor
    key: Tensor
    scale: float
    low: int
    high: int
    bias: Tensor | None
    table: Tensor | None
    spoiled: Tensor | None


class _Block(NamedTuple):
    """Some queries of one head, or all queries of some heads, or all of some examples; and the keys they may see."""

    examples: slice
    heads: slice  # of the query
    rows: slice
    keys: slice

    def of(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that broadcasts to (L, Hq, Tq, Tk)."""
        return tensor[tuple(at if n > 1 else slice(None) for at, n in zip(self, tensor.shape, strict=True))]


def fits_one_block(query: Tensor, keys: int) -> bool:
    """Whether the scores of these queries (..., Tq, E) are so few that their matrix is no larger than a block."""
    return query.shape[:-1].numel() * keys <= _most(query)


def gather(looked: Looked, asked: Asked) -> list[Tensor]:
    """What is asked for, in the order of the scores' axes."""
    L, Hq, Tq, _ = looked.query.shape
    Hkv, Tk = looked.key.shape[1:3]
    key = looked.key.float() if looked.key.dtype.itemsize < 4 else looked.key
    looked = looked._replace(key=key.detach(), query=looked.query.detach())
    if key.dtype == torch.float32 and is_eager_on_cpu(key) and asked.top <= _FEW:
        from regard._kernels.cpu import dot_statistics as dot_visits

        return dot_visits.gather(looked, asked)
    group = Hq // Hkv
    logsumexp = key.new_full((L * Hkv, group * Tq), -torch.inf)
    found = statistics.gather(_seen(looked, logsumexp, asked.names), logsumexp, group, Tk, asked)
    spoil(logsumexp.isnan().view(L, Hq, Tq, 1), looked, asked, found)
    return found


def spoil(bad: Tensor, looked: Looked, asked: Asked, answers: Sequence[Tensor]) -> None:
    """Make NaN also what rows of NaN, (L, Hq, Tq, 1), cannot see, in the answers that tell of it."""
    (L, Hq, Tq, _), Tk, device = looked.query.shape, looked.key.shape[2], bad.device
    for name, answer in zip(asked.names, answers, strict=True):
        if name == "received":
            answer.view(L, Hq, Tk).masked_fill_(bad.any(2), torch.nan)
        elif name == "rows":
            answer.view(L, Hq, -1, Tk).masked_fill_(bad[:, :, list(asked.rows)], torch.nan)
        elif name == "offsets":
            keys = torch.arange(Tk - Tq, Tk, device=device)[:, None] + torch.tensor(asked.offsets, device=device)
            none = (keys < 0) | (keys >= Tk)
            answer.view(L, Hq, Tq, -1).masked_fill_(bad & ~none, torch.nan).masked_fill_(none, 0.0)


def _most(query: Tensor) -> int:
    return _SCORES if query.is_cpu else _SCORES * _ON_GPU


def _blocks(looked: Looked, most: int) -> Iterator[_Block]:
    L, Hq, Tq, _ = looked.query.shape
    Hkv, Tk = looked.key.shape[1:3]
    group = Hq // Hkv
    # Of a band a block of n rows reaches n keys further than a row: this is the wider of both, twice.
    row = min(Tk, 2 * max(looked.high - looked.low, math.isqrt(most)))
    rows = max(most // max(row, 1), _ROWS)  # how many in a block, of whatever heads
    if looked.low > -Tq or looked.high < Tk:  # and an eighth of what each sees, or less, is multiplied in vain
        rows = min(rows, max(min(looked.high - looked.low, Tk) // 8, _ROWS))
    queries = min(rows, Tq)
    heads = 1 if rows < group * Tq else min(rows // (group * Tq), Hkv) * group
    examples = 1 if heads < Hq else max(rows // (Hq * Tq), 1)
    for example in range(0, L, examples):
        for head in range(0, Hq, heads):
            for first in range(0, Tq, queries):
                end = min(first + queries, Tq)
                keys = slice(max(first + looked.low, 0), min(end - 1 + looked.high, Tk))
                if keys.start < keys.stop:
                    some = slice(example, min(example + examples, L)), slice(head, min(head + heads, Hq))
                    yield _Block(*some, slice(first, end), keys)


def scored(looked: Looked, *, visited: bool = False) -> Iterator[tuple[_Block, Tensor]]:
    """The scores of each block, (examples, heads, rows, keys), with nothing hidden yet; one buffer serves all."""
    group = looked.query.shape[1] // looked.key.shape[1]
    buffer = looked.key.new_empty(0)
    for block in _blocks(looked, _SCORES * _VISITED if visited else _most(looked.query)):
        query = looked.query[block[:3]].to(buffer.dtype)
        key = looked.key[block.examples, block.heads.start // group : -(-block.heads.stop // group), block.keys]
        shape = (*query.shape[:3], key.shape[2])
        if buffer.numel() < math.prod(shape):
            buffer = buffer.new_empty(math.prod(shape))
        scores = buffer[: math.prod(shape)].view(shape)
        queries, keys = query.reshape(key.shape[0] * key.shape[1], -1, query.shape[3]), key.flatten(0, 1)
        of_keys = scores.view(*queries.shape[:2], key.shape[2])
        torch.baddbmm(scores.new_empty(1, 1, 1), queries, keys.mT, beta=0, alpha=looked.scale, out=of_keys)
        if looked.bias is not None:
            scores += block.of(looked.bias)
        yield block, scores


def _seen(looked: Looked, logsumexp: Tensor, names: Sequence[str]) -> Iterator[statistics.Seen]:
    """The weights of each block; fills in the logsumexp of its rows."""
    Hq, Tq = looked.query.shape[1:3]
    Hkv = looked.key.shape[1]
    group = Hq // Hkv
    weights = logsumexp.new_empty(0)
    for block, s in scored(looked):
        if weights.numel() < s.numel() and "entropy" in names:
            weights = logsumexp.new_empty(s.numel())
        w = weights[: s.numel()].view(s.shape) if "entropy" in names else s
        _hide(looked, block, s)
        hidden = s == -torch.inf if "top" in names else None
        sums, entropy = _weigh(looked, block, s, w)
        if hidden is not None:
            w.masked_fill_(hidden, -1.0)
        head = block.examples.start * Hkv + block.heads.start // group
        row = block.heads.start % group * Tq + block.rows.start
        heads = s.shape[0] * max(s.shape[1] // group, 1)
        of_rows = None if entropy is None else entropy.view(heads, -1)
        seen = statistics.Seen(head, row, block.keys.start, w.view(heads, -1, s.shape[3]), of_rows)
        logsumexp[seen.at] = sums.view(heads, -1)
        yield seen


def _hide(looked: Looked, block: _Block, scores: Tensor) -> None:
    """Make -inf what may not be seen."""
    if looked.table is not None:
        scores.masked_fill_(~block.of(looked.table), -torch.inf)
    key = block.keys.start
    first = 0 if key < block.rows.stop - 1 + looked.low else max(block.rows.start + looked.high - key, 0)
    if key + first < block.keys.stop:
        rows = torch.arange(block.rows.start, block.rows.stop, device=scores.device)
        ahead = torch.arange(key + first, block.keys.stop, device=scores.device) - rows[:, None]
        scores[..., first:].masked_fill_((ahead < looked.low) | (ahead >= looked.high), -torch.inf)


def _weigh(looked: Looked, block: _Block, scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scores to weights, which may take their place; logsumexp and, where they do not, entropy of each row."""
    largest = scores.amax(-1, keepdim=True)
    empty = largest == -torch.inf
    torch.exp(scores.sub_(largest), out=weights)
    total = weights.sum(-1, keepdim=True)
    weights.div_(total)
    of_total = total.log_()
    entropy = None
    if weights is not scores:
        entropy = of_total - scores.clamp_(min=_NOTHING).mul_(weights).sum(-1, keepdim=True)
    sums = largest + of_total
    for rows, weight, nothing in ((empty, 0.0, -torch.inf), (looked.spoiled, torch.nan, torch.nan)):
        if rows is not None:
            at = rows if rows is empty else block.of(rows)
            weights.masked_fill_(at, weight)
            sums.masked_fill_(at, nothing)
            entropy = None if entropy is None else entropy.masked_fill_(at, weight)
    return sums, entropy
