"""Parts of the layers: scores with parameters, initialisation, and checks of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional import Mask, Score, causal, dense
from regard.functional.scores import BY_NAME, ScoreName

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

__all__ = [
    "HeadScore",
    "ScoreName",
    "as_mask",
    "as_pair",
    "check_dropout",
    "check_size",
    "described",
    "glorot_",
    "normal_embedding_",
    "with_causal",
]


class HeadScore(nn.Module):
    """A score chosen by name, with its parameters for heads of size ``dim``.

    "general" has W (heads, dim, dim) and "additive" w (heads, dim), both without the first axis if ``heads`` is None;
    the others have no parameters. A call returns the score for `regard.attention`.
    """

    def __init__(self, name: ScoreName, dim: int, heads: int | None = None) -> None:
        super().__init__()
        if name not in BY_NAME:
            raise ArgumentError(f"score must be one of {', '.join(map(repr, BY_NAME))}; got {name!r}")
        self.name = name
        self.weight: nn.Parameter | None = None
        shape = BY_NAME[name].weight_shape(dim)
        if shape is not None:
            self.weight = nn.Parameter(torch.empty(shape if heads is None else (heads, *shape)))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again, Glorot-uniform for each head."""
        if self.weight is not None:
            dim = self.weight.shape[-1]
            fans = BY_NAME[self.name].weight_shape(dim) or ()
            bound = math.sqrt(6 / (dim + (fans[-2] if len(fans) > 1 else 1)))
            nn.init.uniform_(self.weight, -bound, bound)

    def forward(self) -> Score:
        score: Callable[..., Score] = BY_NAME[self.name]
        return score() if self.weight is None else score(self.weight)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (repr(self.name), described(self))))


def as_pair(answer: Any) -> tuple[Tensor, Any]:
    """Split a layer's result into the output and the statistics, which are None unless they were requested."""
    return answer if isinstance(answer, tuple) else (answer, None)


def described(layer: nn.Module, /, **defaults: object) -> str:
    """Return the options of a layer that differ from their defaults, and the shapes of its own parameters."""
    options = [f"{name}={value!r}" for name, default in defaults.items() if (value := getattr(layer, name)) != default]
    return ", ".join(options + [f"{name}={tuple(x.shape)}" for name, x in layer.named_parameters(recurse=False)])


def glorot_(linear: nn.Linear) -> None:
    """Draw a projection again: Glorot-uniform weight, zero bias."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def normal_embedding_(table: nn.Embedding | nn.EmbeddingBag, std: float) -> None:
    """Draw a table of embeddings again from N(0, std²), with zeros in the row of padding, if it has one."""
    nn.init.normal_(table.weight, std=std)
    if table.padding_idx is not None:
        with torch.no_grad():
            table.weight[table.padding_idx].zero_()


def check_dropout(p: float) -> None:
    """Check that a dropout is a probability."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout must be a probability from 0 to 1, got {p}")


def check_size(x: Float[Tensor, "*batch T D"], size: int, name: str, ranks: tuple[int, ...] = (2, 3)) -> None:
    """Check the rank and the last size of an input."""
    if x.shape[-1:] != (size,) or x.dim() not in ranks:
        axes = " or ".join(map(str, ranks))
        raise ArgumentError(f"{name} must have {axes} axes, the last of size {size}; got shape {tuple(x.shape)}")


def as_mask(
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, rank: int
) -> Mask | Bool[Tensor, "*masked Tq Tk"] | None:
    """Wrap a mask tensor as a `Mask`, unless its dtype or rank is wrong: then `attention` raises the error."""
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == rank:
        return dense(mask)
    return mask


def with_causal(mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, rank: int) -> Mask | Bool[Tensor, "*masked Tq Tk"]:
    """Combine the mask with the causal one."""
    if mask is None:
        return causal()
    structured = as_mask(mask, rank)
    return causal() & structured if isinstance(structured, Mask) else mask
