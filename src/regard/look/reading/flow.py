"""Flow between tokens: rollout from a token back to the input, and the attention of some queries on passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from regard.errors import ArgumentError, UnsupportedError
from regard.functional import Observe

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.look.record import Layer, Record

__all__ = ["attention_on", "rollout"]


def rollout(record: Record, token: int, *, batch: int = 0) -> Float[Tensor, " T"]:
    """Compute the share of each input token in one token after all layers, as if attention alone mixed tokens.

    Attention rollout: with Â_l = ½ (mean over heads of P_l + I), the row of the ``token`` in the product Â_L ⋯ Â_1,
    computed as r ← Â_lᵀ r from the last layer back to the first: linear in the number of tokens.

    ``token`` is an index, -1 the last; ``batch`` is the number of the example. The result sums to 1. Raises
    UnsupportedError without ``watch(keep_inputs=True)``, or if layers are missing; ArgumentError unless all layers are
    self-attention over the same tokens (of an encoder-decoder, watch the layers of the encoder alone).

    Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv 2005.00928, section 3.
    """
    if not record.layers or record.left_out:
        raise UnsupportedError(
            f"rollout: expected every layer of the model, got {len(record.layers)}, and {record.left_out} were left "
            "out; watch with more memory, or fewer statistics"
        )
    B, _, Tq, _ = record.layers[0].shape
    for layer in record.layers:
        if layer.cross or layer.first_query or (layer.shape[0], *layer.shape[2:]) != (B, Tq, Tq):
            raise ArgumentError(
                f"rollout: expected self-attention over the same {Tq} tokens in all layers, got {layer.name} with "
                f"{layer.shape[2]} queries and {layer.shape[3]} keys; choose the layers with watch(layers=...)"
            )
    if not -Tq <= token < Tq or not 0 <= batch < B:
        raise ArgumentError(
            f"rollout: expected a token from {-Tq} to {Tq - 1} and a batch from 0 to {B - 1}, got {token} and {batch}"
        )
    reached = torch.zeros(B, Tq)
    reached[batch, token] = 1
    for layer in reversed(record.layers):
        reached = (_received(layer, reached).mean(1) + reached) / 2
    return reached[batch]


def attention_on(
    record: Record, queries: slice | Sequence[int], passages: Sequence[slice], *, batch: int = 0
) -> Float[Tensor, "layers heads passages"]:
    """Compute the share of some queries' weights that falls on each passage, by layer and head.

    share_p = mean over i of sum_{j in p} P_ij for the ``queries`` i. The layers are those of cross-attention if the
    model has any, and the passages then belong to its source; otherwise all layers. ``.mean((0, 1))`` is the mean over
    all heads. Raises UnsupportedError without ``watch(keep_inputs=True)``, ArgumentError for queries or passages that
    do not exist, and for layers that differ in their number of heads.
    """
    crossing = [layer for layer in record.layers if layer.cross]
    layers = crossing or record.layers
    if not layers or len({layer.shape for layer in layers}) > 1:
        shapes = ", ".join(str(shape) for shape in dict.fromkeys(layer.shape for layer in layers))
        raise ArgumentError(
            f"attention_on: expected layers with equally many heads, queries and keys, got {shapes or 'none'}"
        )
    B, Hq, Tq, Tk = layers[0].shape
    chosen = range(Tq)[queries] if isinstance(queries, slice) else [range(Tq)[i] for i in queries if -Tq <= i < Tq]
    spans = [range(Tk)[passage] for passage in passages]
    wrong = not isinstance(queries, slice) and len(chosen) != len(queries)
    if wrong or not chosen or not all(spans) or not 0 <= batch < B:
        raise ArgumentError(
            f"attention_on: expected some of {Tq} queries, passages within {Tk} tokens and a batch from 0 to {B - 1}, "
            f"got {queries}, {[(p.start, p.stop) for p in passages]} and {batch}"
        )
    weights = torch.zeros(B, Hq, Tq)
    weights[batch, :, list(chosen)] = 1 / len(chosen)
    received = torch.stack([_received(layer, weights)[batch] for layer in layers])
    return torch.stack([received[..., list(span)].sum(-1) for span in spans], -1)


def _received(layer: Layer, weights: Tensor) -> Float[Tensor, "B Hq Tk"]:
    """Compute Pᵀr for weights r of the queries, (B, Tq) or (B, Hq, Tq)."""
    weights = weights if weights.dim() == 3 else weights[:, None].expand(layer.shape[:3])
    if layer.statistics.weights is not None:
        return (layer.statistics.weights.mT @ weights[..., None]).squeeze(-1)
    received = layer.observe(Observe(received=weights)).received
    if received is None:
        raise UnsupportedError(f"{layer.name}: expected the sums over its queries, got none")
    return received
