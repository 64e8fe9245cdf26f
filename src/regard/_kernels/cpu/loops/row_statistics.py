"""One visit of each row of scores, while the product that made it is in the cache, tells all that is asked of it.

First its largest score, then e_j = exp(s_j - max), their sum Z and sums of e_j times what is asked for; and, four rows
at a time, the sums of columns, r_i e_ij / Z_i.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from regard._kernels.cpu.loops.rows import exp_within, greatest, number, ordered
from regard._kernels.cpu.loops.threads import INNER, Threaded

__all__ = ["CHUNK", "Part", "Table", "Told", "visit"]

_TOGETHER = 4  # rows that one pass over the columns takes
CHUNK = 16  # rows to a task
_LANES = np.uintp(32)  # scores of a part of a row
_NOTHING = np.float32(-np.inf).view(np.int32)


class Part(NamedTuple):
    """Scores of ``heads`` times ``queries`` rows, side by side, against ``width`` keys from ``key`` on.

    The first row is query ``query`` of head ``head``, and row ``row`` of all that is told. Query i sees no key outside
    i + low <= j < i + high.
    """

    head: int
    heads: int
    queries: int
    width: int
    query: int
    row: int
    key: int
    low: int
    high: int
    ahead: int  # query i stands at key i + ahead


class Table(NamedTuple):
    """Bools that broadcast to (L, ``heads``, queries, keys), True where a row may attend; size 0: everywhere."""

    table: Any
    strides: Any  # (3,)
    heads: int
    rows: bool  # one bool stands for all keys of a row


class Told(NamedTuple):
    """Of each row, (rows, ...): sums of e_j times what the name says; what has size 0 is not asked for."""

    largest: Any  # score
    total: Any  # Z
    spread: Any  # s_j - max
    position: Any  # j
    distance: Any  # how far j is from the query's place
    top: Any  # the largest weights
    keys: Any  # and whose they are
    offsets: Any  # weights
    places: Any  # of these keys, counted from the query's own
    share: Any  # the row's weight in the sums of columns
    columns: Any  # (threads, heads, width) of one part: these sums; threads may share those of different heads


@njit(**INNER)
def _span(i, part):
    """First key, and first behind the last, that query i may see, counted from the part's first key."""
    first = min(max(i + part.low - part.key, 0), part.width)
    return first, max(first, min(i + part.high - part.key, part.width))


@njit(**INNER)
def _place(i, local_head, part, seen):
    """Return the offset in the table of the row of query i."""
    head = part.head + local_head
    return head // seen.heads * seen.strides[0] + head % seen.heads * seen.strides[1] + i * seen.strides[2]


@njit(**INNER)
def _hide(scores, begin, count, at, table):
    """Make -inf what the table hides."""
    of_table, nothing = np.uintp(at), np.float32(-np.inf)
    for j in range(count):
        scores[begin + j] = scores[begin + j] if table[of_table + j] != 0 else nothing


@njit(**INNER)
def _exponentials(scores, begin, count, most):
    """Scores to e^(s - most), in place; their sum, 0 where all are hidden, and the sum of e times s - most."""
    zero, low = np.float32(0), np.float32(-87)
    total, spread = zero, zero
    if most == -np.inf:
        for j in range(begin, begin + count):
            scores[j] = zero if scores[j] == most else scores[j]
            total += scores[j]  # 0, or NaN
        return total, spread
    for j in range(begin, begin + count):
        x = scores[j] - most
        near = low if x < low else x
        e = exp_within(near)
        e = zero if x < low else e
        scores[j] = e
        total += e
        spread += e * near
    return total, spread


@njit(**INNER)
def _moments(weights, begin, first, count, place, told, row):
    """Sums of e times the key's place, and times its distance from the query's."""
    position, distance = np.float32(0), np.float32(0)
    if told.position.size:
        key = np.int32(first)
        for j in range(count):
            position += weights[begin + j] * np.float32(key + np.int32(j))
        told.position[row] = position
    if told.distance.size:
        away = np.int32(place - first)
        for j in range(count):
            distance += weights[begin + j] * np.float32(abs(away - np.int32(j)))
        told.distance[row] = distance


@njit(**INNER)
def _insert(value, key, values, keys):
    """Put a score among the largest, in their order, if it is one; the last drops out."""
    at = values.size - 1
    if not value > values[at]:
        return
    while at > 0 and values[at - 1] < value:
        values[at], keys[at] = values[at - 1], keys[at - 1]
        at -= 1
    values[at], keys[at] = value, key


