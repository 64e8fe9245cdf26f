"""What every model checks of its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

__all__ = ["check_at_least_1", "check_fractions", "check_lengths"]


def check_at_least_1(config: object, *names: str) -> None:
    """Refuse a config with a number below 1 where it must have more."""
    for name in names:
        if getattr(config, name) < 1:
            raise ArgumentError(f"{name}: expected a number of at least 1, got {getattr(config, name)}")


def check_fractions(config: object, *names: str) -> None:
    """Refuse a config with what is no share of units to drop."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ArgumentError(f"{name}: expected a number from 0 to below 1, got {getattr(config, name)}")


def check_lengths(source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]) -> None:
    """Refuse lengths that are not one for each source, or not within it; a traced graph has no values to ask for."""
    fitting = lengths.shape == source.shape[:1]
    if fitting and not torch.compiler.is_compiling():
        fitting = bool(((lengths >= 1) & (lengths <= source.shape[1])).all())
    if not fitting:
        raise ArgumentError(
            f"expected {source.shape[0]} lengths from 1 to {source.shape[1]}, as source is {tuple(source.shape)}; "
            f"got lengths {lengths.tolist()}"
        )
