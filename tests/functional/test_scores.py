"""Score functions: each against its formula, and as the small frozen objects that they are."""

from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pytest
import torch

from regard import Additive, Dot, General, Observe, ScaledDot, attention
from regard.cli.train import train
from regard.functional import Score, scores

torch.manual_seed(0)
QUERY, KEY = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 4, 7)
SQUARE, WIDE, PER_HEAD = torch.randn(7, 7), torch.randn(7, 4), torch.randn(3, 7, 7)
ONE, EACH = torch.randn(7), torch.randn(3, 7)


def weights(score: Score, query: torch.Tensor = QUERY, key: torch.Tensor = KEY) -> torch.Tensor:
    _, statistics = attention(query, key, key, score=score, observe=Observe(weights=True))
    assert statistics.weights is not None
    return statistics.weights


FORMULAS = {
    "dot": (Dot(), QUERY @ KEY.mT),
    "scaled dot": (ScaledDot(), QUERY @ KEY.mT / 7**0.5),
    "scale": (ScaledDot(scale=0.25), QUERY @ KEY.mT / 4),
    "general": (General(SQUARE), QUERY @ SQUARE @ KEY.mT),
    "general per head": (General(PER_HEAD), torch.einsum("bhie,hef,bhjf->bhij", QUERY, PER_HEAD, KEY)),
    "additive": (Additive(ONE), torch.tanh(QUERY[:, :, :, None] + KEY[:, :, None]) @ ONE),
    "additive per head": (
        Additive(EACH),
        torch.einsum("bhije,he->bhij", torch.tanh(QUERY[:, :, :, None] + KEY[:, :, None]), EACH),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_weights_are_the_softmax_of_the_formula(name: str) -> None:
    score, expected = FORMULAS[name]
    torch.testing.assert_close(weights(score), torch.softmax(expected, -1))


def test_general_lets_query_and_key_differ_in_size() -> None:
    key = KEY[..., :4]
    torch.testing.assert_close(weights(General(WIDE), key=key), torch.softmax(QUERY @ WIDE @ key.mT, -1))


def test_a_negative_or_zero_scale_is_kept() -> None:
    torch.testing.assert_close(weights(ScaledDot(scale=0.0)), torch.full((2, 3, 5, 4), 0.25))
    torch.testing.assert_close(weights(ScaledDot(scale=-1.0)), torch.softmax(-(QUERY @ KEY.mT), -1))


def test_without_scale_softmax_saturates_where_its_gradient_vanishes() -> None:
    """Why 1/sqrt(E): with E = 512 the largest weight is near 1, and the gradient of the scores near 0."""
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 64, 512), torch.randn(1, 1, 64, 512)
    plain, scaled = weights(Dot(), query, key), weights(ScaledDot(), query, key)
    slope = [(p * (1 - p)).sum(-1).mean() for p in (plain, scaled)]
    assert plain.amax(-1).mean() > 0.9
    assert scaled.amax(-1).mean() < 0.2
    assert slope[0] < 0.2 * slope[1]


@pytest.mark.parametrize("score", [Dot(), ScaledDot(), General(SQUARE), Additive(ONE)])
def test_scores_are_frozen(score: Score) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        score.weight = ONE


def test_plain_scores_compare_and_hash_by_value() -> None:
    assert Dot() == Dot()
    assert ScaledDot(0.5) == ScaledDot(0.5) != ScaledDot()
    assert len({ScaledDot(), ScaledDot(None), Dot()}) == 2


def test_types_and_the_command_offer_every_score_that_has_a_name() -> None:
    assert get_args(scores.ScoreName) == tuple(scores.BY_NAME)
    offered, _none = get_args(get_type_hints(train)["score"])
    assert {*get_args(offered)} == {*scores.BY_NAME, "none"}


@pytest.mark.parametrize("score", [General(PER_HEAD), Additive(EACH)])
def test_a_score_of_some_heads_and_with_other_numbers(score: General | Additive) -> None:
    heads = torch.tensor([2, 0])
    expected = weights(score)[:, heads]
    torch.testing.assert_close(weights(score.of_heads(heads), QUERY[:, heads], KEY[:, heads]), expected)
    torch.testing.assert_close(weights(score.map(lambda weight: 0 * weight)), torch.full((2, 3, 5, 4), 0.25))
    one = type(score)(score.weight[0])
    assert one.of_heads(heads) is one
