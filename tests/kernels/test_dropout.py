"""Dropout from a counter: Numba's loop and torch's operators drop the same elements."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from regard._kernels.dropout import dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(0,), (1,), (4095,), (4096,), (3, 1367), (2, 3, 20011)])
def test_numba_and_torch_drop_the_same_elements(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    grad_output = torch.randn_like(x)
    found = []
    for by_numba in (True, False):
        torch.manual_seed(3)
        output = dropout(x, p, by_numba=by_numba)
        found.append((output, *torch.autograd.grad(output, x, grad_output), torch.get_rng_state()))
    assert all(map(torch.equal, *found))


def test_the_fraction_dropped_is_the_probability() -> None:
    torch.manual_seed(0)
    x = torch.ones(1_000_003)
    for by_numba in (True, False):
        output = dropout(x, 0.3, by_numba=by_numba)
        assert abs((output == 0).float().mean().item() - 0.3) < 0.002
        torch.testing.assert_close(output.max(), torch.tensor(1 / 0.7))


ORACLE = """
import sys, torch, regard
q = torch.randn(2, 3, 5, 7, requires_grad=True)
for score in (regard.ScaledDot(), regard.Additive(torch.ones(7))):
    output = regard.attention(q, q, q, score=score, mask=regard.causal(), dropout_p=0.5, impl="reference")
    output.sum().backward()
print("numba" in sys.modules)
"""


def test_the_oracle_drops_without_numba() -> None:
    found = subprocess.run([sys.executable, "-c", ORACLE], check=True, capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["False"]
