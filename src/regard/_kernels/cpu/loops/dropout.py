"""Dropout of any numbers in one pass on the CPU, with random numbers made of their places; compiled by Numba."""

from __future__ import annotations

import numpy as np

from regard._kernels.cpu.loops.rows import mixed, row_bits
from regard._kernels.cpu.loops.threads import Threaded
from regard._kernels.dropout_mask import ROW

__all__ = ["drop"]


@Threaded
def drop(begin, step, x, out, drop):
    """out = m x / (1 - p), where m depends on the seed and on the place in x, flat, alone."""
    scale, zero, threshold = x.dtype.type(drop.scale), x.dtype.type(0), np.uint32(drop.threshold)
    for row in range(begin, (x.size + ROW - 1) // ROW, step):
        first, end, of_row = row * ROW, min((row + 1) * ROW, x.size), row_bits(row, drop)
        given, made = x[first:end], out[first:end]
        for i in range(np.uintp(end - first)):
            made[i] = given[i] * (scale if mixed(np.uint32(i) ^ of_row) >= threshold else zero)
