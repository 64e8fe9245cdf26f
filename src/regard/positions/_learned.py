"""Learned positions: a trained vector for each position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.positions._places import check_options, join, places

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from regard.positions._places import Mode

__all__ = ["Learned"]


class Learned(nn.Module):
    """Learned positions: a vector for each position is added to the embeddings, or appended to their features.

    aⁱ + E[i] (``mode="add"``) or [aⁱ; E[i]] (``mode="concat"``), with E the parameter ``weight``.

    Initialised from N(0, 0.02²), as in BERT and GPT-2.

    Shapes: weight (max_len, dim); x (..., T, D) with D = ``dim`` when added; keep (..., T), True = a token; output
    (..., T, D) or (..., T, D + dim). ``offset`` is the number of tokens before x[..., 0, :]: one number, or one per
    sequence (...,). Positions skip padding, so that a padded sequence is encoded like the same one without it.
    Errors: `ArgumentError` for a position beyond ``max_len``, naming both numbers.
    Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1.

    >>> Learned(10, 4)(torch.zeros(1, 11, 4))
    Traceback (most recent call last):
        ...
    regard.errors.ArgumentError: 11 positions needed, but Learned has max_len=10: cut the input or raise max_len
    """

    def __init__(self, max_len: int, dim: int, *, mode: Mode = "add") -> None:
        """Make vectors of size ``dim`` for the positions 0 … max_len − 1."""
        super().__init__()
        check_options(dim, mode)
        if max_len < 1:
            raise ArgumentError(f"learned positions need max_len >= 1, got {max_len}")
        self.mode: Mode = mode
        self.weight = nn.Parameter(torch.empty(max_len, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors again."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self,
        x: Float[Tensor, "*batch T D"],
        *,
        keep: Bool[Tensor, "*batch T"] | None = None,
        offset: int | Int[Tensor, "*batch"] = 0,
    ) -> Float[Tensor, "*batch T _"]:
        """Return x (..., T, D) with the vectors of its positions added or appended."""
        steps = places(x, keep, offset)
        self._check_length(steps, x.shape[-2], offset)
        return join(x, nn.functional.embedding(steps, self.weight), self.mode)

    def _check_length(self, steps: Int[Tensor, "*places"], length: int, offset: int | Int[Tensor, "*batch"]) -> None:
        max_len = self.weight.shape[0]
        if isinstance(offset, int) and offset + length <= max_len:
            return  # by the shape alone: reading values would stop an export and wait for a GPU
        needed = 1 + int(steps.max()) if steps.numel() else 0
        if needed > max_len:
            raise ArgumentError(
                f"{needed} positions needed, but Learned has max_len={max_len}: cut the input or raise max_len"
            )
        if steps.numel() and int(steps.min()) < 0:
            raise ArgumentError(f"offset counts the tokens that came before, so it is 0 or more; got {offset}")

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, mode={self.mode!r}"
