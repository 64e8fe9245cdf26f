"""Scores of additive attention as they stand, an exponential a term, and their gradients: exact for any input.

tanh(t) = 1 - 2/(1 + e^2t), with 2t held where tanh is 1 to the last bit. The lanes of a
vector run along the features, and keys that are hidden are not read: what they hold has no influence. With few queries
this costs no more than the exponentials that the other way would begin with.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from regard._kernels.cpu.loops.rows import (
    CHUNK,
    drop_row,
    exp_within,
    has_hidden,
    hidden,
    place,
    pull_row,
    span,
    weigh_rows,
)
from regard._kernels.cpu.loops.threads import FINITE, INNER, Threaded

_TOP = 20  # 1 - 2 e^-20 is 1 in float32; twice that for float64


@njit(**FINITE)
def _ratio(a, b):
    """a/b where both are finite, or NaN."""
    return a / b


@njit(**INNER)
def _fold(q, k, top):
    """1/(1 + e^2(q + k)), of which tanh(q + k) = 1 - 2/(1 + e^2(q + k)) is made; finite for any input but NaN."""
    t = type(q)(2) * (q + k)
    t = top if t > top else t
    t = -top if t < -top else t
    return _ratio(type(q)(1), type(q)(1) + exp_within(t))


@njit(**{**INNER, "fastmath": False})
def _spoil(x, zero):
    """0, or NaN where x is not finite. Were the order of operations free, x 0 + y 0 might become (x + y) 0."""
    return x * zero


@njit(**INNER)
def _score_row(q, k, w, first, end, out, at):
    """w . tanh(q + k_j) into out[at + j], for keys in a row; NaN where one of them is not finite."""
    zero, two, top = w.dtype.type(0), w.dtype.type(2), w.dtype.type(_TOP if w.itemsize == 4 else 2 * _TOP)
    H, whole = np.uintp(w.size), zero
    for h in range(H):
        whole += w[h] + _spoil(q[h], zero)
    for j in range(first, end):
        total, spoiled, key = zero, zero, k[j]
        for h in range(H):
            total += w[h] * _fold(q[h], key[h], top)
            spoiled += _spoil(key[h], zero)
        out[at + j] = whole - two * total + spoiled


@njit(**INNER)
def _mix_row(weights, at, v, mixed, count):
    """P v, without a look at values whose weight is 0."""
    mixed[:] = 0
    for j in range(count):
        p = weights[at + j]
        if p != 0:
            value = v[j]
            for e in range(np.uintp(value.size)):
                mixed[e] += p * value[e]


@Threaded
def attend(begin, step, q, k, v, weight, weights, bits, logsumexp, out, block, reach, drop):
    """Rows of the block: weights after dropout (heads, pitch, stride), whose ``bits`` are given too, and out = P v.

    q (N, R, H), k (N, Tk, H), v (N, Tk, Ev), weight (nw, H), logsumexp (N, R), out (N, R, Ev).
    """
    chunks, count = (block.rows + CHUNK - 1) // CHUNK, min(block.width, v.shape[1] - block.key)
    for task in range(begin, block.heads * chunks, step):
        local, start = task // chunks, task % chunks * CHUNK
        head, stop = block.head + local, min(start + CHUNK, block.rows)
        w, values = weight[head % weight.shape[0]], v[head, block.key :]
        for r in range(start, stop):
            row, at = block.row + r, (local * block.pitch + r) * block.stride - block.key
            first, end = span(head, row, block, reach)
            if not has_hidden(reach):
                _score_row(q[head, row], k[head], w, first, end, weights, at)
                continue
            of_table = place(reach.table_strides, head, row, reach)
            for j in range(first, end):
                if not hidden(head, row, j, of_table, reach):
                    _score_row(q[head, row], k[head], w, j, j + 1, weights, at)
        weigh_rows(weights, bits, logsumexp, local, start, stop, block, reach, drop)
        for r in range(start, stop):
            _mix_row(weights, (local * block.pitch + r) * block.stride, values, out[head, block.row + r], count)


@njit(**INNER)
def _pull_values(weights, dS, at, v, of_output, dv, factors, first):
    """The gradients of one row's weights into dS, and what it brings to those of the values, where it has weight."""
    zero = of_output.dtype.type(0)
    for j in range(factors.size):
        p, value, of_value = weights[at + j], v[j], dv[j]
        kept, total = p * factors[j], zero
        if first:
            of_value[:] = 0
        if kept > 0:  # not hidden or dropped; nor NaN, in a row whose output is NaN and which has no gradient
            for e in range(np.uintp(of_output.size)):
                total += of_output[e] * value[e]
                of_value[e] += kept * of_output[e]
        dS[at + j] = total


@njit(**INNER)
def _pull_features(dS, at, q, k, w4, dq, dk, dw, count, first):
    """Add the gradients of dS_j w . tanh(q + k_j); ``w4`` is 4 w. Two loops, as one has too many pointers to check."""
    two, top = w4.dtype.type(2), w4.dtype.type(_TOP if w4.itemsize == 4 else 2 * _TOP)
    H, fold = np.uintp(w4.size), np.empty(w4.size, w4.dtype)
    for j in range(count):
        pull, key, of_key = dS[at + j], k[j], dk[j]
        if first:
            of_key[:] = 0
        if not (pull < 0 or pull > 0):
            dS[at + j] = 0
            continue
        for h in range(H):
            fold[h] = _fold(q[h], key[h], top)
        for h in range(H):
            part = pull * fold[h]
            change = w4[h] * (part - part * fold[h])
            dw[h] -= two * part
            dq[h] += change
            of_key[h] += change


@Threaded
def gradients(begin, step, q, k, v, weight, weights, dS, of_output, dq, dk, dv, dw, block, drop):
    """Add what the rows of the block bring: dq (N, R, H), dk (N, Tk, H), dv (N, Tk, Ev), dw (N, H); and fill dS."""
    rows = q.shape[1]
    for task in range(begin, block.heads, step):
        head = block.head + task
        w4, factors = weight[head % weight.shape[0]] * q.dtype.type(4), np.ones(block.width, q.dtype)
        values, of_values = v[head, block.key :], dv[head, block.key :]
        keys, of_keys = k[head, block.key :], dk[head, block.key :]
        for r in range(block.rows):
            row, at = block.row + r, (task * block.pitch + r) * block.stride
            first = r == 0 and block.rows == rows  # of all there are: nothing was added before
            if drop.active:
                drop_row(factors, head * rows + row, block, drop)
            _pull_values(weights, dS, at, values, of_output[head, row], of_values, factors, first)
            pull_row(weights, dS, at, factors, drop.active, block.width)
            _pull_features(dS, at, q[head, row], keys, w4, dq[head, row], of_keys, dw[head], block.width, first)
