"""Scores of additive attention without an exponential in the inner loop, and their gradients.

With A = e^(2q) and B = e^(2k), tanh(q + k) = 1 - 2/(1 + A B), so that w . tanh(q + k) = sum_h w_h - 2 sum_h 1/y_h, where
y_h = (1 + A_h B_h)/w_h. Four terms share a division: (1/y0 + 1/y1) + (1/y2 + 1/y3) = ((y0 + y1) y2 y3 + (y2 + y3) y0 y1)
/ (y0 y1 y2 y3). The lanes of a vector run along keys, which are laid out in tiles, (tiles, features, TILE).

All that enters is finite, and no product leaves the range: `plan` has looked. So LLVM may take ("ninf") a reciprocal's
estimate and one step of Newton's for a division.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, prange

from regard._kernels.numba_rows import CHUNK, EXACT, Threaded, exp, span

TILE = 64  # four vectors of AVX-512; longer tiles are 5 to 15% faster and waste more on short sequences
_TILE = np.uintp(TILE)
_FINITE: dict[str, Any] = {**EXACT, "fastmath": {"contract", "reassoc", "nsz", "arcp", "ninf"}}
_FEATURES = 16  # features that a task of the backward pass takes


@njit(**EXACT)
def extremes(rows):  # type: ignore[no-untyped-def]
    """The largest of each feature of (N, H); NaN where one is not finite."""
    largest, spoiled = np.full(rows.shape[1], -np.inf, rows.dtype), np.zeros(rows.shape[1], rows.dtype)
    for n in range(rows.shape[0]):
        for h in range(rows.shape[1]):
            largest[h] = rows[n, h] if rows[n, h] > largest[h] else largest[h]
            spoiled[h] += rows[n, h] * 0
    return largest + spoiled


@njit(**EXACT)
def plan(of_query, of_key, weight, inverse, shift):  # type: ignore[no-untyped-def]
    """Whether no product of four y can leave the range; fills ``inverse`` (nw, H) with 1/w and ``shift`` (H,).

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
        largest = np.abs(weight[n]).max()
        if not 0 < largest < np.inf:
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


@njit(**EXACT)
def _power_row(x, shift, out):  # type: ignore[no-untyped-def]
    """e^(2(x - shift)); what rounding takes from a shifted exponent is put back."""
    for h in range(np.uintp(x.size)):
        exponent = 2 * (np.float64(x[h]) - shift[h])
        near = x.dtype.type(exponent)
        out[h] = exp(near) * (1 + x.dtype.type(exponent - np.float64(near)))


@Threaded
def powers(rows, shift, out):  # type: ignore[no-untyped-def]
    """A = e^(2(q - c)) of (N, T, H)."""
    chunks = (rows.shape[1] + CHUNK - 1) // CHUNK
    for task in prange(rows.shape[0] * chunks):
        n, start = task // chunks, task % chunks * CHUNK
        for t in range(start, min(start + CHUNK, rows.shape[1])):
            _power_row(rows[n, t], shift, out[n, t])


@Threaded
def tiled_powers(rows, shift, out):  # type: ignore[no-untyped-def]
    """B = e^(2(k + c)) of (N, T, H) as tiles (N, tiles, H, TILE); what fills up the last one is 0."""
    tiles = out.shape[1]
    for task in prange(rows.shape[0] * tiles):
        n, tile = task // tiles, task % tiles
        powers = np.zeros((TILE, rows.shape[2]), rows.dtype)
        for t in range(min(TILE, rows.shape[1] - tile * TILE)):
            _power_row(rows[n, tile * TILE + t], shift, powers[t])
        for h in range(np.uintp(rows.shape[2])):
            for t in range(_TILE):
                out[n, tile, h, t] = powers[t, h]


@njit(**_FINITE)
def _two_rows(a0, a1, inverse, B, at, acc):  # type: ignore[no-untyped-def]
    """Add sum_h 1/y_h for two queries and the keys of a tile into ``acc`` (2 TILE,): a pass loads each B once."""
    H = inverse.size
    fours = H // 4 * 4
    for h in range(0, fours, 4):
        o = np.uintp(at + h * TILE)
        u0, u1, u2, u3 = inverse[h], inverse[h + 1], inverse[h + 2], inverse[h + 3]
        p0, p1, p2, p3 = a0[h] * u0, a0[h + 1] * u1, a0[h + 2] * u2, a0[h + 3] * u3
        q0, q1, q2, q3 = a1[h] * u0, a1[h + 1] * u1, a1[h + 2] * u2, a1[h + 3] * u3
        for j in range(_TILE):
            b0, b1, b2, b3 = B[o + j], B[o + _TILE + j], B[o + _TILE + _TILE + j], B[o + _TILE + _TILE + _TILE + j]
            y0, y1, y2, y3 = u0 + p0 * b0, u1 + p1 * b1, u2 + p2 * b2, u3 + p3 * b3
            left, right = y0 * y1, y2 * y3
            acc[j] += ((y0 + y1) * right + (y2 + y3) * left) / (left * right)
            y0, y1, y2, y3 = u0 + q0 * b0, u1 + q1 * b1, u2 + q2 * b2, u3 + q3 * b3
            left, right = y0 * y1, y2 * y3
            acc[_TILE + j] += ((y0 + y1) * right + (y2 + y3) * left) / (left * right)
    for h in range(fours, H):
        o = np.uintp(at + h * TILE)
        u, p, q = inverse[h], a0[h] * inverse[h], a1[h] * inverse[h]
        for j in range(_TILE):
            acc[j] += 1 / (u + p * B[o + j])
            acc[_TILE + j] += 1 / (u + q * B[o + j])


