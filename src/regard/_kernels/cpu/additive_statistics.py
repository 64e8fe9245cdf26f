"""What an additive attention on the CPU looked at, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from regard._kernels.cpu.additive import Problem, blocks, dropout, shaped, size, weigh
from regard._kernels.cpu.loops import rows as numba_rows
from regard._kernels.statistics import from_weights as statistics
from regard._kernels.statistics.from_weights import Asked

__all__ = ["gather"]


def gather(problem: Problem, asked: Asked) -> list[Tensor]:
    """What is asked for, with key heads and their rows as (N, R, ...)."""
    N, R, _ = problem.query.shape
    logsumexp = problem.key.new_full((N, R), -torch.inf)
    group, keys = problem.reach.group, problem.key.shape[1]
    return statistics.gather(_seen(problem, logsumexp), logsumexp, group, keys, asked)


def _seen(problem: Problem, logsumexp: Tensor) -> Iterator[statistics.Seen]:
    """The weights of each block; fills in the logsumexp of its rows."""
    for block in blocks(problem):
        buffer = problem.key.new_empty(size(block))
        weigh(problem, block, buffer.numpy(), logsumexp.numpy(), dropout(0.0, None))
        numba_rows.hide(buffer.numel() * 2.0, buffer.numpy(), block, problem.reach)
        weights = shaped(buffer, block, problem.key.shape[1])
        yield statistics.Seen(block.head, block.row, block.key, weights)
