"""Statistics added up over blocks of weights are those of the whole matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from regard._kernels.statistics.from_weights import WeightBlock, accumulate, of_matrix
from regard._kernels.statistics.request import StatisticsRequest

NAMES = ["weights", "rows", "entropy", "logsumexp", "received", "top", "keys", "position", "max", "distance", "offsets"]
HEADS, GROUP, QUERIES, KEYS = 3, 2, 5, 11


def in_blocks(weights: torch.Tensor, rows: int) -> Iterator[WeightBlock]:
    """Yield blocks of so many rows of a group of heads."""
    for head in range(HEADS):
        for row in range(0, GROUP * QUERIES, rows):
            yield WeightBlock(head, row, 0, weights[head : head + 1, row : row + rows].clone())


@pytest.mark.parametrize("rows", [1, QUERIES, GROUP * QUERIES])
@pytest.mark.parametrize("factors", [False, True])
def test_blocks_and_matrix_agree(rows: int, factors: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(HEADS, GROUP, QUERIES, KEYS, dtype=torch.float64)
    hidden = torch.rand(scores.shape) < 0.4
    weights, logsumexp = scores.masked_fill(hidden, -torch.inf).softmax(-1), scores.logsumexp(-1)
    received = torch.rand(HEADS, GROUP, QUERIES, dtype=torch.float64) if factors else None
    request = StatisticsRequest(NAMES, received, [2, -1], 9, [-3, 0, 20])
    whole = of_matrix(weights, logsumexp, hidden, request)
    blocks = in_blocks(weights.masked_fill(hidden, -1.0).flatten(1, 2), rows)
    found = accumulate(blocks, logsumexp.flatten(1, 2), GROUP, KEYS, request)
    for name, size in request.sizes(QUERIES, KEYS).items():
        one, other = (answers[NAMES.index(name)].view(HEADS, GROUP, *size) for answers in (whole, found))
        torch.testing.assert_close(one, other, msg=name)
