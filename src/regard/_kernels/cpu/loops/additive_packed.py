"""Scores of additive attention without an exponential in the inner loop, and their gradients.

With A = e^(2q) and B = e^(2k), tanh(q + k) = 1 - 2/(1 + A B), so that w . tanh(q + k) = sum_h w_h - 2 sum_h 1/y_h,
where y_h = (1 + A_h B_h)/w_h. Four terms share a division:

(1/y0 + 1/y1) + (1/y2 + 1/y3) = ((y0 + y1) y2 y3 + (y2 + y3) y0 y1) / (y0 y1 y2 y3)

The lanes of a vector run along keys, which are laid out in tiles, (tiles, features, wide).

All that enters is finite, and no product leaves the range: `plan` has looked.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from regard._kernels.cpu.loops.rows import CHUNK, exp, span, weigh_rows
from regard._kernels.cpu.loops.threads import EXACT, FINITE, INNER, Threaded

TILE = 128  # keys in a tile at most: eight vectors of AVX-512; where there are fewer keys, whole vectors of them
_TILE = np.uintp(TILE)
_FEATURES, _ROWS = 16, 32  # what a task of the backward pass keeps at hand


@njit(**EXACT)
def extremes(rows):
    """The largest of each feature of (N, H); NaN where one is not finite."""
    largest, spoiled = np.empty(rows.shape[1], rows.dtype), np.empty(rows.shape[1], rows.dtype)
    zero, least = rows.dtype.type(0), rows.dtype.type(-np.inf)
    for h in range(np.uintp(rows.shape[1])):
        largest[h], spoiled[h] = least, zero
    for n in range(rows.shape[0]):
        for h in range(np.uintp(rows.shape[1])):
            largest[h] = rows[n, h] if rows[n, h] > largest[h] else largest[h]
            spoiled[h] += rows[n, h] * zero
    for h in range(np.uintp(rows.shape[1])):
        largest[h] += spoiled[h]
    return largest


@njit(**EXACT)
def plan(of_query, of_key, weight, inverse, shift):
    """Return True if no product of four y can leave the range; fill ``inverse`` (nw, H) with 1/w and ``shift`` (H,).

    w is scaled so that its largest is 1, and is 2^-30 of that or more: below the resolution of the sum. Features whose
    e^(2q) alone would overflow are shifted: q - c and k + c have the same sum.
    """
    limit = 120.0 if weight.itemsize == 4 else 1000.0
    for h in range(weight.shape[1]):
        top = np.float64(of_query[h]) + np.float64(of_key[h])
        if not abs(top) < 1e30:
            return False
        if max(of_query[h], of_key[h]) * 2.9 > limit:
            shift[h] = (np.float64(of_query[h]) - np.float64(of_key[h])) / 2
    for n in range(weight.shape[0]):
        largest = weight.dtype.type(0)
        for h in range(weight.shape[1]):
            if not abs(weight[n, h]) < np.inf:
                return False
            largest = max(largest, abs(weight[n, h]))
        if largest == 0:
            return False
        bits = 0.0
        for h in range(weight.shape[1]):
            w = weight[n, h] / largest
            w = w if abs(w) > 2.0**-30 else math.copysign(2.0**-30, w)
            inverse[n, h] = 1 / w
            bits = 0.0 if h % 4 == 0 else bits
            top = np.float64(of_query[h]) + np.float64(of_key[h])
            bits += math.log2(abs(inverse[n, h])) + max(0.0, 2 * top * 1.4426950408889634) + 1
            if not bits < limit:
                return False
    return True


@njit(**INNER)
def _power_row(x, shift, out):
    """e^(2(x - shift)); what rounding takes from a shifted exponent is put back. No shift has size 0."""
    one = x.dtype.type(1)
    if shift.size == 0:
        for h in range(np.uintp(x.size)):
            out[h] = exp(x[h] + x[h])
        return
    for h in range(np.uintp(x.size)):
        exponent = 2 * (np.float64(x[h]) - shift[h])
        near = x.dtype.type(exponent)
        out[h] = exp(near) * (one + x.dtype.type(exponent - np.float64(near)))


@njit(**INNER)
def _tile_powers(rows, start, shift, out):
    """B = e^(2(k + c)) of some keys (T, H) as one tile (H, wide); what fills it up is 0."""
    wide, count = out.shape[1], min(out.shape[1], rows.shape[0] - start)
    powers = np.empty((count, rows.shape[1]), rows.dtype)
    for t in range(count):
        _power_row(rows[start + t], shift, powers[t])
    for h in range(np.uintp(rows.shape[1])):
        for t in range(np.uintp(count)):
            out[h, t] = powers[t, h]
        out[h, count:wide] = 0


@Threaded
def powers(begin, step, q, k, shift, back, A, B):
    """A = e^2(q - c) of (N, R, H), and B = e^2(k + c) of (N, Tk, H) as tiles (N, tiles, H, wide); ``back`` is -c."""
    chunks, tiles = (q.shape[1] + CHUNK - 1) // CHUNK, B.shape[1]
    for task in range(begin, q.shape[0] * (chunks + tiles), step):
        n, part = task // (chunks + tiles), task % (chunks + tiles)
        if part < tiles:
            _tile_powers(k[n], part * B.shape[3], back, B[n, part])
            continue
        start = (part - tiles) * CHUNK
        for r in range(start, min(start + CHUNK, q.shape[1])):
            _power_row(q[n, r], shift, A[n, r])


@njit(**INNER)
def _lanes(wide, count):
    """The keys of a tile, if there are so many, filled up to whole vectors."""
    return np.uintp(min(wide, (count + 15) // 16 * 16))


@njit(**FINITE)
def _two_rows(a0, a1, inverse, B, at, wide, acc, lanes):
    """Add sum_h 1/y_h for two queries and the keys of a tile into ``acc`` (2 TILE,): a pass loads each B once."""
    H, one = inverse.size, inverse.dtype.type(1)
    fours = H // 4 * 4
    for h in range(0, fours, 4):
        o = np.uintp(at + h * wide)
        o1, o2, o3 = o + np.uintp(wide), o + np.uintp(2 * wide), o + np.uintp(3 * wide)
        u0, u1, u2, u3 = inverse[h], inverse[h + 1], inverse[h + 2], inverse[h + 3]
        p0, p1, p2, p3 = a0[h] * u0, a0[h + 1] * u1, a0[h + 2] * u2, a0[h + 3] * u3
        q0, q1, q2, q3 = a1[h] * u0, a1[h + 1] * u1, a1[h + 2] * u2, a1[h + 3] * u3
        for j in range(lanes):
            b0, b1, b2, b3 = B[o + j], B[o1 + j], B[o2 + j], B[o3 + j]
            y0, y1, y2, y3 = u0 + p0 * b0, u1 + p1 * b1, u2 + p2 * b2, u3 + p3 * b3
            left, right = y0 * y1, y2 * y3
            acc[j] += ((y0 + y1) * right + (y2 + y3) * left) / (left * right)
            y0, y1, y2, y3 = u0 + q0 * b0, u1 + q1 * b1, u2 + q2 * b2, u3 + q3 * b3
            left, right = y0 * y1, y2 * y3
            acc[_TILE + j] += ((y0 + y1) * right + (y2 + y3) * left) / (left * right)
    for h in range(fours, H):
        o = np.uintp(at + h * wide)
        u, p, q = inverse[h], a0[h] * inverse[h], a1[h] * inverse[h]
        for j in range(lanes):
            acc[j] += one / (u + p * B[o + j])
            acc[_TILE + j] += one / (u + q * B[o + j])


@njit(**INNER)
def _tiles_of(head, row, other, wide, block, reach):
    """The tiles, counted within the block, that either of two rows, or one between them, may attend to."""
    first, end = span(head, row, block, reach)
    for r in range(row + 1, other + 1):
        more = span(head, r, block, reach)
        first, end = min(first, more[0]), max(end, more[1])
    return (first - block.key) // wide, (end - block.key + wide - 1) // wide


@Threaded
def weigh(begin, step, A, B, wide, inverse, scale, out, bits, logsumexp, block, reach, drop):
    """The weights, of scores scale_n (sum_h 1/u - 2 sum_h 1/y), into ``out`` (heads, pitch, stride), after dropout.

    A (N, R, H), B (N, tiles, H, wide) flat, inverse (nw, H), scale (nw,), logsumexp (N, R); ``bits`` are those of out.
    """
    H, chunks = inverse.shape[1], (block.rows + CHUNK - 1) // CHUNK
    tiles = B.size // (A.shape[0] * H * wide)
    for task in range(begin, block.heads * chunks, step):
        local, start = task // chunks, task % chunks * CHUNK
        end, head = min(start + CHUNK, block.rows), block.head + local
        u, factor = inverse[head % inverse.shape[0]], scale[head % inverse.shape[0]]
        total, twice, acc = A.dtype.type(0), factor + factor, np.empty(2 * TILE, A.dtype)
        for h in range(H):
            total += factor / u[h]
        seen = np.empty((CHUNK, 2), np.int64)
        for r in range(start, end, 2):
            other = block.row + min(r + 1, end - 1)
            seen[r - start, 0], seen[r - start, 1] = _tiles_of(head, block.row + r, other, wide, block, reach)
        for tile in range(block.width // wide):
            at = (head * tiles + block.key // wide + tile) * H * wide
            lanes = _lanes(wide, reach.keys - block.key - tile * wide)
            for r in range(start, end, 2):
                if not seen[r - start, 0] <= tile < seen[r - start, 1]:
                    continue
                other = min(r + 1, end - 1)
                acc[:] = 0
                _two_rows(A[head, block.row + r], A[head, block.row + other], u, B, at, wide, acc, lanes)
                to = np.uintp((local * block.pitch + r) * block.stride + tile * wide)
                next_to = np.uintp((local * block.pitch + other) * block.stride + tile * wide)
                for j in range(lanes):
                    out[to + j] = total - twice * acc[j]
                    out[next_to + j] = total - twice * acc[_TILE + j]
        weigh_rows(out, bits, logsumexp, local, start, end, block, reach, drop)


@njit(**INNER)
def _bring_near(dS, at, stride, count, near, lanes):
    """Copy so many rows of a tile, the first of which begins at ``at``, side by side; rows that fill up four are 0."""
    for r in range((count + 3) // 4 * 4):
        begin = np.uintp(at + r * stride)
        for j in range(lanes):
            near[np.uintp(r * TILE) + j] = dS[begin + j] if r < count else dS.dtype.type(0)


@njit(**FINITE)
def _pull_tile(A, B, at, wide, near, dq, dw, acc, rows, features, lanes):
    """Some rows of one head against one tile, for the features of a task, four rows a pass.

    With r = 1/(1 + A B) and t = dS r: sum t (1 - r) over keys for the query, and over queries into ``acc`` for the key;
    sum t for the weight. A, dq (R, H) and dw (H,) of the head; ``at`` is the first feature's tile in B.
    """
    zero, one, last = acc.dtype.type(0), acc.dtype.type(1), np.uintp(rows[1] - 1)
    for h in range(np.uintp(features[0]), np.uintp(features[1])):
        c = (h - np.uintp(features[0])) * _TILE
        o, total = np.uintp(at) + (h - np.uintp(features[0])) * np.uintp(wide), zero
        for k in range(np.uintp(0), np.uintp(rows[1] - rows[0]), np.uintp(4)):
            s, q0 = k * _TILE, np.uintp(rows[0]) + k
            q1, q2, q3 = min(q0 + np.uintp(1), last), min(q0 + np.uintp(2), last), min(q0 + np.uintp(3), last)
            a0, a1, a2, a3 = A[q0, h], A[q1, h], A[q2, h], A[q3, h]
            sum0, sum1, sum2, sum3 = zero, zero, zero, zero
            for j in range(lanes):
                b = B[o + j]
                r0, r1, r2, r3 = one / (one + a0 * b), one / (one + a1 * b), one / (one + a2 * b), one / (one + a3 * b)
                t0, t1 = near[s + j] * r0, near[s + _TILE + j] * r1
                t2, t3 = near[s + _TILE + _TILE + j] * r2, near[s + _TILE + _TILE + _TILE + j] * r3
                g0, g1, g2, g3 = t0 - t0 * r0, t1 - t1 * r1, t2 - t2 * r2, t3 - t3 * r3
                sum0, sum1, sum2, sum3 = sum0 + g0, sum1 + g1, sum2 + g2, sum3 + g3
                total += (t0 + t1) + (t2 + t3)
                acc[c + j] += (g0 + g1) + (g2 + g3)
            dq[q0, h] += sum0  # a pass that is not full repeats the last row, times 0
            dq[q1, h] += sum1
            dq[q2, h] += sum2
            dq[q3, h] += sum3
        dw[h] += total


@Threaded
def gradients(begin, step, A, B, dS, dq, dk, dw, block, reach):
    """Add what the rows of the block bring: dq (N, R, H) and dk (N, tiles, H, wide) up to 4w, dw (N, H) up to -2.

    A (N, R, H), B as dk but flat, dS (heads, pitch, stride) flat.

    A task has some features of one head to itself, so that no two tasks add to the same number, in any number of
    threads: the sums come out the same bit for bit.
    """
    H = A.shape[2]
    parts, tiles, wide = (H + _FEATURES - 1) // _FEATURES, dk.shape[1], dk.shape[3]
    for task in range(begin, block.heads * parts, step):
        local, start = task // parts, task % parts * _FEATURES
        head, acc = block.head + local, np.empty(_FEATURES * TILE, A.dtype)
        features, near = (start, min(start + _FEATURES, H)), np.empty(_ROWS * TILE, A.dtype)
        for tile in range(block.width // wide):
            place, lanes = block.key // wide + tile, _lanes(wide, reach.keys - block.key - tile * wide)
            at = ((head * tiles + place) * H + start) * wide
            acc[:] = 0
            for k in range(0, block.rows, _ROWS):
                rows = (block.row + k, block.row + min(k + _ROWS, block.rows))
                seen = _tiles_of(head, rows[0], rows[1] - 1, wide, block, reach)
                if seen[0] <= tile < seen[1]:
                    of_rows = (local * block.pitch + k) * block.stride + tile * wide
                    _bring_near(dS, of_rows, block.stride, rows[1] - rows[0], near, lanes)
                    _pull_tile(A[head], B, at, wide, near, dq[head], dw[head], acc, rows, features, lanes)
            for h in range(features[1] - start):
                for j in range(np.uintp(wide)):
                    so_far = acc.dtype.type(0) if block.rows == A.shape[1] else dk[head, place, start + h, j]
                    dk[head, place, start + h, j] = so_far + acc[np.uintp(h * TILE) + j]