@njit(**EXACT)
def _tiles_of(head, row, other, block, reach):  # type: ignore[no-untyped-def]
    """The tiles, counted within the block, that either of two rows, or one between them, may attend to."""
    first, end = span(head, row, block, reach)
    for r in range(row + 1, other + 1):
        more = span(head, r, block, reach)
        first, end = min(first, more[0]), max(end, more[1])
    return (first - block.key) // TILE, (end - block.key + TILE - 1) // TILE


@Threaded
def scores(A, B, inverse, scale, out, block, reach):  # type: ignore[no-untyped-def]
    """scale_n (sum_h 1/u - 2 sum_h 1/y) into ``out`` (heads, pitch, width), where structure lets a row attend.

    A (N, R, H), B flat of (N, tiles, H, TILE), inverse (nw, H), scale (nw,).
    """
    H, chunks = inverse.shape[1], (block.rows + CHUNK - 1) // CHUNK
    tiles = B.size // (A.shape[0] * H * TILE)
    for task in prange(block.heads * chunks):
        local, start = task // chunks, task % chunks * CHUNK
        end, head = min(start + CHUNK, block.rows), block.head + local
        u, factor = inverse[head % inverse.shape[0]], scale[head % inverse.shape[0]]
        total, acc = (1 / u).sum() * factor, np.empty(2 * TILE, A.dtype)
        for tile in range(block.width // TILE):
            at = (head * tiles + block.key // TILE + tile) * H * TILE
            for r in range(start, end, 2):
                other = min(r + 1, end - 1)
                seen = _tiles_of(head, block.row + r, block.row + other, block, reach)
                if not seen[0] <= tile < seen[1]:
                    continue
                acc[:] = 0
                _two_rows(A[head, block.row + r], A[head, block.row + other], u, B, at, acc)
                to = np.uintp((local * block.pitch + r) * block.width + tile * TILE)
                next_to = np.uintp((local * block.pitch + other) * block.width + tile * TILE)
                for j in range(_TILE):
                    out[to + j] = total - 2 * factor * acc[j]
                    out[next_to + j] = total - 2 * factor * acc[_TILE + j]


@njit(**_FINITE)
def _four_rows(a0, a1, a2, a3, B, at, dS, to, width, acc):  # type: ignore[no-untyped-def]
    """One feature of four queries and a tile of keys: the sums over the keys; those over queries go into ``acc``.

    With r = 1/(1 + A B) and t = dS r: sum t (1 - r) for the query and the key, sum t for the weight.
    """
    o, s0 = np.uintp(at), np.uintp(to)
    s1, s2, s3 = np.uintp(to + width), np.uintp(to + 2 * width), np.uintp(to + 3 * width)
    zero, one = acc.dtype.type(0), acc.dtype.type(1)
    sum0, sum1, sum2, sum3, total = zero, zero, zero, zero, zero
    for j in range(_TILE):
        here = B[o + j]
        r0, r1, r2, r3 = one / (one + a0 * here), one / (one + a1 * here), one / (one + a2 * here), one / (one + a3 * here)
        t0, t1, t2, t3 = dS[s0 + j] * r0, dS[s1 + j] * r1, dS[s2 + j] * r2, dS[s3 + j] * r3
        g0, g1, g2, g3 = t0 - t0 * r0, t1 - t1 * r1, t2 - t2 * r2, t3 - t3 * r3
        sum0, sum1, sum2, sum3 = sum0 + g0, sum1 + g1, sum2 + g2, sum3 + g3
        total += (t0 + t1) + (t2 + t3)
        acc[j] += (g0 + g1) + (g2 + g3)
    return sum0, sum1, sum2, sum3, total


@Threaded
def gradients(A, B, dS, dq, dk, dw, block, reach):  # type: ignore[no-untyped-def]
    """Add what the rows of the block bring: dq (N, R, H) and dk (N, tiles, H, TILE) up to 4w, dw (N, H) up to -2.

    A task has some features of one head to itself, so that no two tasks add to the same number, in any number of
    threads: the sums come out the same bit for bit.
    """
    H = A.shape[2]
    parts, tiles = (H + _FEATURES - 1) // _FEATURES, B.size // (A.shape[0] * H * TILE)
    for task in prange(block.heads * parts):
        local, start = task // parts, task % parts * _FEATURES
        head, acc = block.head + local, np.empty(TILE, A.dtype)
        passes = block.pitch // 4
        seen = np.empty((passes, 2), np.int64)
        for k in range(passes):
            last = min(4 * k + 3, block.rows - 1)
            seen[k, 0], seen[k, 1] = _tiles_of(head, block.row + 4 * k, block.row + last, block, reach)
        for tile in range(block.width // TILE):
            for h in range(start, min(start + _FEATURES, H)):
                at = ((head * tiles + block.key // TILE + tile) * H + h) * TILE
                acc[:] = 0
                for k in range(passes):
                    if not seen[k, 0] <= tile < seen[k, 1]:
                        continue
                    r0 = block.row + 4 * k
                    end = block.row + block.rows - 1  # a pass that is not full repeats the last row, times 0
                    r1, r2, r3 = min(r0 + 1, end), min(r0 + 2, end), min(r0 + 3, end)
                    to = (local * block.pitch + 4 * k) * block.width + tile * TILE
                    four = (A[head, r0, h], A[head, r1, h], A[head, r2, h], A[head, r3, h])
                    sums = _four_rows(*four, B, at, dS, to, block.width, acc)
                    dq[head, r0, h] += sums[0]
                    dq[head, r1, h] += sums[1]
                    dq[head, r2, h] += sums[2]
                    dq[head, r3, h] += sums[3]
                    dw[head, h] += sums[4]
                for j in range(_TILE):
                    dk[head, block.key // TILE + tile, h, j] += acc[j]
