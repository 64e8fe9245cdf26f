"""The comparison of a recorded layer with the matrix of weights that the model itself returns."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import Observe
from regard.look import Layer

EVERYTHING = Observe(
    weights=True,
    rows=[0, -1],
    entropy=True,
    received=True,
    top=3,
    position=True,
    max=True,
    distance=True,
    offsets=(0, -1, 2),
)
CLOSE = {"atol": 1e-4, "rtol": 0.0}
SUMS = {"atol": 1e-4, "rtol": 1e-4}  # of places, which go into the hundreds, and of queries


def agrees(layer: Layer, weights: Tensor, kept: Tensor | None = None) -> None:
    """Check every statistic of the layer against weights (B, H, Tq, Tk), at the ``kept`` queries (B, Tq)."""
    B, H, Tq, Tk = weights.shape
    weights, statistics = weights.detach().double(), layer.statistics
    assert layer.shape == (B, H, Tq, Tk), layer.shape
    kept = torch.ones(B, Tq, dtype=torch.bool) if kept is None else kept
    here = kept[:, None].expand(B, H, Tq)

    def same(found: Tensor, expected: Tensor, close: dict[str, float] = CLOSE) -> None:
        assert (found.dtype, found.device.type, found.requires_grad) == (torch.float32, "cpu", False)
        torch.testing.assert_close(found[here].double(), expected[here], **close)

    same(statistics.weights, weights)
    same(statistics.entropy, torch.special.entr(weights).sum(-1))
    same(statistics.position, weights @ torch.arange(Tk, dtype=torch.float64), SUMS)
    same(statistics.max, weights.amax(-1))
    away = torch.arange(Tk) - torch.arange(Tq)[:, None] - (Tk - Tq)
    if layer.cross:
        assert statistics.distance is None
        assert statistics.offsets is None
    else:
        same(statistics.distance, (weights * away.abs()).sum(-1), SUMS)
        for offset, there in zip(EVERYTHING.offsets or (), statistics.offsets.unbind(-1), strict=True):
            same(there, (weights * (away == offset)).sum(-1))
    most = min(3, Tk)
    same(statistics.top.weights[..., :most], weights.sort(descending=True).values[..., :most])
    assert statistics.top.keys.dtype == torch.int32
    same(
        statistics.top.weights, weights.gather(-1, statistics.top.keys.long().clamp(min=0)) * (statistics.top.keys >= 0)
    )
    received = (weights * here[..., None]).sum(2)
    torch.testing.assert_close(statistics.received.double(), received, **SUMS)
