"""Law 7: permuting keys, values and mask together changes nothing; rows of weights sum to 1, or 0 (law 2)."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given

import regard
from drawn import Call, calls
from regard import Observe


@given(calls())
def test_permuting_the_keys(call: Call) -> None:
    order = torch.randperm(call.shape[-1], generator=torch.Generator().manual_seed(3))
    permuted = replace(
        call,
        key=call.key[..., order, :],
        value=call.value[..., order, :],
        mask=regard.dense(call.allowed[..., order]),
        bias=None if call.bias is None else call.bias.expand(call.shape)[..., order],
    )
    observe = Observe(weights=True, received=True, entropy=True)
    output, statistics = call.run(observe=observe)
    again, permuted_statistics = permuted.run(observe=observe)
    torch.testing.assert_close(again, output)
    torch.testing.assert_close(permuted_statistics.weights, statistics.weights[..., order])
    torch.testing.assert_close(permuted_statistics.received, statistics.received[..., order])
    torch.testing.assert_close(permuted_statistics.entropy, statistics.entropy)


@given(calls())
def test_rows_of_weights_sum_to_one_or_zero(call: Call) -> None:
    _, statistics = call.run(observe=Observe(weights=True))
    torch.testing.assert_close(statistics.weights.sum(-1), call.allowed.any(-1).float())
    assert (statistics.weights >= 0).all()


@given(calls())
def test_grouped_heads_equal_repeated_heads(call: Call) -> None:
    if call.key.ndim == 2:
        return
    group = call.query.shape[-3] // call.key.shape[-3]
    repeated = replace(call, key=call.key.repeat_interleave(group, -3), value=call.value.repeat_interleave(group, -3))
    torch.testing.assert_close(repeated.run(), call.run())
