"""Scalings of rotary positions to sequences longer than those a model was trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["LinearScaling", "Llama3Scaling", "NTKScaling", "Scaling", "YarnScaling"]


@dataclass(frozen=True)
class Scaling:
    """The base of all scalings, which extend a model trained on L positions to ``factor`` times as many.

    Errors: `ArgumentError` for a factor below 1.

    >>> isinstance(LinearScaling(2.0), Scaling)
    True
    """

    factor: float

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ArgumentError(f"a scaling stretches positions by a factor of 1 or more, got {self.factor}")

    @property
    def magnitude(self) -> float:
        """The factor by which rotated queries and keys are multiplied."""
        return 1.0

    def frequencies(self, plain: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        """Return the scaled frequencies for the plain ones, ω_j = base^(−2j/d), of d = 2 · pairs features."""
        raise NotImplementedError(f"{type(self).__name__} must define frequencies(plain, base)")


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Position interpolation: all positions are divided by the factor, ω'_j = ω_j / factor.

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
    arXiv 2306.15595, section 3.2.

    >>> LinearScaling(4.0).frequencies(torch.tensor([1.0, 0.01]), 10000.0)
    tensor([0.2500, 0.0025])
    """

    def frequencies(self, plain: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        return plain / self.factor


@dataclass(frozen=True)
class NTKScaling(Scaling):
    """NTK-aware scaling by a larger base: the fastest pair rotates as before, the slowest ``factor`` times slower.

    ω'_j = ω_j · factor^(−2j/(d−2)), or base' = base · factor^(d/(d−2)). The "dynamic" form, whose factor grows with the
    sequence, is omitted on purpose: the keys in a cache would have another base than those that follow.

    Source: bloc97 2023, "NTK-aware scaled RoPE", as in Peng et al. 2023, arXiv 2309.00071, section 3.1.

    >>> NTKScaling(4.0).frequencies(torch.tensor([1.0, 0.01]), 10000.0)
    tensor([1.0000, 0.0025])
    """

    def frequencies(self, plain: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        pairs = plain.shape[0]
        return plain * self.factor ** (-_numbers(plain) / max(pairs - 1, 1))


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """YaRN: pairs with many turns in the trained length do not change, pairs with few are scaled, with a ramp between.

    ω'_j = γ_j ω_j + (1 − γ_j) ω_j / factor, where γ falls linearly in j from 1, at the pair that makes ``beta_fast``
    turns in ``original_length`` positions, to 0, at the pair that makes ``beta_slow``; both pairs are rounded outwards.
    Queries and keys are multiplied by 0.1 ln(factor) + 1, and so the scores by its square (the paper's 1/t). In the
    paper the ramp is linear in the number of turns; in its authors' code, as here, in j.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071,
    sections 3.2 and 3.4.

    >>> YarnScaling(4.0, original_length=64).frequencies(torch.tensor([1.0, 0.1, 0.01, 0.001]), 10000.0)
    tensor([1.0000e+00, 6.2500e-02, 2.5000e-03, 2.5000e-04])
    >>> f"{YarnScaling(4.0, original_length=64).magnitude:.4f}"
    '1.1386'
    """

    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_length(self.original_length)
        if not 0 < self.beta_slow < self.beta_fast:
            raise ArgumentError(f"expected 0 < beta_slow < beta_fast, got {self.beta_slow} and {self.beta_fast}")

    @property
    def magnitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, plain: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        pairs = plain.shape[0]
        first = max(math.floor(self._pair_that_makes(self.beta_fast, pairs, base)), 0)
        last = min(math.ceil(self._pair_that_makes(self.beta_slow, pairs, base)), 2 * pairs - 1)
        stretched = ((_numbers(plain) - first) / max(last - first, 0.001)).clamp(0, 1)
        return plain * (1 - stretched) + plain / self.factor * stretched

    def _pair_that_makes(self, turns: float, pairs: int, base: float) -> float:
        """Return the (fractional) j with ω_j · original_length = 2π · turns."""
        return pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(base)


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Llama 3.1's scaling: short wave lengths λ_j = 2π/ω_j do not change, long ones are scaled, with a ramp between.

    ω'_j = γ_j ω_j + (1 − γ_j) ω_j / factor, γ_j = (original_length / λ_j − low) / (high − low), clipped to [0, 1], with
    ``low_freq_factor`` and ``high_freq_factor``, the numbers of turns in the trained length at which the ramp begins
    and ends.

    Source: Llama 3.1's published code (Meta 2024); Grattafiori et al. 2024, "The Llama 3 Herd of Models",
    arXiv 2407.21783.

    >>> Llama3Scaling().frequencies(torch.tensor([1.0, 0.001, 0.0001]), 500000.0)
    tensor([1.0000e+00, 2.1361e-04, 1.2500e-05])
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_length(self.original_length)
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            got = f"{self.low_freq_factor} and {self.high_freq_factor}"
            raise ArgumentError(f"expected 0 < low_freq_factor < high_freq_factor, got {got}")

    def frequencies(self, plain: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        turns = self.original_length * plain / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return plain * kept + plain / self.factor * (1 - kept)


def _numbers(plain: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """Return the number j of each pair: 0, 1, 2, …"""
    return torch.arange(plain.shape[0], device=plain.device, dtype=plain.dtype)


def _check_length(length: int) -> None:
    if length < 1:
        raise ArgumentError(f"original_length is the length the model was trained on, 1 or more; got {length}")
