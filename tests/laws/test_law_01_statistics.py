"""Law 1: asking for statistics never changes the output, bit for bit. And: the statistics are what they say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drawn import EVERYTHING, SHAPES, Call, calls, fixed_like, gradients, make_call, make_score
from regard import Observe
from regard.functional import observed


@given(calls(), st.sampled_from([0.0, 0.4]), st.sampled_from([*EVERYTHING, "all"]))
def test_output_and_gradients_are_the_same_bits(call: Call, dropout_p: float, name: str) -> None:
    observe = Observe(**EVERYTHING) if name == "all" else Observe(**{name: EVERYTHING[name]})
    torch.manual_seed(1)
    plain, plain_gradients = gradients(call, dropout_p=dropout_p)
    random_state = torch.get_rng_state()
    torch.manual_seed(1)
    observed_output, observed_gradients = gradients(call, dropout_p=dropout_p, observe=observe)
    assert torch.equal(plain, observed_output)
    assert torch.equal(random_state, torch.get_rng_state())  # nor what is drawn later
    assert all(torch.equal(a, b) for a, b in zip(plain_gradients, observed_gradients, strict=True))


@given(calls())
def test_statistics_agree_with_the_matrix(call: Call) -> None:
    call = call.to(torch.float64)
    received = fixed_like(call.query[..., 0])
    _, statistics = call.run(observe=Observe(**EVERYTHING))
    _, weighted = call.run(observe=Observe(received=received))
    weights, keys = statistics.weights, call.shape[-1]
    close = torch.testing.assert_close
    assert weights.shape == call.shape
    close(statistics.rows, weights[..., [0, -1], :])
    close(statistics.entropy, -torch.where(weights > 0, weights * weights.log(), 0.0).sum(-1))
    close(statistics.received, weights.sum(-2))
    close(weighted.received, (received[..., None] * weights).sum(-2))
    close(statistics.position, (weights * torch.arange(keys)).sum(-1))
    close(statistics.max, weights.max(-1).values)
    places = torch.arange(call.shape[-2])[:, None] + (keys - call.shape[-2])
    away = torch.arange(keys) - places
    close(statistics.distance, (weights * away.abs()).sum(-1))
    for offset, there in zip(EVERYTHING["offsets"], statistics.offsets.unbind(-1), strict=True):
        close(there, (weights * (away == offset)).sum(-1))
    close(statistics.top.weights, weights.sort(descending=True).values[..., :3])
    nothing = statistics.top.keys < 0
    assert not statistics.top.weights[nothing].any()
    close(weights.gather(-1, statistics.top.keys.clamp(min=0))[~nothing], statistics.top.weights[~nothing])
    assert torch.equal((~nothing).sum(-1), call.allowed.sum(-1).clamp(max=3))
    empty = ~call.allowed.any(-1)
    assert torch.equal(statistics.logsumexp == -torch.inf, empty)


@given(calls(), st.sampled_from([*EVERYTHING, "all"]))
def test_observed_gives_the_statistics_of_attention(call: Call, name: str) -> None:
    observe = Observe(**EVERYTHING) if name == "all" else Observe(**{name: EVERYTHING[name]})
    call = call.to(torch.float64).leaves()
    _, expected = call.run(observe=observe)
    statistics = observed(
        call.query, call.key, observe, score=make_score(call.score, call.weight), mask=call.mask, bias=call.bias
    )
    for name, value in vars(expected).items():
        if name == "top" and value is not None:
            torch.testing.assert_close(statistics.top.weights, value.weights)
        else:
            torch.testing.assert_close(getattr(statistics, name), value)
            assert value is None or not getattr(statistics, name).requires_grad


def test_logsumexp_is_of_the_masked_biased_scores() -> None:
    call = make_call(mask="left", bias="full")
    _, statistics = call.run(observe=Observe(logsumexp=True))
    scores = call.query @ call.key.mT / call.query.shape[-1] ** 0.5 + call.bias
    expected = scores.masked_fill(~call.allowed, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(statistics.logsumexp, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_statistics_are_float32_or_wider_and_without_gradient(dtype: torch.dtype) -> None:
    call = make_call(SHAPES[0]).to(dtype).leaves()
    output, statistics = call.run(observe=Observe(**EVERYTHING))
    assert output.dtype == dtype
    assert output.requires_grad
    floats = ["weights", "rows", "entropy", "logsumexp", "received", "max", "position", "distance", "offsets"]
    for statistic in (*(getattr(statistics, name) for name in floats), statistics.top.weights):
        assert statistic.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert not statistic.requires_grad


def test_what_is_not_asked_for_is_none() -> None:
    _, statistics = make_call().run(observe=Observe(entropy=True))
    assert {name for name, value in vars(statistics).items() if value is not None} == {"entropy"}
