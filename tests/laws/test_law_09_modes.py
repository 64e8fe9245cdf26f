"""Law 9: the same in training with p = 0, evaluation, inference mode, compiled, exported and transformed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import regard
from drawn import HAS_TRITON, Call, calls, fixed_like, make_call, make_score
from regard import Additive, Observe, causal, padding

# torch's own forward-mode formulas are scripted, which torch 2.13 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@given(calls())
def test_training_equals_no_grad_equals_inference_mode(call: Call) -> None:
    training = call.leaves().run(dropout_p=0.0)
    with torch.no_grad():
        evaluation = call.run()
    with torch.inference_mode():
        inference = call.run()
    torch.testing.assert_close(evaluation, training.detach())
    torch.testing.assert_close(inference, training.detach())


SCORES = ["dot", "scaled_dot", "general", "general_heads", "additive", "additive_heads"]


def differentiable(score: str, mask: str) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    call = make_call((2, 1, 2, 3, 4, 2, 3), score, mask, "-inf", seed=3, impl="reference").to(torch.float64).leaves()

    def function(query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
        weight, bias = (None, *rest) if len(rest) == 1 else rest
        kept = bias.masked_fill(call.bias == -torch.inf, -torch.inf)
        return regard.attention(
            query, key, value, score=make_score(score, weight), mask=call.mask, bias=kept, impl="reference"
        )

    finite = call.bias.detach().nan_to_num(neginf=0.0).requires_grad_()
    return function, tuple(finite if tensor is call.bias else tensor for tensor in call.inputs)


@pytest.mark.parametrize("mask", ["none", "left"])
@pytest.mark.parametrize("score", SCORES)
def test_reference_passes_gradcheck_forward_backward_and_batched(score: str, mask: str) -> None:
    function, inputs = differentiable(score, mask)
    assert gradcheck(
        function,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,
    )


@pytest.mark.parametrize("score", SCORES)
def test_reference_passes_gradgradcheck(score: str) -> None:
    function, inputs = differentiable(score, "left")
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)


@settings(max_examples=10)
@given(calls(masks=["none", "keep", "left", "dense"], ranks=(4,)))
def test_vmap_equals_a_loop(call: Call) -> None:
    stacked = [torch.stack([x, x.flip(-1), 2 * x]) for x in call.inputs[:3]]

    def one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        score = make_score(call.score, call.weight)
        return regard.attention(query, key, value, score=score, mask=call.mask, bias=call.bias)

    looped = torch.stack([one(*inputs) for inputs in zip(*stacked, strict=True)])
    torch.testing.assert_close(torch.vmap(one)(*stacked), looped)


def test_vmap_over_the_mask_and_per_sample_gradients() -> None:
    call = make_call((2, 3, 1, 5, 7, 11, 13), "additive")
    keep = torch.rand(6, 2, 7, generator=torch.Generator().manual_seed(1)) > 0.5

    def one(query: Tensor, keep: Tensor) -> Tensor:
        mask = causal() & padding(keep)
        return regard.attention(query, call.key, call.value, score=Additive(call.weight), mask=mask).square().sum()

    queries = call.query.expand(6, *call.query.shape)
    gradients = torch.vmap(torch.func.grad(one))(queries, keep)
    looped = torch.stack([torch.func.grad(one)(*inputs) for inputs in zip(queries, keep, strict=True)])
    torch.testing.assert_close(gradients, looped)


class Both(torch.nn.Module):
    """Both kernels, structured masks, and statistics."""

    def forward(self, query: Tensor, key: Tensor, keep: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        mask = causal() & padding(keep)
        dot = regard.attention(query, key, key, mask=mask)
        additive, statistics = regard.attention(
            query, key, key, score=Additive(weight), mask=mask, observe=Observe(entropy=True, top=2)
        )
        return dot, additive, statistics.entropy


def arguments(B: int, Tq: int, Tk: int, junk: float = 0.0) -> tuple[Tensor, ...]:
    call = make_call((B, 3, 1, Tq, Tk, 5, 5), "additive", seed=B)
    keep = torch.rand(B, Tk, generator=torch.Generator().manual_seed(2)) > 0.3
    keep[0] = False
    return call.query, call.key.masked_fill(~keep[:, None, :, None], junk), keep, call.weight


def assert_same(function: Any, inputs: tuple[Tensor, ...]) -> None:
    for got, expected in zip(function(*inputs), Both()(*inputs), strict=True):
        torch.testing.assert_close(got, expected)


def test_compiled_whole_without_a_break() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Both(), fullgraph=True, backend="aot_eager")
    for junk in (0.0, torch.nan):
        assert_same(compiled, arguments(2, 5, 7, junk))


kernels = pytest.mark.parametrize(
    ("score", "impl"),
    [
        ("scaled_dot", "sdpa"),
        ("additive", "cpu"),
        pytest.param("additive", "triton", marks=pytest.mark.skipif(not HAS_TRITON, reason="no Triton to interpret")),
    ],
)


@kernels
def test_compiled_gradients(score: str, impl: str) -> None:
    torch._dynamo.reset()
    query, key, keep, weight = arguments(2, 5, 7, torch.nan)

    def loss(query: Tensor, key: Tensor) -> Tensor:
        mask = causal() & padding(keep)
        attended = regard.attention(query, key, key, score=make_score(score, weight), mask=mask, impl=impl)
        return attended.square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (loss, compiled):
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key)]
        results.append(torch.autograd.grad(function(*leaves), leaves))
    for got, expected in zip(*results, strict=True):
        assert expected.isfinite().all()
        torch.testing.assert_close(got, expected)


def test_exported_with_free_sizes() -> None:
    B, Tq, Tk = (torch.export.Dim(name) for name in ("B", "Tq", "Tk"))
    shapes = {"query": {0: B, 2: Tq}, "key": {0: B, 2: Tk}, "keep": {0: B, 1: Tk}, "weight": {}}
    program = torch.export.export(Both(), arguments(2, 5, 7), dynamic_shapes=shapes)
    for sizes in ((3, 11, 4), (2, 6, 6), (5, 2, 13)):
        assert_same(program.module(), arguments(*sizes, torch.nan))


class Named(torch.nn.Module):
    """One kernel, by name."""

    def __init__(self, score: str, impl: str) -> None:
        super().__init__()
        self.score, self.impl = score, impl

    def forward(self, query: Tensor, key: Tensor, keep: Tensor, weight: Tensor) -> Tensor:
        score = make_score(self.score, weight)
        return regard.attention(query, key, key, score=score, mask=padding(keep), impl=self.impl)


@kernels
def test_a_named_kernel_is_exported_with_free_sizes(score: str, impl: str) -> None:
    T = torch.export.Dim("T")
    shapes = {"query": {2: T}, "key": {2: T}, "keep": {1: T}, "weight": {}}
    module = Named(score, impl)
    program = torch.export.export(module, arguments(2, 5, 5), dynamic_shapes=shapes)
    for length in (3, 7):
        inputs = arguments(2, length, length, torch.nan)
        torch.testing.assert_close(program.module()(*inputs), module(*inputs))


def test_under_autocast_computes_as_sdpa_does() -> None:
    call = make_call((2, 3, 1, 5, 7, 11, 11))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = regard.attention(call.query, call.key.bfloat16(), call.value)
        theirs = torch.nn.functional.scaled_dot_product_attention(call.query, call.key, call.value)
        wide = regard.attention(call.query.double(), call.key.double(), call.value.double())
    assert output.dtype == theirs.dtype == torch.bfloat16
    assert wide.dtype == torch.float64
    torch.testing.assert_close(output, theirs)


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@pytest.mark.parametrize("score", ["scaled_dot", "general"])
def test_under_autocast_all_inputs_are_cast(impl: str, score: str) -> None:
    call = make_call(score=score, bias="full", mask="left", impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = call.run()
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), call.run(), atol=0.05, rtol=0.05)


def test_no_warning_of_ours_in_eager_mode() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed_like(make_call(mask="left", bias="-inf").run())
