"""Law 3: what is masked has no influence, though it be NaN or inf; nor on gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drawn import MASKS, SHAPES, Call, calls, fixed_like, gradients, make_call
from regard.functional import nonfinite

JUNK = [torch.nan, torch.inf, -torch.inf, 3e38]
MASKING = [name for name in MASKS if name != "none"]


@contextmanager
def looking(allowed: bool) -> Iterator[None]:
    """Eager mode on the CPU looks at values first; without that it takes the path that compiling and a GPU take."""
    if allowed:
        yield
    else:
        with mock.patch.object(nonfinite, "is_eager_on_cpu", return_value=False):
            yield


def poison(call: Call, keys: Tensor, junk: float) -> Call:
    """Junk into these keys and values, (..., Hkv, Tk) bool."""
    return replace(
        call,
        key=call.key.masked_fill(keys[..., None], junk),
        value=call.value.masked_fill(keys[..., None], junk),
    )


def per_key_head(call: Call, per_head: Tensor) -> Tensor:
    """(..., Hq, T) bool to (..., Hkv, T): whether any of the query heads of a key head is marked."""
    if call.key.ndim == 2:
        return per_head
    return per_head.unflatten(-2, (call.key.shape[-3], -1)).any(-2)


@given(calls(masks=MASKING), st.sampled_from(JUNK), st.booleans())
def test_keys_that_nobody_may_see(call: Call, junk: float, look: bool) -> None:
    unseen = ~per_key_head(call, call.allowed.any(-2))
    with looking(look):
        clean, of_clean = gradients(call)
        output, of_poisoned = gradients(poison(call, unseen, junk))
        with torch.no_grad():  # where no gradient is wanted, the output alone is looked at
            alone = poison(call, unseen, junk).run()
    torch.testing.assert_close(output, clean)
    torch.testing.assert_close(alone, clean)
    for a, b in zip(of_poisoned, of_clean, strict=True):
        torch.testing.assert_close(a, b)
    assert not of_poisoned[1][unseen].any()
    assert not of_poisoned[2][unseen].any()


@given(
    calls(masks=["causal", "window", "left", "dense", "heads", "raw", "all"]), st.sampled_from(JUNK[:3]), st.booleans()
)
def test_keys_that_some_may_see_spoil_only_those(call: Call, junk: float, look: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    poisoned = torch.rand(call.key.shape[:-1], generator=generator) > 0.7
    marked = poisoned
    if call.key.ndim > 2:
        marked = poisoned.repeat_interleave(call.query.shape[-3] // call.key.shape[-3], -2)
    spoiled = (call.allowed & marked[..., None, :]).any(-1)
    of_output = fixed_like(call.run()).masked_fill(spoiled[..., None], 0.0)
    with looking(look):
        clean, of_clean = gradients(call, of_output)
        output, of_poisoned = gradients(poison(call, poisoned, junk), of_output)
        with torch.no_grad():
            alone = poison(call, poisoned, junk).run()
    torch.testing.assert_close(output[~spoiled], clean[~spoiled])
    torch.testing.assert_close(alone[~spoiled], clean[~spoiled])
    if not (look and call.allowed.all()):  # a mask that hides nothing is none, and then 0 * inf is torch's affair
        assert output[spoiled].isnan().all()
        for a, b in zip(of_poisoned, of_clean, strict=True):
            torch.testing.assert_close(a, b)


@given(calls(masks=MASKING, ranks=(4,)), st.sampled_from(JUNK[:3]), st.booleans())
def test_a_query_spoils_only_its_own_row(call: Call, junk: float, look: bool) -> None:
    bad = torch.rand(call.query.shape[:-1], generator=torch.Generator().manual_seed(5)) > 0.6
    empty = ~call.allowed.any(-1)
    if look and call.allowed.all():
        return
    of_output = fixed_like(call.run()).masked_fill(bad[..., None], 0.0)
    with looking(look):
        clean, of_clean = gradients(call, of_output)
        poisoned = replace(call, query=call.query.masked_fill(bad[..., None], junk))
        output, of_poisoned = gradients(poisoned, of_output)
    torch.testing.assert_close(output[~bad], clean[~bad])
    assert output[bad & ~empty].isnan().all()
    assert not output[empty].any()
    for a, b in zip(of_poisoned, of_clean, strict=True):
        torch.testing.assert_close(a, b)


@given(calls(masks=MASKING, biases=["full"]), st.sampled_from(JUNK), st.booleans())
def test_a_bias_in_masked_places(call: Call, junk: float, look: bool) -> None:
    with looking(look):
        clean, of_clean = gradients(call)
        output, of_poisoned = gradients(replace(call, bias=call.bias.masked_fill(~call.allowed, junk)))
    torch.testing.assert_close(output, clean)
    for a, b in zip(of_poisoned, of_clean, strict=True):
        torch.testing.assert_close(a, b)
    assert not of_poisoned[-1][~call.allowed].any()


@pytest.mark.parametrize("look", [True, False])
@pytest.mark.parametrize("mask", ["keep", "lengths", "from_start", "heads", "nothing"])
@pytest.mark.parametrize(("score", "impl"), [("scaled_dot", "sdpa"), ("dot", "reference"), ("additive", "reference")])
def test_what_memory_held_before(score: str, impl: str, mask: str, look: bool) -> None:
    """Finite, but so large that products overflow: keys that no query sees, queries that see no key."""
    call = make_call((2, 3, 2, 4, 7, 5, 5), score, mask, impl=impl)
    unseen, empty = ~per_key_head(call, call.allowed.any(-2)), ~call.allowed.any(-1)
    with looking(look):
        clean, of_clean = gradients(call, 10 * fixed_like(call.run()))
        poisoned = poison(replace(call, query=call.query.masked_fill(empty[..., None], 3e38)), unseen, 3e38)
        output, of_poisoned = gradients(poisoned, 10 * fixed_like(clean))
    torch.testing.assert_close(output, clean)
    for a, b in zip(of_poisoned, of_clean, strict=True):
        torch.testing.assert_close(a, b)


@given(calls(masks=MASKING))
def test_looking_first_changes_nothing(call: Call) -> None:
    looked, of_looked = gradients(call)
    with looking(False):
        blind, of_blind = gradients(call)
    torch.testing.assert_close(looked, blind)
    for a, b in zip(of_looked, of_blind, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_what_is_attended_and_not_finite_is_seen(impl: str) -> None:
    call = make_call(SHAPES[0], mask="causal", impl=impl)
    call.value[0, 0, 0, 0] = torch.nan
    output = call.run()
    assert output[0, 0].isnan().any(-1).all()
    assert output[0, 1:].isfinite().all()
    assert output[1].isfinite().all()


@pytest.mark.parametrize("junk", JUNK[:3])
@pytest.mark.parametrize("mask", ["causal", "window", "left"])
def test_across_the_blocks_of_a_fused_kernel(mask: str, junk: float) -> None:
    call = make_call((2, 2, 1, 530, 530, 16, 16), mask=mask)
    allowed = call.allowed
    at = torch.zeros(call.key.shape[:-1], dtype=torch.bool)
    at[..., [3, 300, 529]] = True
    at &= allowed[..., 0, :].logical_not() if mask == "left" else True
    clean, poisoned = call.run(), poison(call, at, junk).run()
    touched = (allowed & at[..., None, :]).any(-1)
    assert at.any()
    assert not touched.all()
    torch.testing.assert_close(poisoned[~touched], clean[~touched])