@njit(**INNER)
def _largest(bits, begin, first, count, keys, room):
    """The keys of a row's largest scores, -1 where fewer are seen; returns the bits of the largest.

    They are in those parts of the row whose largest is among the largest of all parts.
    """
    values, parts, chosen = room
    nothing = ordered(np.int32(_NOTHING))
    values[:], keys[:], parts[:], chosen[:] = nothing, -1, nothing, -1
    n = (count + _LANES - np.uintp(1)) // _LANES
    for part in range(n):
        start = part * _LANES
        largest = ordered(greatest(bits, begin + start, min(_LANES, count - start)))
        _insert(largest, np.int64(part), parts, chosen)
    least = parts[parts.size - 1]
    for k in range(chosen.size):
        if chosen[k] >= 0:
            start = np.uintp(chosen[k]) * _LANES
            for j in range(start, min(start + _LANES, count)):
                value = ordered(bits[begin + j])
                if value >= least:
                    _insert(value, first + np.int64(j), values, keys)
    return ordered(parts[0])


@njit(**INNER)
def _any_keys(first, end, at, key, seen, keys):
    """The first keys that are seen."""
    found = 0
    keys[:] = -1
    for j in range(key + first, key + end):
        if found < keys.size and (seen.rows or seen.table.size == 0 or seen.table[at + j] != 0):
            keys[found] = j
            found += 1


@njit(**INNER)
def _row(scores, bits, local, part, seen, told, room):
    """Tell of one row, whose scores become e^(s - max), 0 where hidden; gives 1/Z, or 0 where nothing can be seen."""
    i, row = part.query + local % part.queries, part.row + local
    first, end = _span(i, part)
    table_at = _place(i, local // part.queries, part, seen)
    if seen.rows and seen.table[table_at] == 0:
        end = first
    at, count = np.uintp(local * part.width), np.uintp(end - first)
    begin, zero = np.uintp(local * part.width + first), np.float32(0)
    for j in range(at, begin):
        scores[j] = zero
    for j in range(begin + count, at + np.uintp(part.width)):
        scores[j] = zero
    if count == 0:
        return zero
    if seen.table.size and not seen.rows:
        _hide(scores, begin, count, table_at + part.key + first, seen.table)
    if told.top.shape[1]:
        most = number(_largest(bits, begin, part.key + first, count, told.keys[row], room))
    else:
        most = number(greatest(bits, begin, count))
    total, spread = _exponentials(scores, begin, count, most)
    if total == zero:
        return zero
    told.largest[row], told.total[row] = most, total
    if told.spread.size:
        told.spread[row] = spread
    inverse = np.float32(1) / total
    _moments(scores, begin, part.key + first, count, i + part.ahead, told, row)
    if total != total:  # not a number, which has no order
        _any_keys(first, end, table_at, part.key, seen, told.keys[row])
    for k in range(told.top.shape[1]):
        key = told.keys[row, k]
        told.top[row, k] = scores[at + np.uintp(key - part.key)] * inverse if key >= 0 else zero
    for k in range(told.places.size):
        key = i + part.ahead + told.places[k] - part.key
        told.offsets[row, k] = scores[at + np.uintp(key)] * inverse if first <= key < end else zero
    return inverse


@njit(**INNER)
def _add_columns(weights, shares, local, part, columns):
    """Add four rows, times their shares, to the sums of the columns that they may see."""
    i = part.query + local % part.queries
    first, end = np.uintp(_span(i, part)[0]), np.uintp(_span(i + _TOGETHER - 1, part)[1])
    at = np.uintp(local * part.width)
    at1, at2, at3 = at + np.uintp(part.width), at + np.uintp(2 * part.width), at + np.uintp(3 * part.width)
    a, b, c, d = shares[0], shares[1], shares[2], shares[3]
    for j in range(first, end):
        columns[j] += (a * weights[at + j] + b * weights[at1 + j]) + (c * weights[at2 + j] + d * weights[at3 + j])


@njit(**INNER)
def _add_column(weights, share, local, part, columns):
    """Add one row."""
    first, end = _span(part.query + local % part.queries, part)
    at = np.uintp(local * part.width)
    for j in range(np.uintp(first), np.uintp(end)):
        columns[j] += share * weights[at + j]


@Threaded
def visit(begin, step, scores, bits, part, seen, told):
    """Tell of all rows of a part; ``bits`` are those of the scores, which become e^(s - max)."""
    chunks = (part.queries + CHUNK - 1) // CHUNK
    shares, top = np.empty(_TOGETHER, np.float32), told.top.shape[1]
    columns = told.columns[begin % told.columns.shape[0]]
    room = np.empty(top, np.int32), np.empty(top, np.int32), np.empty(top, np.int64)
    for task in range(begin, part.heads * chunks, step):
        head, start = task // chunks, task % chunks * CHUNK
        end = min(start + CHUNK, part.queries)
        for q in range(start, end, _TOGETHER):
            some, local = min(_TOGETHER, end - q), head * part.queries + q
            for r in range(some):
                shares[r] = _row(scores, bits, local + r, part, seen, told, room)
            if columns.size == 0:
                continue
            for r in range(some):
                shares[r] *= told.share[part.row + local + r]
            if some == _TOGETHER:
                _add_columns(scores, shares, local, part, columns[head])
            else:
                for r in range(some):
                    _add_column(scores, shares[r], local + r, part, columns[head])
