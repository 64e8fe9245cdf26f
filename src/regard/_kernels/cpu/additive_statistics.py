"""Statistics of additive attention on the CPU, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard._kernels.cpu.additive import Problem, blocks, dropout, shaped, size, weigh
from regard._kernels.cpu.loops import rows as numba_rows
from regard._kernels.statistics.from_weights import WeightBlock, accumulate
from regard._kernels.statistics.request import StatisticsRequest

__all__ = ["statistics"]


def statistics(problem: Problem, request: StatisticsRequest) -> list[Tensor]:
    """Return the answers, with key heads and their rows as (N, R, ...)."""
    N, R, _ = problem.query.shape
    logsumexp = problem.key.new_full((N, R), -torch.inf)
    group, keys = problem.reach.group, problem.key.shape[1]
    return accumulate(_weight_blocks(problem, logsumexp), logsumexp, group, keys, request)


def _weight_blocks(problem: Problem, logsumexp: Tensor) -> Iterator[WeightBlock]:
    """Yield the weights of each block, and fill in the logsumexp of its rows."""
    for block in blocks(problem):
        buffer = problem.key.new_empty(size(block))
        weigh(problem, block, buffer.numpy(), logsumexp.numpy(), dropout(0.0, None))
        numba_rows.hide(buffer.numel() * 2.0, buffer.numpy(), block, problem.reach)
        weights = shaped(buffer, block, problem.key.shape[1])
        yield WeightBlock(block.head, block.row, block.key, weights)
