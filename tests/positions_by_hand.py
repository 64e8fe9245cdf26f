"""The formulas of positions within attention, written out: one sequence, float64, no tricks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.positions import ALiBi, Relative, Rotary, Shaw, T5Bias, YarnScaling


def turn(x: Tensor, places: Tensor, rotary: Rotary) -> Tensor:
    """Each pair of features as a complex number, times e^(i · place · ω)."""
    n, speeds = rotary.features, slowed(rotary)
    columns = torch.arange(n).view(n // 2, 2) if rotary.interleaved else torch.arange(n).view(2, n // 2).mT
    numbers = torch.complex(*x[..., columns].unbind(-1))
    angles = torch.tensor([[int(place) * speed for speed in speeds] for place in places], dtype=torch.float64)
    strength = 0.1 * math.log(rotary.scaling.factor) + 1 if isinstance(rotary.scaling, YarnScaling) else 1.0
    numbers = torch.view_as_real(numbers * torch.polar(torch.full_like(angles, strength), angles))
    return x.scatter(-1, columns.flatten().expand(*x.shape[:-1], n), numbers.flatten(-2))


def slowed(rotary: Rotary) -> list[float]:
    plain = [rotary.base ** (-2 * j / rotary.features) for j in range(rotary.features // 2)]
    if rotary.scaling is None:
        return plain
    assert rotary.scaling == YarnScaling(4.0, original_length=64)  # at 5 pairs: −0.62, from 0; 1.26, up to 2
    return [speed * (1 - min(j / 2, 1)) + speed / 4 * min(j / 2, 1) for j, speed in enumerate(plain)]


def slopes(heads: int) -> list[float]:
    if heads & (heads - 1) == 0:
        return [2 ** (-8 * head / heads) for head in range(1, heads + 1)]
    lower = 2 ** int(math.log2(heads))
    return slopes(lower) + slopes(2 * lower)[::2][: heads - lower]


def bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    if bidirectional:
        side = buckets // 2
        return bucket(-abs(distance), side, max_distance, False) + (side if distance > 0 else 0)
    far, exact = max(-distance, 0), buckets // 2
    if far < exact:
        return far
    turns = math.log(far / exact) / math.log(max_distance / exact) * (buckets - exact)
    return min(exact + math.floor(turns + 1e-9), buckets - 1)


def plain(positions: Relative, query: Tensor, key: Tensor, value: Tensor, at: Tensor, to: Tensor) -> Tensor:
    """(H, T, d): attention with the encoding's formula, as its paper has it."""
    if isinstance(positions, Rotary):
        query, key = turn(query, at, positions), turn(key, to, positions)
    apart = [[int(j) - int(i) for j in to] for i in at]
    keys = key[:, None].expand(-1, len(at), -1, -1)
    values = value[:, None].expand(-1, len(at), -1, -1)
    bias = torch.zeros(1, dtype=torch.float64)
    if isinstance(positions, ALiBi):
        bias = -torch.tensor(
            [[[m * abs(r) for r in row] for row in apart] for m in slopes(positions.num_heads)]
        ).double()
    if isinstance(positions, T5Bias):
        sizes = (positions.weight.shape[0], positions.max_distance, positions.bidirectional)
        numbers = torch.tensor([[bucket(r, *sizes) for r in row] for row in apart])
        bias = positions.weight.double()[numbers].permute(2, 0, 1)
    if isinstance(positions, Shaw):
        k = positions.max_distance
        rows = torch.tensor([[max(-k, min(k, r)) + k for r in row] for row in apart])
        keys = keys + positions.keys.double()[rows]
        if positions.values is not None:
            values = values + positions.values.double()[rows]
    weights = (torch.einsum("hid,hijd->hij", query, keys) / query.shape[-1] ** 0.5 + bias).softmax(-1)
    return torch.einsum("hij,hijd->hid", weights, values)
