"""Additive attention on a GPU, against float64 on the CPU; what the interpreter cannot show of Triton's kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import regard
from drawn import fixed_like, gradients, make_call
from regard import Observe, causal, padding, window

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SHAPES = [(2, 1, 2, 37, 67, 19, 13), (1, 1, 1, 1, 5, 3, 2), (1, 2, 1, 300, 300, 128, 130)]
MASKS = {"none": None, "window": window(90) & causal(), "padding": padding(lengths=[61, 5])}


def rms(tensor: torch.Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients(shape: tuple[int, ...], mask: str, dtype: torch.dtype) -> None:
    shape = (2, *shape[1:]) if mask == "padding" else shape
    call = replace(make_call(shape, "additive_heads", bias="full"), mask=MASKS[mask], impl="reference").to(dtype)
    of_output = fixed_like(call.run())
    exact, of_exact = gradients(call.to(torch.float64), of_output)
    plain, of_plain = gradients(call, of_output)
    names = ("query", "key", "value", "weight", "bias")
    there: dict[str, Any] = {name: getattr(call, name).cuda() for name in names}
    if mask == "padding":
        there["mask"] = padding(lengths=torch.tensor([61, 5]).cuda())
    ours, of_ours = gradients(replace(call, **there, impl="auto"), of_output.cuda())
    for a, b, c in zip([ours, *of_ours], [plain, *of_plain], [exact, *of_exact], strict=True):
        free = 2 * torch.finfo(dtype).eps * max(x.abs().max().item() for x in of_exact)
        assert rms(a.cpu().double() - c) <= 4 * rms(b.double() - c) + free


def test_statistics() -> None:
    call = make_call(SHAPES[0], "additive", "causal")
    there = replace(call, **{name: getattr(call, name).cuda() for name in ("query", "key", "value", "weight")})
    what = Observe(entropy=True, logsumexp=True, received=True, max=True)
    _, expected = replace(call, impl="reference").run(observe=what)
    _, seen = replace(there, impl="triton").run(observe=what)
    for name in ("entropy", "logsumexp", "received", "max"):
        torch.testing.assert_close(getattr(seen, name).cpu(), getattr(expected, name), msg=name)


def test_auto_takes_it() -> None:
    query = torch.zeros(2, 3, device="cuda")
    assert regard.explain_impl(query, query, query, score=regard.Additive(query[0])).startswith("auto takes triton")
