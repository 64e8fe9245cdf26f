"""Groups of heads that share a score: their parameters, their part of the inputs, and the joining of their outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional import Mask, Observation, Observe
from regard.functional.attention import attend
from regard.nn._parts import HeadScore

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional import Impl
    from regard.nn._parts import ScoreName

__all__ = ["HeadGroup", "attend_by_group", "head_groups"]


class HeadGroup(HeadScore):
    """A score with its parameters, and the numbers of the heads that have it."""

    heads: Tensor

    def __init__(self, name: ScoreName, dim: int, heads: Sequence[int]) -> None:
        super().__init__(name, dim, len(heads))
        self.register_buffer("heads", torch.tensor(heads), persistent=False)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads.tolist()}"


def head_groups(score: ScoreName | Sequence[ScoreName], num_heads: int, head_dim: int) -> nn.ModuleDict:
    """Return a `HeadGroup` for each distinct score, by name."""
    names = [score] * num_heads if isinstance(score, str) else list(score)
    if len(names) != num_heads:
        raise ArgumentError(f"score must be one name or one for each of the {num_heads} heads, got {len(names)} names")
    groups = {name: [head for head in range(num_heads) if names[head] == name] for name in dict.fromkeys(names)}
    return nn.ModuleDict({name: HeadGroup(name, head_dim, heads) for name, heads in groups.items()})


def attend_by_group(
    groups: Sequence[HeadGroup],
    order: Tensor,
    q: Float[Tensor, "*B H Tq d"],
    k: Float[Tensor, "*B Hkv Tk d"],
    v: Float[Tensor, "*B Hkv Tk Ev"],
    *,
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None,
    bias: Float[Tensor, "*biased Tq Tk"] | None,
    dropout_p: float,
    observe: Observe | None,
    impl: Impl,
) -> tuple[Float[Tensor, "*B H Tq Ev"], Observation | None]:
    """Compute `attention`, each group with its own score; ``order`` restores the original order of the heads."""
    if len(groups) == 1:
        return attend(q, k, v, score=groups[0](), mask=mask, bias=bias, dropout_p=dropout_p, observe=observe, impl=impl)
    num_heads = q.shape[-3]
    shared = num_heads // k.shape[-3]
    outputs, observations = [], []
    for group in groups:
        heads = group.heads
        output, statistics = attend(
            q.index_select(-3, heads),
            k.index_select(-3, heads // shared),
            v.index_select(-3, heads // shared),
            score=group(),
            mask=_mask_of_heads(mask, heads, num_heads),
            bias=None if bias is None else _of_heads(bias, heads, num_heads),
            dropout_p=dropout_p,
            observe=_observe_heads(observe, heads, num_heads),
            impl=impl,
            heads=heads,
        )
        outputs.append(output)
        if statistics is not None:
            observations.append(statistics)
    output, axis = torch.cat(outputs, -3).index_select(-3, order), q.dim() - 3
    if not observations:
        return output, None
    # The heads are on the same axis of each statistic, counted from the first.
    return output, Observation.combine(
        observations, lambda _, tensors: torch.cat(tensors, axis).index_select(axis, order)
    )


def _of_heads(x: Tensor, heads: Tensor, num_heads: int) -> Tensor:
    """Select some heads of a tensor that may have a head axis, (..., H, Tq, Tk)."""
    return x.index_select(-3, heads) if x.dim() > 2 and x.shape[-3] == num_heads else x


def _mask_of_heads(
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None, heads: Tensor, num_heads: int
) -> Mask | Bool[Tensor, "*masked Tq Tk"] | None:
    if isinstance(mask, Mask):
        return mask.of_heads(heads, num_heads)
    return _of_heads(mask, heads, num_heads) if isinstance(mask, Tensor) else mask


def _observe_heads(observe: Observe | None, heads: Tensor, num_heads: int) -> Observe | None:
    """Return the request for some heads; only the weights of the queries have a head axis, (..., H, Tq)."""
    if observe is None or not isinstance(observe.received, Tensor) or observe.received.dim() < 2:
        return observe
    if observe.received.shape[-2] != num_heads:
        return observe
    return dataclasses.replace(observe, received=observe.received.index_select(-2, heads))
