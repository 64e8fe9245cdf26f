"""Dropout is what torch's is, by fewer random numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard.nn import Dropout


@given(p=st.floats(0.0, 1.0), size=st.lists(st.integers(0, 7), max_size=3), seed=st.integers(0, 99))
def test_what_is_kept_is_scaled_and_the_gradient_goes_the_same_way(p: float, size: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(size, dtype=torch.float64).add(9).requires_grad_()
    y = Dropout(p)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, gradient * x)
    kept = gradient != 0
    torch.testing.assert_close(gradient[kept] * (1 - p), torch.ones_like(gradient[kept]))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_each_place_of_a_drawn_number_drops_with_the_same_probability(p: float) -> None:
    torch.manual_seed(1)
    count = 40_000
    dropped = (Dropout(p)(torch.ones(count, 4)) == 0).double().mean(0)
    deviation = (p * (1 - p) / count) ** 0.5
    assert (dropped - p).abs().max() <= 4.5 * deviation + 1e-5
    pairs = (Dropout(p)(torch.ones(count, 4)) == 0).double()
    together = (pairs[:, 0] * pairs[:, 3]).mean()
    assert abs(together - p * p) <= 4.5 * (p * p * (1 - p * p) / count) ** 0.5 + 2e-5


def test_evaluation_and_p_of_0_change_nothing_and_p_of_1_gives_zeros() -> None:
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert Dropout(1.0)(x).abs().sum() == 0


def test_a_seed_gives_the_same_again_and_calls_differ() -> None:
    layer, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_it_keeps_the_dtype_and_any_strides(dtype: torch.dtype) -> None:
    x = torch.ones(5, 3, dtype=dtype).t()
    y = Dropout(0.5)(x)
    assert y.dtype == dtype
    assert set(y.float().unique().tolist()) <= {0.0, 2.0}


def test_it_compiles_whole() -> None:
    compiled = torch.compile(Dropout(0.5), fullgraph=True, backend="aot_eager")
    assert set(compiled(torch.ones(64)).unique().tolist()) <= {0.0, 2.0}


def test_under_vmap_examples_drop_alike_or_apart_as_is_asked() -> None:
    same, different = (torch.vmap(Dropout(0.5), randomness=how)(torch.ones(5, 64)) for how in ("same", "different"))
    assert (same == same[0]).all()
    assert not (different == different[0]).all()


def test_a_p_that_is_no_probability_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"from 0 to 1, got 1\.5"):
        Dropout(1.5)
