"""Dropout drawn from a counter: whether an element is dropped is a hash of a seed and the element's position."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["NO_DROPOUT", "ROW", "DropoutMask"]

ROW = 4096  # elements of a tensor, flat, that share a row's hash


class DropoutMask(NamedTuple):
    """Dropout of elements whose hash is below ``threshold``; the others are multiplied by ``scale``."""

    seed: int
    threshold: int  # of 2^32
    scale: float
    active: bool

    @staticmethod
    def of(probability: float, seed: Tensor | None) -> DropoutMask:
        """Return the mask with this probability and seed; None: no dropout."""
        if not probability or seed is None:
            return NO_DROPOUT
        threshold = min(int(probability * 2**32), 2**32 - 1)
        return DropoutMask(int(seed), threshold, 0.0 if probability >= 1 else 1 / (1 - probability), True)


NO_DROPOUT = DropoutMask(0, 0, 1.0, False)
