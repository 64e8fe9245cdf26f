"""The CPU's kernel of additive attention: as an operator, at the edges of its range, in threads, forks, memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from drawn import Call, fixed_like, gradients, make_call, make_score
from regard import Additive, Observe, attention, causal, padding, window
from regard._kernels import ops
from regard._kernels.cpu import additive as cpu
from regard._kernels.cpu.additive_statistics import statistics
from regard._kernels.cpu.prepared_inputs import prepare
from regard._kernels.dropout_mask import NO_DROPOUT
from regard._kernels.statistics.request import StatisticsRequest
from regard.errors import UnsupportedError

PACKED, DIRECT = (2, 3, 2, 9, 70, 11, 13), (5, 3, 1, 2, 31, 11, 13)


def compare(call: Call, factor: float = 4) -> None:
    """Output and gradients against float64, as in law 8; where the exact gradient is 0, in units of the largest one."""
    of_output = fixed_like(call.query[..., :1].expand(*call.query.shape[:-1], call.value.shape[-1]))
    exact = gradients(replace(call.to(torch.float64), impl="reference"), of_output)
    plain = gradients(replace(call, impl="reference"), of_output)
    ours = gradients(replace(call, impl="cpu"), of_output)
    eps, slack = torch.finfo(call.query.dtype).eps, 8 if call.query.dtype == torch.float64 else 2
    largest = max(x.abs().max().item() for x in exact[1])
    for name, a, b, c in zip(["output", *"qkvwb"], *([x[0], *x[1]] for x in (ours, plain, exact)), strict=False):
        assert a.isfinite().all(), name
        free = eps * (largest if name != "output" else c.abs().max().item())
        assert rms(a - c) <= factor * rms(b - c) + slack * free, name


def rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def tensors(shape: tuple[int, ...], **options: Any) -> tuple[Any, ...]:
    """Arguments of `regard::additive`."""
    call = make_call(shape, "additive", **options)
    mask = (call.mask or regard.Mask()).parts(call.shape, torch.device("cpu"))
    inputs = [x.detach().requires_grad_() for x in (call.query, call.key, call.value, call.weight)]
    return (*inputs, call.bias, *mask)


@pytest.mark.parametrize("shape", [PACKED, DIRECT])
@pytest.mark.parametrize("mask", ["none", "all", "causal"])
def test_operators_pass_opcheck(shape: tuple[int, ...], mask: str) -> None:
    inputs = tensors(shape, mask=mask, bias="full" if mask == "all" else "none")
    torch.library.opcheck(ops.additive, (*inputs, None, 0.0, False, "cpu"))
    torch.library.opcheck(ops.additive, (*inputs, torch.tensor(7), 0.25, False, "cpu"))
    output, _ = ops.additive(*inputs, None, 0.0, True, "cpu")
    assert all(x.is_contiguous() for x in (output, *torch.autograd.grad(output.sum(), inputs[:4])))
    names = ["entropy", "received", "rows", "top", "keys", "weights", "max", "position", "logsumexp"]
    names += ["distance", "offsets"]
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.statistics, (*inputs, names, None, [0], 3, [0, -2], "cpu"), test_utils=tests)


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
@pytest.mark.parametrize("shape", [PACKED, DIRECT])
@pytest.mark.parametrize("edge", EDGES)
def test_any_finite_input(edge: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    call = make_call(shape, "additive", mask="all", bias="full").to(dtype)
    compare(replace(call, query=EDGES[edge](call.query), key=EDGES[edge](call.key)))


@pytest.mark.parametrize("weight", [0.0, 1e-30, 1e25])
def test_any_finite_weight(weight: float) -> None:
    call = make_call(PACKED, "additive")
    some = torch.arange(call.query.shape[-1]) % 2 == 0
    compare(replace(call, weight=torch.where(some, call.weight * weight, call.weight)))


def test_features_far_from_zero_that_cancel() -> None:
    call = make_call(PACKED, "additive")
    far = torch.linspace(-3e4, 3e4, call.query.shape[-1])
    compare(replace(call, query=call.query + far, key=call.key - far))


@pytest.mark.parametrize("score", ["additive", "additive_heads"])
@pytest.mark.parametrize("mask", [window(9) & causal(), regard.Mask(), padding(lengths=[97, 150])], ids=str)
def test_long_rows_are_cut_into_blocks(mask: regard.Mask, score: str) -> None:
    call = make_call((2, 1, 2, 131, 150, 8, 5), score, bias="full")
    parts = mask.parts(call.shape, torch.device("cpu"))
    names = ["entropy", "received", "rows", "weights", "position", "top", "keys"]
    request = StatisticsRequest(names, None, [3, -1], 12, [])
    found = []
    for most in (2**20, 2**12):
        inputs = prepare(call.query, call.key, call.value, call.weight, call.bias, parts)._replace(most=most)
        assert (len(list(cpu.blocks(inputs))) > 1) == (most == 2**12)
        output, saved = cpu.forward(inputs, NO_DROPOUT, save=False)
        grads = cpu.backward(inputs, fixed_like(output), saved, call.bias, NO_DROPOUT)
        found.append([output, *grads, *statistics(inputs, request)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [PACKED, DIRECT])
def test_dropout_is_recomputed_in_backward(shape: tuple[int, ...]) -> None:
    """With the identity for values the output is the dropped weights, which give the factors that were drawn."""
    call = make_call(shape, "additive", mask="left", bias="full", impl="cpu").leaves()
    keys = call.shape[-1]
    eye = torch.eye(keys).expand(*call.key.shape[:-2], keys, keys)
    seeded: dict[str, Any] = {"score": Additive(call.weight), "mask": call.mask, "bias": call.bias, "impl": "cpu"}
    torch.manual_seed(3)
    dropped = attention(call.query, call.key, eye, dropout_p=0.4, **seeded).detach()
    _, seen = attention(call.query, call.key, eye, observe=Observe(weights=True), **seeded)
    factors = torch.where(seen.weights > 0, dropped / seen.weights, 0.0)
    kept = factors[call.allowed] > 0
    torch.testing.assert_close(factors[factors > 0], torch.full_like(factors[factors > 0], 1 / 0.6))
    assert abs(kept.float().mean() - 0.6) < 0.15
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


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_derivatives_it_lacks_name_the_reference() -> None:
    call = make_call(PACKED, "additive", impl="cpu").leaves()
    (gradient,) = torch.autograd.grad(call.run().square().sum(), call.query, create_graph=True)
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        gradient.sum().backward()
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        torch.func.jvp(lambda q: replace(call, query=q).run(), (call.query,), (call.query,))
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        torch.vmap(lambda q: replace(call, query=q).run())(call.query[None])
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        torch.func.grad(lambda q: replace(call, query=q).run().sum())(call.query)
    by_auto = torch.func.grad(lambda q: replace(call, query=q, impl="auto").run().square().sum())(call.query)
    (expected,) = torch.autograd.grad(call.run().square().sum(), call.query)
    torch.testing.assert_close(by_auto, expected)


def test_explain_impl_names_it() -> None:
    call = make_call(PACKED, "additive")
    text = regard.explain_impl(call.query, call.key, call.value, score=make_score("additive", call.weight))
    assert text.startswith("auto takes cpu")
    assert "not cpu: it computes additive scores; ScaledDot is not one" in regard.explain_impl(*[call.query] * 3)
    with pytest.raises(UnsupportedError, match="ScaledDot is not one"):
        attention(call.query, call.query, call.query, impl="cpu")


def test_the_same_bits_in_any_number_of_threads() -> None:
    call = make_call((2, 2, 1, 150, 150, 24, 16), "additive", mask="causal", impl="cpu")
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.append(gradients(call))
        finally:
            torch.set_num_threads(1)
    for output, of_inputs in found[1:]:
        assert torch.equal(output, found[0][0])
        assert all(torch.equal(a, b) for a, b in zip(of_inputs, found[0][1], strict=True))


def test_several_threads_at_once() -> None:
    """Each Python thread gets what it would get alone, also where the threads of torch are used by all of them."""
    calls = [make_call((2, 2, 1, 100, 120, 16, 16), "additive", seed=s, impl="cpu") for s in range(4)]
    expected = [gradients(call) for call in calls]
    found: dict[int, list[tuple[Tensor, list[Tensor]]]] = {}

    def work(k: int) -> None:
        torch.set_num_threads(2)
        found[k] = [gradients(calls[k]) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch.set_num_threads(1)
    for k, (output, of_inputs) in enumerate(expected):
        for again, of_again in found[k]:
            assert torch.equal(again, output)
            assert all(torch.equal(a, b) for a, b in zip(of_again, of_inputs, strict=True))


FORK = """
import os, sys, torch, regard
torch.manual_seed(0)
torch.set_num_threads(2)
q = torch.randn(2, 1, 200, 64)
def run():
    return regard.attention(q, q, q, score=regard.Additive(torch.ones(64)), impl="cpu")
expected = run()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    same = torch.equal(run(), expected)
    torch.set_num_threads(2)  # torch's own loops would hang here; ours keep to the calling thread
    from regard._kernels.cpu.prepared_inputs import prepare
    from regard._kernels.mask_parts import MaskParts
    inputs = prepare(q, q, q, torch.ones(64), None, MaskParts(-200, 200, None, None))
    os._exit(0 if same and inputs.packed is not None else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=120)


MEMORY = """
import resource, torch, regard
torch.set_num_threads(1)
T, H = 3000, 32
def run(T):
    inputs = [torch.randn(1, 1, T, H, requires_grad=True) for _ in range(3)]
    weight = torch.randn(H, requires_grad=True)
    output, seen = regard.attention(*inputs, score=regard.Additive(weight), impl="cpu",
                                    observe=regard.Observe(entropy=True, received=True, top=4))
    torch.autograd.grad(output, (*inputs, weight), torch.randn_like(output))
run(300)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(T)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_memory_is_linear() -> None:
    """The scores alone would be 36 MB, and the tensor that others build 1.15 GB."""
    grown = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True, timeout=300)
    assert int(grown.stdout) < 30 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
