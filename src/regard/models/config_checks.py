"""Checks of configs, and of the lengths of inputs, that all models share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

__all__ = ["check_at_least_1", "check_fractions", "check_lengths"]


def check_at_least_1(config: object, *names: str) -> None:
    """Check that these fields of a config are at least 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ArgumentError(f"{name}: expected a number of at least 1, got {getattr(config, name)}")


def check_fractions(config: object, *names: str) -> None:
    """Check that these fields of a config are from 0 to below 1."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ArgumentError(f"{name}: expected a number of at least 0 and below 1, got {getattr(config, name)}")


def check_lengths(source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]) -> None:
    """Check that there is a length for each source, within its size; in compiled code only their number is checked."""
    fitting = lengths.shape == source.shape[:1]
    if fitting and not torch.compiler.is_compiling():
        fitting = bool(((lengths >= 1) & (lengths <= source.shape[1])).all())
    if not fitting:
        raise ArgumentError(
            f"expected {source.shape[0]} lengths from 1 to {source.shape[1]}, as source is {tuple(source.shape)}; "
            f"got lengths {lengths.tolist()}"
        )
