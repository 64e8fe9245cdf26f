"""Scores of additive attention as they stand, an exponential a term, and their gradients: exact for any input.

tanh(t) = 1 - 2/(1 + e^2t), with 2t held where tanh is 1 to the last bit. The lanes of a
vector run along the features, and keys that are hidden are not read: what they hold has no influence. With few queries
this costs no more than the exponentials that the other way would begin with.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from regard._kernels.numba_pool import EXACT, FINITE, Threaded
from regard._kernels.numba_rows import CHUNK, drop_row, exp, hidden, place, pull_row, span

_TOP = 20  # 1 - 2 e^-20 is 1 in float32; twice that for float64


@njit(**FINITE)
def _ratio(a, b):
    """a/b where both are finite, or NaN."""
    return a / b


@njit(**{**EXACT, "fastmath": False})
def _spoil(x, zero):
    """0, or NaN where x is not finite. Were the order of operations free, x 0 + y 0 might become (x + y) 0."""
    return x * zero


@njit(**EXACT)
def _score(q, k, w):
    """w . tanh(q + k); NaN where one of them is not finite."""
    zero, one, two = w.dtype.type(0), w.dtype.type(1), w.dtype.type(2)
    top = w.dtype.type(_TOP if w.itemsize == 4 else 2 * _TOP)
    total, spoiled = zero, zero
    for h in range(np.uintp(w.size)):
        t = two * (q[h] + k[h])
        t = top if t > top else t
        total += w[h] - _ratio(two * w[h], one + exp(t))
        spoiled += _spoil(k[h], zero) + _spoil(q[h], zero)
    return total + spoiled


@Threaded
def scores(begin, step, q, k, weight, out, block, reach):
    """Scores into ``out`` (heads, pitch, stride), where a row may attend. q (N, R, H), k (N, Tk, H), weight (nw, H)."""
    chunks = (block.rows + CHUNK - 1) // CHUNK
    for task in range(begin, block.heads * chunks, step):
        local, start = task // chunks, task % chunks * CHUNK
        head = block.head + local
        w = weight[head % weight.shape[0]]
        for r in range(start, min(start + CHUNK, block.rows)):
            row, at = block.row + r, (local * block.pitch + r) * block.stride - block.key
            first, end = span(head, row, block, reach)
            of_table = place(reach.table_strides, head, row, reach)
            for j in range(first, end):
                if not hidden(head, row, j, of_table, reach):
                    out[at + j] = _score(q[head, row], k[head, j], w)


@Threaded
def mix(begin, step, weights, v, out, block):
    """out = P v, without a look at values whose weight is 0. v (N, Tk, Ev), out (N, R, Ev)."""
    chunks = (block.rows + CHUNK - 1) // CHUNK
    for task in range(begin, block.heads * chunks, step):
        local, start = task // chunks, task % chunks * CHUNK
        head = block.head + local
        for r in range(start, min(start + CHUNK, block.rows)):
            at, mixed = (local * block.pitch + r) * block.stride, out[head, block.row + r]
            mixed[:] = 0
            for j in range(min(block.width, v.shape[1] - block.key)):
                p = weights[at + j]
                if p != 0:
                    value = v[head, block.key + j]
                    for e in range(np.uintp(value.size)):
                        mixed[e] += p * value[e]


@njit(**EXACT)
def _dot(a, b):
    total = a.dtype.type(0)
    for e in range(np.uintp(a.size)):
        total += a[e] * b[e]
    return total


@njit(**EXACT)
def _pull_features(q, k, w, pull, dq, dk, dw, buffer):
    """Add the gradients of pull * w . tanh(q + k). """
    top = w.dtype.type(_TOP if w.itemsize == 4 else 2 * _TOP)
    one, two, four = w.dtype.type(1), w.dtype.type(2), w.dtype.type(4)
    for h in range(np.uintp(w.size)):
        t = two * (q[h] + k[h])
        t = top if t > top else t
        r = _ratio(one, one + exp(t))
        part = pull * r
        buffer[h] = four * w[h] * (part - part * r)
        dw[h] += pull - two * part
    for h in range(np.uintp(w.size)):
        dq[h] += buffer[h]
        dk[h] += buffer[h]


@njit(**EXACT)
def _pull_values(weights, dS, at, v, of_output, dv, factors, block):
    """The gradients of one row's weights into dS, and what it brings to those of the values, where it has weight."""
    for j in range(block.width):
        p, key = weights[at + j], block.key + j
        dS[at + j] = p - p
        if p > 0 and factors[j] > 0:  # not hidden; nor NaN, in a row whose output is NaN and which has no gradient
            dS[at + j] = _dot(of_output, v[key])
            kept = p * factors[j]
            for e in range(np.uintp(of_output.size)):
                dv[key, e] += kept * of_output[e]


@Threaded
def gradients(begin, step, q, k, v, weight, weights, dS, of_output, dq, dk, dv, dw, block, drop):
    """Add what the rows of the block bring: dq (N, R, H), dk (N, Tk, H), dv (N, Tk, Ev), dw (N, H); and fill dS."""
    rows = q.shape[1]
    for task in range(begin, block.heads, step):
        head = block.head + task
        w, buffer = weight[head % weight.shape[0]], np.empty(q.shape[2], q.dtype)
        factors = np.ones(block.width, q.dtype)
        for r in range(block.rows):
            row, at = block.row + r, (task * block.pitch + r) * block.stride
            if drop.active:
                drop_row(factors, head * rows + row, block, drop)
            _pull_values(weights, dS, at, v[head], of_output[head, row], dv[head], factors, block)
            pull_row(weights, dS, at, factors, drop.active, block.width)
            for j in range(block.width):
                s, key = dS[at + j], block.key + j
                if s < 0 or s > 0:
                    _pull_features(q[head, row], k[head, key], w, s, dq[head, row], dk[head, key], dw[head], buffer)
                else:
                    dS[at + j] = 0
