"""Dropout of any numbers in one pass on the CPU, with random numbers made of their places; compiled by Numba."""

from __future__ import annotations

import numpy as np

from regard._kernels.numba_pool import Threaded
from regard._kernels.numba_rows import Block, drop_row

__all__ = ["drop"]

_ROW = 4096  # numbers to a task


@Threaded
def drop(begin, step, x, out, drop):
    """out = m x / (1 - p), where m depends on the seed and on the place in x, flat, alone."""
    for row in range(begin, (x.size + _ROW - 1) // _ROW, step):
        first, end = row * _ROW, min((row + 1) * _ROW, x.size)
        factors, given, made = np.empty(end - first, x.dtype), x[first:end], out[first:end]
        drop_row(factors, row, Block(0, 0, 0, 0, 0, end - first, 0, 0), drop)
        for i in range(np.uintp(end - first)):
            made[i] = given[i] * factors[i]
