"""Statistics of additive attention on the CPU, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard._kernels.cpu.additive import blocks, fill_weights, view_of
from regard._kernels.cpu.loops.rows import hide
from regard._kernels.cpu.prepared_inputs import PreparedInputs, size
from regard._kernels.dropout_mask import NO_DROPOUT
from regard._kernels.statistics.from_weights import WeightBlock, accumulate
from regard._kernels.statistics.request import StatisticsRequest

__all__ = ["statistics"]


def statistics(inputs: PreparedInputs, request: StatisticsRequest) -> list[Tensor]:
    """Return the answers, with key heads and their rows as (N, R, ...)."""
    N, R, _ = inputs.query.shape
    logsumexp = inputs.key.new_full((N, R), -torch.inf)
    group, keys = inputs.reach.group, inputs.key.shape[1]
    return accumulate(_weight_blocks(inputs, logsumexp), logsumexp, group, keys, request)


def _weight_blocks(inputs: PreparedInputs, logsumexp: Tensor) -> Iterator[WeightBlock]:
    """Yield the weights of each block, and fill in the logsumexp of its rows."""
    for block in blocks(inputs):
        buffer = inputs.key.new_empty(size(block))
        fill_weights(inputs, block, buffer.numpy(), logsumexp.numpy(), NO_DROPOUT)
        hide(buffer.numel() * 2.0, buffer.numpy(), block, inputs.reach)
        weights = view_of(buffer, block, inputs.key.shape[1])
        yield WeightBlock(block.head, block.row, block.key, weights)
