"""AttentionPooling against attention written out, and the laws for it, with sizes that are all different."""

from __future__ import annotations

import pytest
import torch

from by_hand import attend
from regard.errors import ArgumentError
from regard.functional import Observe, padding
from regard.nn import AttentionPooling

SCORES = ["dot", "scaled_dot", "general", "additive"]
B, T, HEADS, SHARE, KEY = 3, 7, 5, 2, 11
DIM = HEADS * SHARE
LENGTHS = [7, 3, 1]
any_score = pytest.mark.parametrize("score", SCORES)


def pooling(score: str) -> AttentionPooling:
    torch.manual_seed(0)
    return AttentionPooling(DIM, heads=HEADS, key_dim=KEY, score=score).double()


def states() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(B, T, DIM, dtype=torch.float64)


@any_score
def test_it_is_its_formula(score: str) -> None:
    layer, x = pooling(score), states()
    output, seen = layer(x, observe=Observe(weights=True))
    assert output.shape == (B, DIM)
    assert seen.weights.shape == (B, HEADS, 1, T)
    for row in range(B):
        for head in range(HEADS):
            share = slice(head * SHARE, (head + 1) * SHARE)
            keys = x[row] @ layer.k_proj.weight[head * KEY : (head + 1) * KEY].T
            weight = None if layer.score.weight is None else layer.score.weight[head]
            expected, weights = attend(layer.query[head : head + 1], keys, x[row, :, share], score, weight, None)
            torch.testing.assert_close(output[row, share], expected[0])
            torch.testing.assert_close(seen.weights[row, head].double(), weights, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(layer(x[row]), output[row])


def test_one_head_with_an_additive_score_is_that_of_yang() -> None:
    layer, x = AttentionPooling(DIM).double(), states()
    hidden = torch.tanh(x @ layer.k_proj.weight.T + layer.query[0])
    alpha = torch.softmax(hidden @ layer.score.weight[0], -1)
    torch.testing.assert_close(layer(x), (alpha[..., None] * x).sum(1))


@any_score
def test_law_1_asking_changes_nothing(score: str) -> None:
    layer, x, mask = pooling(score), states(), padding(lengths=LENGTHS)
    assert torch.equal(layer(x, mask=mask), layer(x, mask=mask, observe=Observe(weights=True, entropy=True))[0])


@any_score
def test_law_2_a_sequence_of_nothing_is_zero_and_harms_no_other(score: str) -> None:
    layer, x = pooling(score), states().requires_grad_()
    keep = torch.ones(B, T, dtype=torch.bool)
    keep[1] = False
    output, seen = layer(x, mask=padding(keep), observe=Observe(weights=True))
    assert not output[1].any()
    assert not seen.weights[1].any()
    torch.testing.assert_close(output[[0, 2]], layer(x)[[0, 2]])
    output.square().sum().backward()
    assert not x.grad[1].any()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)


@any_score
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 7.0])
def test_law_3_what_is_masked_has_no_influence(score: str, junk: float) -> None:
    layer, x = pooling(score), states()
    keep = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    spoiled = x.masked_fill(~keep[..., None], junk)
    torch.testing.assert_close(layer(spoiled, mask=padding(keep)), layer(x, mask=padding(keep)), rtol=0, atol=0)


@any_score
@pytest.mark.parametrize("left", [False, True])
def test_law_5_alone_equals_padded(score: str, left: bool) -> None:
    layer, x = pooling(score), states()
    keep = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    keep = keep.flip(1) if left else keep
    padded = layer(x, mask=padding(keep))
    for row in range(B):
        torch.testing.assert_close(padded[row], layer(x[row][keep[row]]))


@any_score
def test_law_7_order_means_nothing(score: str) -> None:
    layer, x = pooling(score), states()
    torch.testing.assert_close(layer(x[:, torch.randperm(T)]), layer(x))


@any_score
def test_gradients_reach_every_parameter(score: str) -> None:
    layer = pooling(score)
    layer(states()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_sizes_and_beginnings() -> None:
    layer = AttentionPooling(60, heads=4)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "query": (4, 15),
        "k_proj.weight": (60, 60),
        "score.weight": (4, 15),
    }
    assert 0.1 < layer.query.std() * 15**0.5 < 2
    assert layer(torch.randn(2, 3, 60).bfloat16().float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AttentionPooling(7, heads=2), "dim must be a multiple of heads, got 7 and 2"),
        (lambda: AttentionPooling(6, heads=0), "got 6 and 0"),
        (lambda: AttentionPooling(6, key_dim=0), "key_dim must be at least 1, got 0"),
        (lambda: AttentionPooling(6, score="cosine"), "got 'cosine'"),
        (lambda: AttentionPooling(6)(torch.zeros(2, 3, 5)), r"x must have 2 or 3 axes, the last of size 6; got shape"),
        (lambda: AttentionPooling(6)(torch.zeros(6)), r"got shape \(6,\)"),
        (lambda: AttentionPooling(6)(torch.zeros(2, 3, 6), mask=torch.ones(2, 3)), "must be bool"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
