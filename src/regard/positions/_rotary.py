"""Rotary positions: queries and keys are rotated by angles that depend on their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.positions._places import frequencies
from regard.positions._relative import Relative, check_places
from regard.positions._scaling import Scaling

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["Rotary"]


class Rotary(Relative):
    """Rotary positions: each pair of features of queries and keys is rotated by an angle proportional to the position.

    (x_a, x_b) → (x_a cos iω_j − x_b sin iω_j, x_b cos iω_j + x_a sin iω_j) at position i, with ω_j = base^(−2j/d).

    The score of a query at i and a key at k depends on k − i only: R(iω)q · R(kω)k = q · R((k − i)ω)k.
    Pair j is features (j, j + d/2), as in GPT-NeoX and Llama, or with ``interleaved`` (2j, 2j + 1), as in the paper and
    GPT-J: weights trained with one form do not work with the other. ``features`` restricts the rotation to the first
    features (d is then their number). ``scaling`` extends a trained model to longer sequences.

    There are no parameters and no entries in the ``state_dict``. Angles are float64, their sines and cosines float32,
    for models of any dtype; the output has the dtype of the input.

    Shapes: heads (..., H, T, head_dim); places (T,) or (B, T), integers; output as heads.
    Errors: `ArgumentError` for an odd number of features, or heads of another size.
    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864,
    section 3.2.2 and equation 34.

    >>> rotary = Rotary(2)
    >>> rotary.rotate(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([0, 1]))
    tensor([[[1.0000, 0.0000],
             [0.5403, 0.8415]]])
    >>> Rotary(5)
    Traceback (most recent call last):
        ...
    regard.errors.ArgumentError: rotary positions rotate pairs of features: head_dim must be even and 2 or more, got 5
    """

    @classmethod
    def for_layer(cls, num_heads: int, head_dim: int, *, bidirectional: bool) -> Self:
        return cls(head_dim)

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        scaling: Scaling | None = None,
        interleaved: bool = False,
        features: int | None = None,
    ) -> None:
        """Make rotations of heads of size ``head_dim``, or of their first ``features``."""
        super().__init__()
        turned, name = (head_dim, "head_dim") if features is None else (features, "features")
        if turned < 2 or turned % 2:
            raise ArgumentError(
                f"rotary positions rotate pairs of features: {name} must be even and 2 or more, got {turned}"
            )
        if turned > head_dim:
            raise ArgumentError(f"rotary positions rotate up to head_dim={head_dim} features, got features={features}")
        if scaling is not None and not isinstance(scaling, Scaling):
            raise ArgumentError(f"scaling must be a Scaling such as LinearScaling(2.0), got {scaling!r}")
        if not base > 1:
            raise ArgumentError(f"the base of rotary positions must be above 1, got {base}")
        self.head_dim = head_dim
        self.base = base
        self.scaling = scaling
        self.interleaved = interleaved
        self.features = turned

    def rotate(self, heads: Float[Tensor, "*B H T d"], places: Int[Tensor, "*B T"]) -> Float[Tensor, "*B H T d"]:
        """Rotate queries or keys according to their positions."""
        if heads.dim() < 3 or heads.shape[-1] != self.head_dim:
            raise ArgumentError(
                f"rotary positions of head_dim={self.head_dim} expect heads (..., H, T, {self.head_dim}), "
                f"got shape {tuple(heads.shape)}"
            )
        check_places(heads, places)
        cos, sin = self._turns(places)
        turned = heads[..., : self.features]
        a, b = (turned[..., ::2], turned[..., 1::2]) if self.interleaved else turned.chunk(2, -1)
        pair = (a * cos - b * sin, b * cos + a * sin)
        turned = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        turned = turned.to(heads.dtype)
        return turned if self.features == self.head_dim else torch.cat([turned, heads[..., self.features :]], -1)

    def _turns(self, places: Int[Tensor, "*B T"]) -> tuple[Float[Tensor, "*b T pairs"], Float[Tensor, "*b T pairs"]]:
        """Return cosine and sine of each position and pair, with an axis for the heads if positions have a batch."""
        speeds = frequencies(self.features, self.base, places.device)
        if self.scaling is not None:
            speeds = self.scaling.frequencies(speeds, self.base)
        turns = places.to(speeds.dtype).unsqueeze(-1) * speeds
        if places.dim() == 2:
            turns = turns.unsqueeze(-3)
        cos, sin = turns.cos(), turns.sin()
        if self.scaling is not None and self.scaling.magnitude != 1.0:
            cos, sin = cos * self.scaling.magnitude, sin * self.scaling.magnitude
        return cos.float(), sin.float()

    def extra_repr(self) -> str:
        partial = "" if self.features == self.head_dim else f", features={self.features}"
        return f"{self.head_dim}, base={self.base}, scaling={self.scaling}, interleaved={self.interleaved}{partial}"
