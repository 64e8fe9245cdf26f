"""Scores of additive attention as they stand, an exponential a term, and their gradients: exact for any input.

tanh(t) = 1 - 2/(1 + e^2t), with 2t held where tanh is 1 to the last bit. The lanes of a
vector run along the features, and keys that are hidden are not read: what they hold has no influence. With few queries
this costs no more than the exponentials that the other way would begin with.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from regard._kernels.numba_pool import EXACT, FINITE, Threaded
from regard._kernels.numba_rows import CHUNK, drop_row, exp_within, hidden, place, pull_row, span

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
def _score_row(q, k, w, first, end, out, at):
    """w . tanh(q + k_j) into out[at + j], for keys in a row; NaN where one of them is not finite."""
    zero, one, two = w.dtype.type(0), w.dtype.type(1), w.dtype.type(2)
    top = w.dtype.type(_TOP if w.itemsize == 4 else 2 * _TOP)
    H, whole = np.uintp(w.size), zero
    for h in range(H):
        whole += w[h] + _spoil(q[h], zero)
    for j in range(first, end):
        total, spoiled, key = zero, zero, k[j]
        for h in range(H):
            t = two * (q[h] + key[h])
            t = top if t > top else t
            t = -two * top if t < -two * top else t
            total += _ratio(w[h], one + exp_within(t))
            spoiled += _spoil(key[h], zero)
        out[at + j] = whole - two * total + spoiled


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
            if not (reach.has_keep or reach.has_table):
                _score_row(q[head, row], k[head], w, first, end, out, at)
                continue
            of_table = place(reach.table_strides, head, row, reach)
            for j in range(first, end):
                if not hidden(head, row, j, of_table, reach):
                    _score_row(q[head, row], k[head], w, j, j + 1, out, at)


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
def _pull_values(weights, dS, at, v, of_output, dv, factors):
    """The gradients of one row's weights into dS, and what it brings to those of the values, where it has weight."""
    zero = of_output.dtype.type(0)
    for j in range(factors.size):
        p, value, of_value = weights[at + j], v[j], dv[j]
        kept, total = p * factors[j], zero
        if kept > 0:  # not hidden or dropped; nor NaN, in a row whose output is NaN and which has no gradient
            for e in range(np.uintp(of_output.size)):
                total += of_output[e] * value[e]
            for e in range(np.uintp(of_output.size)):
                of_value[e] += kept * of_output[e]
        dS[at + j] = total


@njit(**EXACT)
def _pull_features(dS, at, q, k, w4, dq, dk, dw, count, buffer):
    """Add the gradients of dS_j w . tanh(q + k_j); ``w4`` is 4 w. Two loops, as one has too many pointers to check."""
    one, two = w4.dtype.type(1), w4.dtype.type(2)
    top = w4.dtype.type(_TOP if w4.itemsize == 4 else 2 * _TOP)
    H = np.uintp(w4.size)
    for j in range(count):
        pull, key, of_key = dS[at + j], k[j], dk[j]
        if not (pull < 0 or pull > 0):
            dS[at + j] = 0
            continue
        for h in range(H):
            t = two * (q[h] + key[h])
            t = top if t > top else t
            t = -two * top if t < -two * top else t
            r = _ratio(one, one + exp_within(t))
            part = pull * r
            buffer[h] = w4[h] * (part - part * r)
            dw[h] -= two * part
        for h in range(H):
            dq[h] += buffer[h]
            of_key[h] += buffer[h]


@Threaded
def gradients(begin, step, q, k, v, weight, weights, dS, of_output, dq, dk, dv, dw, block, drop):
    """Add what the rows of the block bring: dq (N, R, H), dk (N, Tk, H), dv (N, Tk, Ev), dw (N, H); and fill dS."""
    rows = q.shape[1]
    for task in range(begin, block.heads, step):
        head = block.head + task
        w4, buffer = weight[head % weight.shape[0]] * q.dtype.type(4), np.empty(q.shape[2], q.dtype)
        factors = np.ones(block.width, q.dtype)
        if block.rows == rows:  # all there are: nothing was added before
            dk[head] = 0
            dv[head] = 0
        values, of_values = v[head, block.key :], dv[head, block.key :]
        keys, of_keys = k[head, block.key :], dk[head, block.key :]
        for r in range(block.rows):
            row, at = block.row + r, (task * block.pitch + r) * block.stride
            if drop.active:
                drop_row(factors, head * rows + row, block, drop)
            _pull_values(weights, dS, at, values, of_output[head, row], of_values, factors)
            pull_row(weights, dS, at, factors, drop.active, block.width)
            _pull_features(dS, at, q[head, row], keys, w4, dq[head, row], of_keys, dw[head], block.width, buffer)
