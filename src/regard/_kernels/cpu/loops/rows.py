"""Functions shared by the CPU's loops, and rows of weights: masks, softmax, dropout. Compiled by Numba at first use.

Vectors need indices that cannot be negative (``uintp``), division without a check (``error_model``), numbers of one
type (an integer times a float32 is a float64), and few pointers that might alias, as LLVM checks no more than eight
pairs when a loop begins.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

from regard._kernels.cpu.loops.threads import EXACT, INNER, Threaded

CHUNK = 32  # rows to a task


class Reach(NamedTuple):
    """The keys that each row may attend to, and the bias of its scores. Row r of a key head is query r % queries.

    ``table`` and ``bias`` are the storage of tensors that broadcast to (lead, heads, queries, keys), and its strides.
    """

    low: int  # query i sees the keys j with i + low <= j < i + high
    high: int
    queries: int
    keys: int
    kv_heads: int
    group: int
    sharing: int  # key heads that share one row of ``keep``
    kept: Any  # (B, 2): the first key that padding keeps, and the first behind the last
    has_kept: bool
    keep: Any  # (B, keys)
    has_keep: bool  # there are holes between these two
    table: Any
    table_strides: Any
    has_table: bool
    bias: Any
    bias_strides: Any
    has_bias: bool


class Block(NamedTuple):
    """Rows from ``row`` on of some key heads, against the ``width`` keys from ``key`` on, as a buffer holds them."""

    head: int
    heads: int
    row: int
    rows: int
    key: int
    width: int
    pitch: int  # rows that the buffer has for each head: ``rows``, filled up to whole passes
    stride: int  # from one row of the buffer to the next


def exp_within(x: Any) -> Any:
    """e^x for -87 < x < 88, or NaN; float32 in plain arithmetic, which becomes vectors: 2^n times the series of e^f."""
    raise NotImplementedError  # for compiled code alone


@overload(exp_within, jit_options={"fastmath": {"contract", "nsz"}})
def _compiled_exp(x):
    if x == types.float32:
        return _exp32
    return lambda x: math.exp(x)


def _exp32(x):
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    f = x - n * np.float32(0.693359375)  # ln 2 in two parts, the first with few digits: the product is exact
    f = f + n * np.float32(2.12194440e-4)
    e = np.float32(1 / 5040)
    e = e * f + np.float32(1 / 720)
    e = e * f + np.float32(1 / 120)
    e = e * f + np.float32(1 / 24)
    e = e * f + np.float32(1 / 6)
    e = e * f + np.float32(0.5)
    e = e * f * f + f + np.float32(1)
    return e * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(**INNER)
def exp(x):
    """e^x; 0 where it is too small for float32, and at most e^88."""
    low, high = type(x)(-87), type(x)(88)
    near = low if x < low else x
    near = high if near > high else near
    return type(x)(0) if x < low else exp_within(near)


@njit(**EXACT)
def bounds(keep):
    """For each row of (B, keys) the first key kept, and the first behind the last; and whether there are holes."""
    kept, holes = np.zeros((keep.shape[0], 2), np.int64), False
    for n in range(keep.shape[0]):
        count = 0
        for j in range(keep.shape[1]):
            if keep[n, j]:
                kept[n, 0] = kept[n, 0] if count else j
                kept[n, 1] = j + 1
                count += 1
        holes |= count < kept[n, 1] - kept[n, 0]
    return kept, holes


@njit(**INNER)
def span(head, row, block, reach):
    """First key, and first behind the last, that a row may attend to within the block, as far as structure tells."""
    i = row % reach.queries
    first, end = max(i + reach.low, block.key), min(i + reach.high, block.key + block.width, reach.keys)
    if reach.has_kept:
        example = head // reach.sharing
        first, end = max(first, reach.kept[example, 0]), min(end, reach.kept[example, 1])
    return first, max(first, end)


@njit(**INNER)
def place(strides, head, row, reach):
    """Where the row of a broadcast tensor begins in its storage."""
    q_head = (head % reach.kv_heads) * reach.group + row // reach.queries
    return head // reach.kv_heads * strides[0] + q_head * strides[1] + row % reach.queries * strides[2]


@njit(**INNER)
def has_hidden(reach):
    """Return True if padding or a table may hide keys within a row's `span`."""
    return reach.has_keep or reach.has_table


