"""Speed of the loops of additive attention, compared with the bound set by the machine's multipliers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit

from regard._kernels.cpu.additive import blocks
from regard._kernels.cpu.loops import additive_packed as packed
from regard._kernels.cpu.prepared_inputs import prepare, size
from regard._kernels.dropout_mask import NO_DROPOUT
from regard._kernels.mask_parts import MaskParts

__all__ = ["report"]

# Instructions of the multipliers for each term; additions have units of their own. Forward, for four terms: 4 y, 5 for
# their products, and a division by an estimate, a product and 2 multiply-adds.
_FORWARD = 13 / 4
_BACKWARD = 6.0  # 1 + A B, estimate, 2 multiply-adds, dS r, t - t r


@njit(fastmath={"contract"}, error_model="numpy")
def _multiply_add(rounds: int, a: Any, b: Any, x: Any) -> None:
    for _ in range(rounds):
        for j in range(192):  # twelve vectors of AVX-512: enough to hide the latency of one
            x[j] = x[j] * a + b


def _best(function: Callable[[], object], repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def report() -> str:
    """Return the terms per second on one core, and the multiply-adds per second of that core."""
    x, a, b = np.ones(192, np.float32), np.float32(0.99), np.float32(0.1)
    rate = 192 * 100_000 / _best(lambda: _multiply_add(100_000, a, b, x))
    N, T, H = 2, 256, 128
    query, key = torch.randn(2, N, 1, T, H).unbind()
    inputs = prepare(query, key, key, torch.randn(H), None, MaskParts(-T, T, None, None))
    block = next(blocks(inputs))
    if inputs.packed is None:
        raise RuntimeError("random numbers of unit size must fit the packed loops")
    A, B, wide, inverse, scale = inputs.packed
    buffer, logsumexp = np.zeros(size(block), np.float32), np.zeros((N, T), np.float32)
    sums = np.zeros_like(A), np.zeros((N, T // wide, H, wide), np.float32), np.zeros((N, H), np.float32)
    terms = N * T * T * H
    outputs = buffer, buffer.view(np.int32), logsumexp
    rest = block, inputs.reach
    once = terms / _best(lambda: packed.weigh(0, A, B, wide, inverse, scale, *outputs, *rest, NO_DROPOUT))
    back = terms / _best(lambda: packed.gradients(0, A, B, buffer, *sums, *rest))
    return (
        f"One core: {rate / 1e9:.0f}e9 multiply-adds a second (float32).\n"
        f"Weights: {once / 1e9:.1f}e9 terms a second, {once * _FORWARD / rate:.2f} of the bound ({_FORWARD} a term).\n"
        f"Gradients: {back / 1e9:.1f}e9 terms a second, {back * _BACKWARD / rate:.2f} of the bound ({_BACKWARD})."
    )
