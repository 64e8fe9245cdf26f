"""Sinusoidal positions: fixed waves of increasing wave length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.positions._places import check_options, frequencies, join, places

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from regard.positions._places import Mode

__all__ = ["Sinusoidal", "sinusoidal"]


def sinusoidal(length: int, dim: int, base: float = 10000.0) -> Float[Tensor, "length dim"]:
    """Return the table of sinusoidal positions, in float32.

    P[i, 2j] = sin(i ω_j), P[i, 2j+1] = cos(i ω_j), with ω_j = base^(−2j/dim).

    Each pair of columns (2j, 2j+1) is a vector that turns by ω_j per step, faster for small j, like the low digits of
    a counter. A shift by δ is therefore the same rotation at every i:

        [P[i+δ, 2j]; P[i+δ, 2j+1]] = R(δ ω_j) [P[i, 2j]; P[i, 2j+1]],   R(φ) = [[cos φ, sin φ], [−sin φ, cos φ]].

    An odd ``dim`` ends with a sine alone.

    Shapes: (length, dim).
    Errors: `ArgumentError` for a negative length, a dim below 1, a base that is not positive.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    check_options(dim, "add")
    if length < 0:
        raise ArgumentError(f"a table of positions needs length >= 0, got {length}")
    return _waves(torch.arange(length), dim, base)


def _waves(steps: Int[Tensor, "*places"], dim: int, base: float) -> Float[Tensor, "*places dim"]:
    speeds = frequencies(dim, base, steps.device)
    angles = steps.to(speeds.dtype).unsqueeze(-1) * speeds
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :dim].float()


class Sinusoidal(nn.Module):
    """Sinusoidal positions: fixed waves are added to the embeddings, or appended to their features.

    aⁱ + P[i] (``mode="add"``) or [aⁱ; P[i]] (``mode="concat"``), with P as in `sinusoidal`.

    There are no parameters, no entries in the ``state_dict``, and no maximum length. The waves are float32 for models
    of any dtype; the output has the dtype of the input.

    Shapes: x (..., T, D) with D = ``dim`` when added; keep (..., T), True = a token; output (..., T, D) or
    (..., T, D + dim). ``offset`` is the number of tokens before x[..., 0, :]: one number, or one per sequence (...,).
    Positions skip padding, so that a sequence padded on either side is encoded like the same sequence without padding.
    Errors: `ArgumentError` for wrong sizes, naming them.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

    >>> x = torch.zeros(1, 2, 5)
    >>> Sinusoidal(5)(x)[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0, 0.0]
    >>> Sinusoidal(2, mode="concat")(x).shape
    torch.Size([1, 2, 7])
    """

    def __init__(self, dim: int, *, base: float = 10000.0, mode: Mode = "add") -> None:
        """Make ``dim`` waves; ``base`` sets the longest wave length."""
        super().__init__()
        check_options(dim, mode)
        if not base > 0:
            raise ArgumentError(f"the base of the wave lengths must be positive, got {base}")
        self.dim = dim
        self.base = base
        self.mode: Mode = mode

    def forward(
        self,
        x: Float[Tensor, "*batch T D"],
        *,
        keep: Bool[Tensor, "*batch T"] | None = None,
        offset: int | Int[Tensor, "*batch"] = 0,
    ) -> Float[Tensor, "*batch T _"]:
        """Return x (..., T, D) with the waves of its positions added or appended."""
        steps = places(x, keep, offset)
        if isinstance(offset, Tensor):
            return join(x, _waves(steps, self.dim, self.base), self.mode)
        # All positions are within T rows of a table: with padding, a look-up costs a tenth of sines for all tokens.
        table = _waves(torch.arange(offset, offset + x.shape[-2], device=x.device), self.dim, self.base)
        return join(x, nn.functional.embedding(steps - offset, table), self.mode)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}, mode={self.mode!r}"
