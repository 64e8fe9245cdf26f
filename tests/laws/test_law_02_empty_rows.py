"""Law 2: a row that may attend to nothing gives 0, with zero gradients; the rest of the batch is untouched."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from drawn import EMPTY, SHAPES, Call, calls, fixed_like, gradients, make_call
from regard import Observe

SOMETIMES_EMPTY = ["causal", "keep", "lengths", "left", "dense", "heads", "nothing", "raw", "all"]


@given(calls(masks=SOMETIMES_EMPTY), st.sampled_from([0.0, 0.3]))
def test_empty_rows_are_zero_with_zero_statistics_and_gradients(call: Call, dropout_p: float) -> None:
    empty = ~call.allowed.any(-1)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        output, of_inputs = gradients(call, dropout_p=dropout_p)
    assert not output[empty].any()
    assert all(gradient.isfinite().all() for gradient in of_inputs)
    assert not of_inputs[0][empty].any()
    _, statistics = call.run(observe=Observe(weights=True, entropy=True, max=True, position=True, received=True, top=1))
    for statistic in (
        statistics.weights,
        statistics.entropy,
        statistics.max,
        statistics.position,
        statistics.top.weights,
    ):
        assert not statistic[empty].any()
    assert (statistics.top.keys[empty] == -1).all()
    assert statistics.received.isfinite().all()
    assert not statistics.weights[~call.allowed].any()


@given(calls(masks=["none"], biases=["none"], ranks=(4,), shapes=[s for s in SHAPES if s[0] > 1]))
def test_the_rest_of_the_batch_is_untouched(call: Call) -> None:
    keep = torch.ones(call.shape[0], call.shape[-1], dtype=torch.bool)
    keep[0] = False
    rest = replace(call, query=call.query[1:], key=call.key[1:], value=call.value[1:])
    weights = fixed_like(call.run())
    output, of_inputs = gradients(replace(call, mask=regard.padding(keep)), weights)
    alone, of_alone = gradients(rest, weights[1:])
    torch.testing.assert_close(output[1:], alone)
    assert not output[0].any()
    for batch, single in zip(of_inputs[:3], of_alone[:3], strict=True):
        torch.testing.assert_close(batch[1:], single)
        assert not batch[0].any()
    for batch, single in zip(of_inputs[3:], of_alone[3:], strict=True):
        torch.testing.assert_close(batch, single)


@given(calls(shapes=EMPTY, masks=["none", "causal", "keep", "left", "dense", "raw"], ranks=(4,)))
def test_without_queries_or_keys(call: Call) -> None:
    output, of_inputs = gradients(call)
    assert output.shape == (*call.query.shape[:-1], call.value.shape[-1])
    assert not output.any() or call.shape[-1]
    assert all(gradient.isfinite().all() for gradient in of_inputs)
    output, statistics = call.run(
        observe=Observe(weights=True, entropy=True, max=True, position=True, received=True, top=2)
    )
    assert statistics.weights.shape == call.shape
    assert statistics.max.shape == statistics.entropy.shape == statistics.position.shape == call.shape[:-1]
    assert statistics.received.shape == (*call.shape[:-2], call.shape[-1])
    assert statistics.top.keys.shape == (*call.shape[:-1], min(2, call.shape[-1]))


def test_a_bias_of_minus_infinity_masks() -> None:
    call = make_call(bias="full")
    hidden = torch.rand(call.shape, generator=torch.Generator().manual_seed(3)) > 0.5
    hidden[0, :, 0] = True
    for impl in ("reference", "sdpa"):
        by_bias, of_bias = gradients(replace(call, bias=call.bias.masked_fill(hidden, -torch.inf), impl=impl))
        by_mask, of_mask = gradients(replace(call, mask=~hidden, impl=impl))
        torch.testing.assert_close(by_bias, by_mask)
        assert not by_bias[0, :, 0].any()
        for a, b in zip(of_bias, of_mask, strict=True):
            torch.testing.assert_close(a, b)
        assert not of_mask[-1][hidden].any()
