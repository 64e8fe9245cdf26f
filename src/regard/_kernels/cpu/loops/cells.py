"""One step of recurrent cells and of their gradients, for the rows of a batch in one or two directions, by Numba.

All that is no product of matrices. Sizes: B rows, T places, D directions (the second runs from the last place to the
first), G gates, H features, P parts of a state (hidden, and the LSTM's cell). Where a row has no place, it keeps its
state, and its output is 0. Each loop has few pointers, so that it becomes vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from regard._kernels.cpu.loops.rows import exp_within
from regard._kernels.cpu.loops.threads import FINITE, INNER, Threaded

__all__ = ["gru", "gru_gradients", "lstm", "lstm_gradients"]

_TOP = 80  # e^80 is a float32, and 1/(1 + e^-80) is 1


@njit(**FINITE)
def _ratio(a, b):
    """a/b where both are finite, or NaN."""
    return a / b


@njit(**INNER)
def _sigmoid(x):
    one, top = type(x)(1), type(x)(_TOP)
    x = top if x > top else x
    x = -top if x < -top else x
    return _ratio(one, one + exp_within(-x))


@njit(**INNER)
def _tanh(x):
    return type(x)(2) * _sigmoid(type(x)(2) * x) - type(x)(1)


@njit(**INNER)
def _place(d, t, places):
    """The place of the t-th step."""
    return places - 1 - t if d else t


@njit(**INNER)
def _squash(x, u):
    """The sigmoids of x + u, in place."""
    for h in range(np.uintp(x.size)):
        x[h] = _sigmoid(x[h] + u[h])


@njit(**INNER)
def _copy(target, source):
    for h in range(np.uintp(target.size)):
        target[h] = source[h]


@njit(**INNER)
def _gru_row(x, u, hidden, output, H):
    r, z, n, un = x[:H], x[H : 2 * H], x[2 * H :], u[2 * H :]
    _squash(x[: 2 * H], u[: 2 * H])
    for h in range(np.uintp(H)):
        n[h] = _tanh(n[h] + r[h] * un[h])
    for h in range(np.uintp(H)):
        output[h] = n[h] + z[h] * (hidden[h] - n[h])
    _copy(hidden, output)


@Threaded
def gru(begin, step, x, u, state, before, output, lengths, t):
    """The t-th step: x (B, T, D 3H) becomes the gates r, z, n.

    u (D, B, T, 3H) is the product of the state before, state (1, D, B, H), which is kept in before (1, D, B, T, H)
    and becomes the state after, as does output (B, T, D H).
    """
    D, B, T, H = before.shape[1:]
    for row in range(begin, D * B, step):
        d, b = row // B, row % B
        p, hidden = _place(d, t, T), state[0, d, b]
        out = output[b, p, d * H : (d + 1) * H]
        _copy(before[0, d, b, p], hidden)
        if p < lengths[b]:
            _gru_row(x[b, p, 3 * d * H : 3 * (d + 1) * H], u[d, b, p], hidden, out, H)
        else:
            out[:] = 0


@njit(**INNER)
def _gru_row_gradients(x, un, hidden, pull, dx, du, H):
    r, z, n, one = x[:H], x[H : 2 * H], x[2 * H :], x.dtype.type(1)
    dr, dz, dn, dun = dx[:H], dx[H : 2 * H], dx[2 * H :], du[2 * H :]
    for h in range(np.uintp(H)):
        dn[h] = pull[h] * (one - z[h]) * (one - n[h] * n[h])
    for h in range(np.uintp(H)):
        dz[h] = pull[h] * (hidden[h] - n[h]) * (z[h] - z[h] * z[h])
    for h in range(np.uintp(H)):
        dr[h] = dn[h] * un[h] * (r[h] - r[h] * r[h])
    for h in range(np.uintp(H)):
        dun[h] = dn[h] * r[h]
    for h in range(np.uintp(H)):
        pull[h] *= z[h]
    _copy(du[: 2 * H], dx[: 2 * H])


@Threaded
def gru_gradients(begin, step, x, u, before, of_output, pulls, dx, du, lengths, t):
    """The t-th step back: ``pulls`` (1, D, B, H), of the state after, becomes that of the state before without u's.

    dx (B, T, D 3H) and du (D, B, T, 3H) get the gradients of what entered; all else is as `gru` left it.
    """
    D, B, T, H = before.shape[1:]
    for row in range(begin, D * B, step):
        d, b = row // B, row % B
        p, pull = _place(d, t, T), pulls[0, d, b]
        some = slice(3 * d * H, 3 * (d + 1) * H)
        if p >= lengths[b]:
            dx[b, p, some] = 0
            du[d, b, p] = 0
            continue
        of_out = of_output[b, p, d * H : (d + 1) * H]
        for h in range(np.uintp(H)):
            pull[h] += of_out[h]
        _gru_row_gradients(x[b, p, some], u[d, b, p, 2 * H :], before[0, d, b, p], pull, dx[b, p, some], du[d, b, p], H)


@njit(**INNER)
def _lstm_row(x, u, cell, hidden, output, H, o, g):
    """``o`` and ``g``: where the output gate and the candidate stand among the gates i, f, and these."""
    i, f, read, new = x[:H], x[H : 2 * H], x[o * H : (o + 1) * H], x[g * H : (g + 1) * H]
    _squash(x[: 2 * H], u[: 2 * H])
    _squash(read, u[o * H : (o + 1) * H])
    added = u[g * H : (g + 1) * H]
    for h in range(np.uintp(H)):
        new[h] = _tanh(new[h] + added[h])
    for h in range(np.uintp(H)):
        cell[h] = f[h] * cell[h] + i[h] * new[h]
    for h in range(np.uintp(H)):
        output[h] = read[h] * _tanh(cell[h])
    _copy(hidden, output)


@Threaded
def lstm(begin, step, x, u, state, before, output, lengths, t, o, g):
    """As `gru`, with four gates, i, f and those at ``o`` and ``g``, and two parts of a state: hidden and cell."""
    D, B, T, H = before.shape[1:]
    for row in range(begin, D * B, step):
        d, b = row // B, row % B
        p, hidden, cell = _place(d, t, T), state[0, d, b], state[1, d, b]
        out = output[b, p, d * H : (d + 1) * H]
        _copy(before[0, d, b, p], hidden)
        _copy(before[1, d, b, p], cell)
        if p < lengths[b]:
            _lstm_row(x[b, p, 4 * d * H : 4 * (d + 1) * H], u[d, b, p], cell, hidden, out, H, o, g)
        else:
            out[:] = 0


@njit(**INNER)
def _lstm_row_gradients(x, cell, pull, pull_cell, dx, H, o, g):
    i, f, read, new = x[:H], x[H : 2 * H], x[o * H : (o + 1) * H], x[g * H : (g + 1) * H]
    di, df, dread, dnew = dx[:H], dx[H : 2 * H], dx[o * H : (o + 1) * H], dx[g * H : (g + 1) * H]
    one = x.dtype.type(1)
    for h in range(np.uintp(H)):
        dread[h] = _tanh(f[h] * cell[h] + i[h] * new[h])  # of the cell after, for now
    for h in range(np.uintp(H)):
        pull_cell[h] += pull[h] * read[h] * (one - dread[h] * dread[h])
    for h in range(np.uintp(H)):
        dread[h] *= pull[h] * (read[h] - read[h] * read[h])
    for h in range(np.uintp(H)):
        di[h] = pull_cell[h] * new[h] * (i[h] - i[h] * i[h])
    for h in range(np.uintp(H)):
        dnew[h] = pull_cell[h] * i[h] * (one - new[h] * new[h])
    for h in range(np.uintp(H)):
        df[h] = pull_cell[h] * cell[h] * (f[h] - f[h] * f[h])
    for h in range(np.uintp(H)):
        pull_cell[h] *= f[h]
    pull[:] = 0


@Threaded
def lstm_gradients(begin, step, x, u, before, of_output, pulls, dx, du, lengths, t, o, g):
    """As `gru_gradients`; ``dx`` and ``du`` hold the same."""
    D, B, T, H = before.shape[1:]
    for row in range(begin, D * B, step):
        d, b = row // B, row % B
        p, pull, pull_cell = _place(d, t, T), pulls[0, d, b], pulls[1, d, b]
        of_x = dx[b, p, 4 * d * H : 4 * (d + 1) * H]
        if p >= lengths[b]:
            of_x[:] = 0
            du[d, b, p] = 0
            continue
        of_out = of_output[b, p, d * H : (d + 1) * H]
        for h in range(np.uintp(H)):
            pull[h] += of_out[h]
        _lstm_row_gradients(x[b, p, 4 * d * H : 4 * (d + 1) * H], before[1, d, b, p], pull, pull_cell, of_x, H, o, g)
        _copy(du[d, b, p], of_x)