@njit(**INNER)
def hidden(head, row, j, at, reach):
    """Return True if padding or a table hides key j; ``at`` is the row's `place` in the table."""
    if reach.has_keep and reach.keep[head // reach.sharing, j] == 0:
        return True
    return reach.has_table and reach.table[at + j * reach.table_strides[3]] == 0


def ordered(bits: Any) -> Any:
    """The bits of a number, as an integer, to integers in the order of the numbers; and back."""
    raise NotImplementedError  # for compiled code alone


@overload(ordered)
def _compiled_ordered(bits):
    if bits == types.int32:
        return lambda bits: np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return lambda bits: bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@njit(**INNER)
def greatest(bits, at, count):
    """The largest of some numbers, from their bits: NaN does not keep such a loop from becoming vectors."""
    largest, begin = ordered(bits[at]), np.uintp(at)
    for j in range(np.uintp(count)):
        here = ordered(bits[begin + j])
        largest = here if here > largest else largest
    return ordered(largest)


def number(bits: Any) -> Any:
    """The floating number that has these bits."""
    raise NotImplementedError  # for compiled code alone


@overload(number)
def _compiled_number(bits):
    if bits == types.int32:
        return lambda bits: np.int32(bits).view(np.float32)
    return lambda bits: np.int64(bits).view(np.float64)


@njit(**INNER)
def _mask_row(scores, begin, head, row, first, count, reach):
    """Add the bias, and put -inf where padding or a table hides."""
    if reach.has_bias:
        stride = reach.bias_strides[3]
        of_bias = place(reach.bias_strides, head, row, reach) + first * stride
        for j in range(count):
            added = reach.bias[of_bias + np.intp(j) * stride]
            scores[begin + j] = scores[begin + j] + added if added != -np.inf else added
    if has_hidden(reach):
        of_table = place(reach.table_strides, head, row, reach)
        for j in range(count):
            if hidden(head, row, first + np.intp(j), of_table, reach):
                scores[begin + j] = -np.inf


@njit(**INNER)
def weigh_row(scores, bits, at, head, row, block, reach):
    """Scores of one row, which begins at ``at``, to weights, in place; gives the logsumexp. 0 where nothing is seen."""
    first, end = span(head, row, block, reach)
    count, begin = np.uintp(end - first), np.uintp(at + first - block.key)
    _mask_row(scores, begin, head, row, first, count, reach)
    for j in range(np.uintp(at), begin):
        scores[j] = 0
    for j in range(begin + count, np.uintp(at + block.width)):
        scores[j] = 0
    zero, one, least = scores.dtype.type(0), scores.dtype.type(1), scores.dtype.type(-np.inf)
    total = zero
    largest = number(greatest(bits, begin, count)) if count > 0 else least
    if largest == least:
        for j in range(count):
            scores[begin + j] = zero if scores[begin + j] == least else scores[begin + j]
            total += scores[begin + j]  # 0, or NaN
        return largest + total
    for j in range(count):
        e = exp(scores[begin + j] - largest)
        scores[begin + j] = e
        total += e
    inverse = one / total
    for j in range(count):
        scores[begin + j] *= inverse
    return largest + np.log(total)


@njit(**INNER)
def mixed(x):
    """Scatter the bits of a counter: two rounds of multiplying and folding."""
    x = np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = np.uint32(x) ^ (np.uint32(x) >> np.uint32(15))
    x = np.uint32(x) * np.uint32(0x846CA68B)
    return np.uint32(x) ^ (np.uint32(x) >> np.uint32(16))


@njit(**INNER)
def row_bits(row, drop):
    """A number made of the seed and the row."""
    low = mixed(np.uint32(drop.seed & 0xFFFFFFFF) ^ np.uint32(row & 0xFFFFFFFF))
    return mixed(np.uint32(low ^ np.uint32((drop.seed >> 32) & 0x7FFFFFFF)) + np.uint32(row >> 32))


@njit(**INNER)
def drop_row(factors, row, block, drop):
    """0 for the keys that dropout drops, 1/(1 - p) for the rest: a function of the seed, the row and the key alone."""
    of_row = row_bits(row, drop)
    scale, zero = factors.dtype.type(drop.scale), factors.dtype.type(0)
    threshold, key = np.uint32(drop.threshold), np.uint32(block.key)
    for j in range(np.uintp(block.width)):
        here = mixed(mixed(np.uint32(np.uint32(j) + key)) ^ of_row)
        factors[j] = scale if here >= threshold else zero


@njit(**INNER)
def weigh_rows(scores, bits, logsumexp, local, start, end, block, reach, drop):
    """Scores of some rows of a head to weights, in place, after dropout; and the logsumexp (N, R) of each."""
    factors = np.empty(block.width if drop.active else 0, scores.dtype)
    for r in range(start, end):
        head, row, at = block.head + local, block.row + r, (local * block.pitch + r) * block.stride
        logsumexp[head, row] = weigh_row(scores, bits, at, head, row, block, reach)
        if drop.active:
            drop_row(factors, head * logsumexp.shape[1] + row, block, drop)
            for j in range(np.uintp(block.width)):
                scores[np.uintp(at) + j] *= factors[j]


@njit(**INNER)
def pull_row(weights, pulls, at, factors, dropping, count):
    """From the gradients of dropped weights to those of scores, in place; and P to m P, where m is dropout's factor.

    dS_ij = P_ij (m_ij dP_ij - sum_k P_ik m_ik dP_ik), a sum that is exact where one key has all the weight.
    """
    begin, total = np.uintp(at), weights.dtype.type(0)
    if dropping:
        for j in range(np.uintp(count)):
            pulls[begin + j] *= factors[j]
    for j in range(np.uintp(count)):
        total += weights[begin + j] * pulls[begin + j]
    for j in range(np.uintp(count)):
        pulls[begin + j] = weights[begin + j] * (pulls[begin + j] - total)
    if dropping:
        for j in range(np.uintp(count)):
            weights[begin + j] *= factors[j]


@Threaded
def pull(begin, step, weights, pulls, block, rows, keys, drop):
    """`pull_row` for a block of a problem of so many rows and keys; what fills up passes and tiles gets 0."""
    chunks, count = (block.pitch + CHUNK - 1) // CHUNK, min(block.width, keys - block.key)
    for task in range(begin, block.heads * chunks, step):
        local, start = task // chunks, task % chunks * CHUNK
        factors = np.empty(block.width if drop.active else 0, weights.dtype)
        for r in range(start, min(start + CHUNK, block.pitch)):
            at = (local * block.pitch + r) * block.stride
            if r >= block.rows:
                pulls[at : at + block.width] = 0
                continue
            if drop.active:
                drop_row(factors, (block.head + local) * rows + block.row + r, block, drop)
            pull_row(weights, pulls, at, factors, drop.active, count)
            pulls[at + count : at + block.width] = 0


@Threaded
def hide(begin, step, weights, block, reach):
    """Put -1 where a row may not attend, so that it can be told from a weight that is 0."""
    for task in range(begin, block.heads, step):
        for r in range(block.rows):
            head, row, at = block.head + task, block.row + r, (task * block.pitch + r) * block.stride
            first, end = span(head, row, block, reach)
            of_table = place(reach.table_strides, head, row, reach)
            of_bias = place(reach.bias_strides, head, row, reach)
            for j in range(block.key, block.key + block.width):
                seen = first <= j < end and not hidden(head, row, j, of_table, reach)
                if not seen or (reach.has_bias and reach.bias[of_bias + j * reach.bias_strides[3]] == -np.inf):
                    weights[at + j - block.key] = -1
