"""Records as a watch would make them, from random queries and keys whose whole matrix is known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.functional import Mask, Observe, ScaledDot, attention, causal
from regard.look import AttentionInputs, Layer, WatchRecord

WHAT = Observe(entropy=True, received=True, top=8, distance=True, offsets=(0, -1))


def layer(
    name: str,
    queries: int,
    keys: int | None = None,
    *,
    batch: int = 1,
    heads: int = 3,
    features: int = 5,
    what: Observe = WHAT,
    keep: bool = False,
    mask: Mask | None = None,
    seed: int = 0,
) -> Layer:
    """Make one attention; with ``keys`` it is one between two texts."""
    chance = torch.Generator().manual_seed(seed)
    query = 2 * torch.randn(batch, heads, queries, features, generator=chance)
    key = 2 * torch.randn(batch, heads, keys or queries, features, generator=chance)
    _, statistics = attention(query, key, key, mask=mask, observe=what)
    kept = AttentionInputs(query, key, ScaledDot(), mask, None) if keep else None
    shape = (batch, heads, queries, keys or queries)
    return Layer(name, statistics, shape, tuple(range(heads)), inputs=kept, cross=keys is not None)


def weights(of: Layer) -> Tensor:
    """Return the matrix of a layer with inputs, (B, H, Tq, Tk), in float64."""
    assert of.inputs is not None
    query, key = of.inputs.query.double(), of.inputs.key.double()
    _, statistics = attention(query, key, key, mask=of.inputs.mask, observe=Observe(weights=True))
    assert statistics.weights is not None
    return statistics.weights


def model(tokens: int, layers: int = 2, **options: object) -> WatchRecord:
    """Make the record of a causal model, with inputs."""
    given = {"keep": True, "mask": causal(), **options}
    return WatchRecord([layer(f"layers.{number}.attn", tokens, seed=number, **given) for number in range(layers)])  # type: ignore[arg-type]


def translation(source: int, target: int, **options: object) -> WatchRecord:
    """Make the record of an encoder-decoder with one layer each."""
    return WatchRecord(
        [
            layer("encoder.layers.0", source, seed=1, **options),  # type: ignore[arg-type]
            layer("decoder.layers.0.own", target, seed=2, mask=causal(), **options),  # type: ignore[arg-type]
            layer("decoder.layers.0.cross", target, source, seed=3, **options),  # type: ignore[arg-type]
        ]
    )


def long(layers: int, heads: int, tokens: int, top: int = 8) -> WatchRecord:
    """Make statistics like those of a causal language model: heads look at the first, previous, near or far tokens."""
    chance = torch.Generator().manual_seed(0)
    place = torch.arange(tokens)[:, None]

    def one(kind: int) -> tuple[Tensor, Tensor]:
        near = (-(torch.rand(tokens, top, generator=chance).log() * (4 + 30 * (kind == 2)))).long()
        far = (torch.rand(tokens, top, generator=chance) * (place + 1)).long()
        keys = far if kind == 3 else (place - near).clamp(min=0)
        keys[:, 0] = (torch.zeros_like(place), place - 1, place, keys[:, :1])[kind].clamp(min=0)[:, 0]
        spread = torch.rand(tokens, top, generator=chance) ** 4
        spread[:, 0] += (4.0, 3.0, 0.5, 0.5)[kind]
        weights = (0.95 * spread / spread.sum(-1, keepdim=True)).sort(-1, descending=True).values
        again = (keys[:, :, None] == keys[:, None]).tril(-1).any(-1)
        weights, order = weights.masked_fill(again, 0).sort(-1, descending=True)
        return weights, keys.gather(-1, order).masked_fill(weights == 0, -1)

    return WatchRecord(
        [_long_layer(number, [one((number + head) % 4) for head in range(heads)], chance) for number in range(layers)]
    )


def _long_layer(number: int, found: Sequence[tuple[Tensor, Tensor]], chance: torch.Generator) -> Layer:
    from regard.functional import Observation, Top

    weights, keys = (torch.stack(tensors)[None] for tensors in zip(*found, strict=True))
    _, heads, tokens, _ = weights.shape
    received = torch.zeros(1, heads, tokens).scatter_add(2, keys.clamp(min=0).flatten(2), weights.flatten(2))
    statistics = Observation(
        entropy=torch.rand(1, heads, tokens, generator=chance) * torch.arange(1, tokens + 1).log(),
        received=received,
        top=Top(weights, keys.int()),
    )
    return Layer(f"model.layers.{number}.self_attn", statistics, (1, heads, tokens, tokens), tuple(range(heads)))
