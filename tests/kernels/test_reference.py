"""The oracle's two ways to the weights agree; all other tests lean on it."""

from __future__ import annotations

import pytest
import torch

from regard import ScaledDot
from regard._kernels import reference


@pytest.mark.parametrize("layout", ["contiguous", "heads behind"])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("keys", [3, 71])
@pytest.mark.parametrize("masked", [False, True])
def test_weights_are_those_of_attend(keys: int, group: int, masked: bool, layout: str) -> None:
    torch.manual_seed(0)
    shapes = (
        [(2, 67, 2 * group, 5), (2, keys, 2, 5)]
        if layout == "heads behind"
        else [(2, 2 * group, 67, 5), (2, 2, keys, 5)]
    )
    query, key = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    if layout == "heads behind":
        query, key = query.transpose(1, 2), key.transpose(1, 2)
    bias = torch.randn(1, 1, 67, keys, dtype=torch.float64) if masked else None
    allowed = torch.rand(2, 1, 1, keys).argsort(-1) > 0 if masked else None
    attended = reference.attend(query, key, key, bias, allowed, scores=ScaledDot(0.3).matrix)
    weights, logsumexp = reference.dot_weights_in_place(query, key, bias, allowed, scale=0.3, logsumexp=True)
    torch.testing.assert_close(weights, attended.weights)
    torch.testing.assert_close(logsumexp, attended.scores.logsumexp(-1))
    assert reference.dot_weights_in_place(query, key, bias, allowed, scale=0.3, logsumexp=False)[1] is None
