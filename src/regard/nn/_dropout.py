"""Dropout as a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from regard._kernels.dropout import dropout
from regard.nn._parts import check_dropout

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """Dropout: set each number to zero with probability p in training, and scale the others by 1/(1 − p).

    y = m ⊙ x / (1 − p), with m independent, 0 with probability p and else 1; in evaluation y = x.

    The distribution is that of `torch.nn.Dropout`, whose random generator takes most of its time on a CPU. Here m
    is a hash of a seed and the element's position, 32 bits each, so that the probability is p within 2⁻³². On other
    devices, and in compiled code, the computation is torch's.

    Shapes: x of any shape, floating; output the same.
    Errors: `ArgumentError` if p is not a probability.
    Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", section 4.

    >>> import torch
    >>> layer = Dropout(0.25)
    >>> sorted(set(layer(torch.ones(1000)).tolist()))
    [0.0, 1.3333333730697632]
    >>> layer.eval()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, p: float) -> None:
        """Make a layer that drops with probability ``p``."""
        super().__init__()
        check_dropout(p)
        self.p = p

    def forward(self, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """Return x with numbers dropped in training, x itself in evaluation."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
