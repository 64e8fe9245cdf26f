"""Law 8: every impl is within 2 x of the error that plain PyTorch in the same dtype makes against a float64 oracle;
the fused additive ones, which subtract from the sum of w, within 4 x.

The error is the root of the mean square, over the output or one gradient; one rounding of the largest number is free.
The oracle, the reference in float64, is held against loops over single numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drawn import Call, calls, fixed_like, gradients, make_call

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def plain(call: Call) -> Tensor:
    """The formula as one would write it, in the dtype of the inputs from beginning to end."""
    query, key, value = call.query, call.key, call.value
    if query.ndim > 2:
        group = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    if call.score.startswith("general"):
        scores = query @ call.weight @ key.mT
    elif call.score.startswith("additive"):
        hidden = torch.tanh(query[..., :, None, :] + key[..., None, :, :])
        weight = call.weight if call.weight.ndim == 1 else call.weight[:, None, None, :]
        scores = (hidden * weight).sum(-1)
    else:
        scale = {"dot": 1.0, "scaled_dot": 1 / math.sqrt(query.shape[-1]), "scale": 0.3}[call.score]
        scores = query @ key.mT * scale
    allowed = call.allowed
    empty = ~allowed.any(-1, keepdim=True)
    if call.bias is not None:
        scores = scores + call.bias
    scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(empty, 0.0)
    return torch.softmax(scores, -1).masked_fill(empty, 0.0) @ value


def plain_gradients(call: Call, of_output: Tensor) -> tuple[Tensor, list[Tensor]]:
    call = call.leaves()
    output = plain(call)
    return output.detach(), list(torch.autograd.grad(output, call.inputs, of_output.to(output.dtype)))


def rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


@given(calls(), st.sampled_from(DTYPES))
def test_within_twice_the_error_of_plain_pytorch(call: Call, dtype: torch.dtype) -> None:
    call = call.to(dtype)
    of_output = fixed_like(plain(call))
    wide = call.to(torch.float64)
    exact, of_exact = gradients(replace(wide, impl="reference"), of_output)
    ours, of_ours = gradients(call, of_output)
    theirs, of_theirs = plain_gradients(call, of_output)
    assert ours.dtype == dtype
    factor = 4 if call.impl in ("cpu", "triton") else 2
    for name, a, b, c in zip(
        ["output", *(f"gradient {k}" for k in range(5))],
        [ours, *of_ours],
        [theirs, *of_theirs],
        [exact, *of_exact],
        strict=False,
    ):
        free = torch.finfo(dtype).eps * c.abs().max().item()
        if call.impl in ("sdpa", "triton") and call.shape[-1] == 1:  # the gradient of its score is 0, or a rounding
            free = torch.finfo(dtype).eps * max(x.abs().max().item() for x in of_exact)
        assert rms(a.double() - c) <= factor * rms(b.double() - c) + free, name


@given(calls())
def test_float64_equals_the_oracle(call: Call) -> None:
    call = call.to(torch.float64)
    output, of_inputs = gradients(call)
    exact, of_exact = gradients(replace(call, impl="reference"))
    torch.testing.assert_close(output, exact, atol=1e-12, rtol=1e-10)
    for a, b in zip(of_inputs, of_exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(
    "score", ["dot", "scaled_dot", "scale", "general", "general_heads", "additive", "additive_heads"]
)
@pytest.mark.parametrize("bias", ["none", "full"])
def test_the_oracle_equals_loops(score: str, bias: str) -> None:
    call = make_call((2, 1, 3, 3, 5, 2, 2), score, "left", bias, impl="reference").to(torch.float64)
    output, allowed = call.run(), call.allowed
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(3)).tolist():
        numbers = {}
        for j in range(5):
            q, k = call.query[b, h, i].tolist(), call.key[b, 0, j].tolist()
            weight = None if call.weight is None else (call.weight[h] if "heads" in score else call.weight).tolist()
            if score.startswith("additive"):
                s = sum(w * math.tanh(x + y) for w, x, y in zip(weight, q, k, strict=True))
            elif score.startswith("general"):
                s = sum(q[e] * weight[e][f] * k[f] for e in range(len(q)) for f in range(len(k)))
            else:
                scale = {"dot": 1.0, "scaled_dot": len(q) ** -0.5, "scale": 0.3}[score]
                s = scale * sum(x * y for x, y in zip(q, k, strict=True))
            if allowed[b, h, i, j]:
                numbers[j] = math.exp(s + (0.0 if call.bias is None else call.bias[b, h, i, j].item()))
        total = sum(numbers.values())
        expected = [sum(p / total * call.value[b, 0, j, e].item() for j, p in numbers.items()) for e in range(2)]
        assert output[b, h, i].tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_scores_of_any_finite_size(impl: str) -> None:
    """Large scores neither overflow nor lose the largest key."""
    query = torch.full((1, 1, 1, 4), 1e4)
    key = torch.stack([torch.full((4,), s) for s in (1e4, -1e4, 9.9e3)])[None, None]
    value = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])[None, None]
    call = Call(query, key, value, "dot", None, None, None, impl)
    assert call.run().tolist() == [[[[1.0, 2, 3, 4]]]]
