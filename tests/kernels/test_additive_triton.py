"""Triton's kernel of additive attention, run by Triton's interpreter on the CPU (tests/conftest.py asks for it)."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from drawn import EVERYTHING, LAYOUTS, MASKS, Call, fixed_like, gradients, make_call
from regard import Additive, Observe, attention, causal, padding, window
from regard._kernels import ops
from regard._kernels.statistics.request import StatisticsRequest
from regard.errors import UnsupportedError
from regard.functional import kernel_choice as choice

pytest.importorskip("triton", reason="Triton is not installed (it is a test dependency on Linux, x86-64)")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted only where there is no GPU")

SMALL, GROUPED, BLOCKS = (2, 1, 1, 5, 7, 3, 2), (1, 1, 2, 3, 5, 7, 2), (1, 1, 1, 37, 67, 5, 3)


def rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def compare(call: Call, factor: float = 4) -> None:
    """Output and gradients against float64, as in law 8; where the exact gradient is 0, in units of the largest one."""
    of_output = fixed_like(call.query[..., :1].expand(*call.query.shape[:-1], call.value.shape[-1]))
    exact = gradients(replace(call.to(torch.float64), impl="reference"), of_output)
    plain = gradients(replace(call, impl="reference"), of_output)
    ours = gradients(replace(call, impl="triton"), of_output)
    eps, slack = torch.finfo(call.query.dtype).eps, 8 if call.query.dtype == torch.float64 else 2
    largest = max(x.abs().max().item() for x in exact[1])
    for name, a, b, c in zip(["output", *"qkvwb"], *([x[0], *x[1]] for x in (ours, plain, exact)), strict=False):
        assert a.isfinite().all(), name
        free = eps * (largest if name != "output" else c.abs().max().item())
        assert rms(a - c) <= factor * rms(b - c) + slack * free, name


@pytest.mark.parametrize("mask", MASKS)
def test_all_masks(mask: str) -> None:
    compare(make_call(GROUPED if mask != "left" else SMALL, "additive", mask, "full"))


@pytest.mark.parametrize("bias", ["heads", "-inf"])
def test_biases_and_a_weight_for_each_head(bias: str) -> None:
    compare(make_call(GROUPED, "additive_heads", "causal", bias))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_layouts_and_dtypes(layout: str, dtype: torch.dtype) -> None:
    call = make_call(SMALL, "additive", "lengths", layout=layout)
    compare(call if dtype == torch.float32 else call.to(dtype))


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_ranks(rank: int) -> None:
    compare(make_call((1, 1, 1, 3, 5, 2, 3), "additive", "dense", "full", rank=rank))


@pytest.mark.parametrize("name", ["none", "causal", "window", "padded", "ahead"])
def test_several_blocks_of_queries_and_keys(name: str) -> None:
    masks = {
        "none": None,
        "causal": causal(),
        "window": window(9) & causal(),
        "padded": padding(lengths=[61]) & window(30),
        "ahead": causal(offset=-20) & padding(torch.arange(67)[None] >= 9),
    }
    compare(replace(make_call(BLOCKS, "additive", bias="full"), mask=masks[name]))


def test_values_wider_than_a_block() -> None:
    compare(make_call((1, 1, 1, 3, 17, 3, 300), "additive"))


EDGES = {
    "wide": lambda x: x * 1e3,
    "apart": lambda x: x + torch.where(torch.arange(x.shape[-2]) % 2 == 0, 1e3, -1e3)[:, None],
    "one huge feature": lambda x: x * torch.where(torch.arange(x.shape[-1]) == 2, 1e30, 1.0),
    "constant": lambda x: torch.full_like(x, 0.7),
    "denormal": lambda x: x * 1e-40,
    "largest": lambda x: x.sign() * torch.finfo(x.dtype).max,
    "near the limit": lambda x: x * 12,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edge", EDGES)
def test_any_finite_input(edge: str, dtype: torch.dtype) -> None:
    call = make_call(SMALL, "additive", mask="all", bias="full").to(dtype)
    compare(replace(call, query=EDGES[edge](call.query), key=EDGES[edge](call.key)))


@pytest.mark.parametrize("weight", [0.0, 1e-30, 1e5, 1e25])
def test_any_finite_weight(weight: float) -> None:
    """Where one key has all the weight, gradients are 0; ours are a rounding times w (see `triton.loops.pull`)."""
    call = make_call(SMALL, "additive")
    some = torch.arange(call.query.shape[-1]) % 2 == 0
    call = replace(call, weight=torch.where(some, call.weight * weight, call.weight), impl="triton")
    if weight < 1:
        compare(call)
    torch.testing.assert_close(call.run(), replace(call, impl="reference").run())
    size = call.weight.abs().max()
    for a, b in zip(gradients(call)[1], gradients(replace(call, impl="reference"))[1], strict=True):
        torch.testing.assert_close(a / size, b / size, atol=1e-6, rtol=1e-4)


def test_features_far_from_zero_that_cancel() -> None:
    call = make_call(SMALL, "additive")
    far = torch.linspace(-3e4, 3e4, call.query.shape[-1])
    compare(replace(call, query=call.query + far, key=call.key - far))


@pytest.mark.parametrize("shape", [GROUPED, BLOCKS])
def test_dropout_is_recomputed_in_backward(shape: tuple[int, ...]) -> None:
    """With the identity for values the output is the dropped weights, which give the factors that were drawn."""
    call = make_call(shape, "additive", mask="left", bias="full", impl="triton").leaves()
    keys = call.shape[-1]
    eye = torch.eye(keys).expand(*call.key.shape[:-2], keys, keys)
    seeded: dict[str, Any] = {"score": Additive(call.weight), "mask": call.mask, "bias": call.bias, "impl": "triton"}
    torch.manual_seed(3)
    dropped = attention(call.query, call.key, eye, dropout_p=0.4, **seeded).detach()
    _, seen = attention(call.query, call.key, eye, observe=Observe(weights=True), **seeded)
    factors = torch.where(seen.weights > 0, dropped / seen.weights, 0.0)
    kept = factors[call.allowed] > 0
    torch.testing.assert_close(factors[factors > 0], torch.full_like(factors[factors > 0], 1 / 0.6))
    if shape == BLOCKS:
        assert abs(kept.float().mean() - 0.6) < 4 * (0.6 * 0.4 / kept.numel()) ** 0.5
    torch.manual_seed(3)
    output = call.run(dropout_p=0.4)
    of_output = fixed_like(output)
    ours = torch.autograd.grad(output, call.inputs, of_output)
    scores = (call.query.unsqueeze(-2) + call.key.repeat_interleave(shape[2], 1).unsqueeze(-3)).tanh() @ call.weight
    weights = (scores + call.bias).masked_fill(~call.allowed, -1e30).softmax(-1).masked_fill(~call.allowed, 0.0)
    expected = (weights * factors) @ call.value.repeat_interleave(shape[2], 1)
    torch.testing.assert_close(output, expected)
    for a, b in zip(ours, torch.autograd.grad(expected, call.inputs, of_output), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_dropout_of_everything_and_other_seeds() -> None:
    call = make_call((2, 1, 1, 5, 7, 3, 7), "additive", impl="triton")
    call = replace(call, value=torch.eye(7).expand(call.value.shape))  # so that the output is the dropped weights
    assert not call.run(dropout_p=1.0).any()
    torch.manual_seed(0)
    first, second = call.run(dropout_p=0.5), call.run(dropout_p=0.5)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0] != 0, first[1] != 0)  # nor do examples share what they drop


def test_statistics_are_those_of_the_reference() -> None:
    call = make_call(GROUPED, "additive_heads", "causal", "full")
    received = fixed_like(call.query[..., 0])
    _, expected = replace(call, impl="reference").run(observe=Observe(**EVERYTHING))
    _, seen = replace(call, impl="triton").run(observe=Observe(**EVERYTHING))
    for name in EVERYTHING:
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name), msg=name)
    _, expected = replace(call, impl="reference").run(observe=Observe(received=received))
    _, seen = replace(call, impl="triton").run(observe=Observe(received=received))
    torch.testing.assert_close(seen.received, expected.received)


def test_statistics_come_in_blocks() -> None:
    from regard._kernels.triton import additive as triton

    call = make_call((2, 1, 1, 11, 7, 3, 2), "additive", "all")
    mask = (call.mask or regard.Mask()).parts(call.shape, torch.device("cpu"))
    inputs = triton.Inputs(call.query, call.key, call.value, call.weight, call.bias, mask)
    names = ["entropy", "logsumexp", "received", "rows", "weights", "position", "max", "distance", "top", "keys"]
    request = StatisticsRequest([*names, "offsets"], None, [0, -1], 3, [0, -2])
    pairs = zip(triton.statistics(inputs, request), triton.statistics(inputs, request, most=30), strict=True)
    for name, (whole, blocks) in zip(request.names, pairs, strict=True):
        torch.testing.assert_close(blocks, whole, msg=name)


@pytest.mark.parametrize("mask", ["none", "all"])
def test_operators_pass_opcheck(mask: str) -> None:
    call = make_call(SMALL, "additive", mask=mask, bias="full" if mask == "all" else "none")
    parts = (call.mask or regard.Mask()).parts(call.shape, torch.device("cpu"))
    leaves = [x.detach().requires_grad_() for x in (call.query, call.key, call.value, call.weight)]
    inputs = (*leaves, call.bias, *parts)
    torch.library.opcheck(ops.additive, (*inputs, torch.tensor(7), 0.25, False, "triton"))
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.statistics, (*inputs, list(EVERYTHING)[:1], None, [0], 3, [], "triton"), test_utils=tests)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_derivatives_it_lacks_name_the_reference() -> None:
    call = make_call(SMALL, "additive", impl="triton").leaves()
    (gradient,) = torch.autograd.grad(call.run().square().sum(), call.query, create_graph=True)
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        gradient.sum().backward()
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        torch.func.jvp(lambda q: replace(call, query=q).run(), (call.query,), (call.query,))


def test_what_it_cannot_serve_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    call = make_call(SMALL, "additive", impl="triton")
    with pytest.raises(UnsupportedError, match="ScaledDot is not one"):
        attention(call.query, call.query, call.query, impl="triton")
    monkeypatch.setattr(choice, "_HAS_TRITON", False)
    with pytest.raises(UnsupportedError, match=r"pip install triton"):
        call.run()
    monkeypatch.setattr(choice, "_INTERPRETS", False)
    with pytest.raises(UnsupportedError, match="the tensors are on cpu"):
        call.run()


def test_triton_comes_at_first_use() -> None:
    code = (
        "import sys, torch, regard; q = torch.ones(1, 1, 2, 3); s = regard.Additive(torch.ones(3));"
        "regard.attention(q, q, q, score=s); before = 'triton' in sys.modules;"
        "regard.attention(q, q, q, score=s, impl='triton'); print(before, 'triton' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["False", "True"]
