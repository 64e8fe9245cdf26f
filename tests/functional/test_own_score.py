"""A score that a user defines, by its formula alone, is served like those of the package."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import Tensor

from drawn import EVERYTHING, Call, calls, gradients, make_call
from regard import Observe, attention, explain_impl
from regard.errors import UnsupportedError
from regard.functional import Score, observed


class Cosine(Score):
    """score(q, k) = 8 q.k / (|q| |k|)."""

    def matrix(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = (torch.nn.functional.normalize(x, dim=-1) for x in (query, key))
        return 8 * query @ key.mT


def by_hand(call: Call) -> tuple[Tensor, Tensor]:
    """Output and weights, for any number of heads."""

    def each(x: Tensor) -> Tensor:
        """Repeat the key heads for the heads of the query."""
        return x if x.ndim == 2 else x.repeat_interleave(call.query.shape[-3] // x.shape[-3], -3)

    query, key, value = call.query, each(call.key), each(call.value)
    table = 8 * torch.einsum("...ie,...je->...ij", query, key) / query.norm(dim=-1)[..., None]
    table = table / key.norm(dim=-1)[..., None, :]
    if call.bias is not None:
        table = table + call.bias.masked_fill(call.bias == -torch.inf, 0.0)
    weights = torch.softmax(table.masked_fill(~call.allowed, -1e9), -1) * call.allowed
    return weights @ value, weights


@given(calls(scores=["dot"]))
def test_output_weights_and_gradients_are_those_of_the_formula(call: Call) -> None:
    call = call.to(torch.float64).leaves()
    output, statistics = attention(
        call.query, call.key, call.value, score=Cosine(), mask=call.mask, bias=call.bias, observe=Observe(weights=True)
    )
    expected, weights = by_hand(call)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(statistics.weights, weights.detach())
    towards = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(1))
    for found, due in zip(*(torch.autograd.grad(x, call.inputs, towards) for x in (output, expected)), strict=True):
        torch.testing.assert_close(found, due)


@given(calls(scores=["dot"]))
def test_statistics_come_with_and_without_the_output(call: Call) -> None:
    observe = Observe(**EVERYTHING)
    _, beside = call.run(score=Cosine(), impl="auto", observe=observe)
    alone = observed(call.query, call.key, observe, score=Cosine(), mask=call.mask, bias=call.bias)
    for name, value in vars(beside).items():
        torch.testing.assert_close(getattr(alone, name), value)
    assert torch.equal(beside.max, beside.top.weights[..., 0])


def test_what_is_masked_has_no_influence() -> None:
    call = make_call(score="dot", mask="keep")
    clean, clean_gradients = gradients(call, score=Cosine())
    hidden = ~call.mask.keeps[0][:, None, :, None]
    poisoned = make_call(score="dot", mask="keep")
    poisoned.key.masked_fill_(hidden, torch.nan)
    poisoned.value.masked_fill_(hidden, torch.inf)
    output, found = gradients(poisoned, score=Cosine())
    torch.testing.assert_close(output, clean)
    for a, b in zip(found, clean_gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_it_compiles_without_a_break() -> None:
    call = make_call(score="dot", mask="causal")
    whole = torch.compile(lambda: call.run(score=Cosine()), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(), call.run(score=Cosine()))


def test_why_no_kernel_serves_it_is_said() -> None:
    query = torch.zeros(2, 3)
    assert explain_impl(query, query, query, score=Cosine()).splitlines() == [
        "auto takes reference: the plain formula, which builds the matrix of scores",
        "not sdpa: it computes dot products; Cosine is not one",
        "not cpu: it computes additive scores; Cosine is not one",
        "not triton: it computes additive scores; Cosine is not one",
    ]
    with pytest.raises(UnsupportedError, match="Cosine is not one"):
        attention(query, query, query, score=Cosine(), impl="sdpa")
