"""Statistics of dot products in blocks: the answers of the matrix, in memory that grows with Tq + Tk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from drawn import BIASES, EVERYTHING, MASKS, SHAPES, Call, calls, fixed_like, gradients, make_call, make_score
from regard import Observe
from regard._kernels.mask_parts import MaskParts
from regard._kernels.statistics import dot_blocks
from regard.functional import observed
from regard.functional.observe import request_of

DOTS = ["dot", "scaled_dot", "scale", "general", "general_heads"]
ASKED = {name: value for name, value in EVERYTHING.items() if name != "weights"}
LONG = (1, 2, 1, 3001, 3001, 3, 3)
BLOCKS = [(1, 1), (40, 1), (1, 3), (200, 1), (1000, 1)]  # scores of a block, and its least rows


@pytest.fixture(scope="module", autouse=True)
def matrix_is_not_used() -> Iterator[None]:
    """The matrix of what the blocks are to answer would show nothing."""
    with patch("regard.functional.observed.dot_blocks.fits_one_block", lambda *_: False):
        yield


def in_blocks(call: Call, sizes: tuple[int, int], what: Observe, **more: Any) -> Any:
    with patch.multiple(dot_blocks, _SCORES=sizes[0], _ROWS=sizes[1]):
        return call.run(impl="sdpa", observe=what, **more)


def observed_in_blocks(call: Call, sizes: tuple[int, int]) -> Any:
    score = make_score(call.score, call.weight)
    with patch.multiple(dot_blocks, _SCORES=sizes[0], _ROWS=sizes[1]):
        return observed(call.query, call.key, Observe(**ASKED), score=score, mask=call.mask, bias=call.bias)


def assert_same(found: Any, expected: Any, **tolerance: Any) -> None:
    for name, value in vars(expected).items():
        if name == "top" and value is not None:
            torch.testing.assert_close(found.top.weights, value.weights, equal_nan=True, **tolerance)
        else:
            torch.testing.assert_close(getattr(found, name), value, equal_nan=True, **tolerance)


def assert_top(call: Call, top: Any) -> None:
    """The keys are those of the weights, and as many as may be seen."""
    _, whole = call.run(impl="reference", observe=Observe(weights=True))
    seen, keys = top.keys >= 0, top.keys.clamp(min=0)
    assert torch.equal(seen.sum(-1), call.allowed.sum(-1).clamp(max=3))
    torch.testing.assert_close(whole.weights.gather(-1, keys)[seen], top.weights[seen])
    assert call.allowed.gather(-1, keys)[seen].all()


@given(
    calls(scores=DOTS),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(BLOCKS),
    st.sampled_from([*ASKED, "weighed", "all", "all"]),
)
def test_blocks_answer_as_the_matrix(call: Call, dtype: torch.dtype, sizes: tuple[int, int], name: str) -> None:
    call = call.to(dtype)
    what = {"all": ASKED, "weighed": {"received": fixed_like(call.query[..., 0])}}.get(name) or {name: ASKED[name]}
    _, found = in_blocks(call, sizes, Observe(**what))
    _, expected = call.to(torch.float64).run(impl="reference", observe=Observe(**what))
    assert_same(found, expected, check_dtype=False, **({} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}))
    assert found.weights is None
    if found.top is not None:
        assert_top(call, found.top)


@given(calls(scores=DOTS), st.sampled_from(BLOCKS))
def test_observed_tells_the_same(call: Call, sizes: tuple[int, int]) -> None:
    _, expected = in_blocks(call, sizes, Observe(**ASKED))
    assert_same(observed_in_blocks(call, sizes), expected)


@given(calls(scores=DOTS), st.sampled_from(BLOCKS), st.sampled_from([0.0, 0.4]))
def test_law_1_blocks_leave_the_output_as_it_is(call: Call, sizes: tuple[int, int], dropout_p: float) -> None:
    with patch.multiple(dot_blocks, _SCORES=sizes[0], _ROWS=sizes[1]):
        torch.manual_seed(1)
        plain = gradients(call, dropout_p=dropout_p, impl="sdpa")
        random_state = torch.get_rng_state()
        torch.manual_seed(1)
        seen = gradients(call, dropout_p=dropout_p, impl="sdpa", observe=Observe(**ASKED))
    assert torch.equal(plain[0], seen[0])
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(plain[1], seen[1], strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("mask", MASKS)
def test_dtypes(dtype: torch.dtype, mask: str) -> None:
    for bias in sorted(set(BIASES)):
        call = make_call(SHAPES[2], mask=mask, bias=bias).to(dtype).leaves()
        _, found = in_blocks(call, (1, 1), Observe(**ASKED))
        _, expected = call.run(impl="reference", observe=Observe(**ASKED))
        assert_same(found, expected)
        assert_top(call, found.top)
        assert not any(isinstance(x, Tensor) and x.requires_grad for x in vars(found).values())


@pytest.mark.parametrize("mask", MASKS)
def test_law_3_what_is_masked_is_not_felt(mask: str) -> None:
    call = make_call(SHAPES[7], mask=mask)
    unseen = ~call.allowed.any(-2)
    _, expected = in_blocks(call, (40, 1), Observe(**ASKED))
    for fault in (torch.nan, torch.inf):
        call.key[unseen] = fault
        call.value[unseen] = fault
        _, found = in_blocks(call, (40, 1), Observe(**ASKED))
        assert_same(found, expected)


def test_a_fault_is_seen_where_it_is_attended_and_nowhere_else() -> None:
    call = make_call(SHAPES[7], mask="from_start")
    _, expected = in_blocks(call, (40, 1), Observe(entropy=True, logsumexp=True, max=True))
    call.key[:, :, 11] = torch.nan
    _, found = in_blocks(call, (40, 1), Observe(entropy=True, logsumexp=True, max=True))
    for name in ("entropy", "logsumexp", "max"):
        assert getattr(found, name)[..., 11:].isnan().all()
        assert torch.equal(getattr(found, name)[..., :11], getattr(expected, name)[..., :11])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fault", [torch.nan, -torch.nan, torch.inf])
def test_a_fault_is_told_as_the_matrix_tells_it(dtype: torch.dtype, fault: float) -> None:
    for mask, shape in itertools.product(MASKS, (SHAPES[2], SHAPES[7])):
        call = make_call(shape, mask=mask).to(dtype)
        call.query[0, 0, 2] = 1e30 if fault == torch.inf else fault
        call.key[-1, -1, 3] = fault
        _, expected = call.run(impl="reference", observe=Observe(**ASKED))
        for found in (in_blocks(call, (40, 1), Observe(**ASKED))[1], observed_in_blocks(call, (40, 1))):
            assert_same(found, expected)
            assert torch.equal(found.top.keys < 0, expected.top.keys < 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_infinite_query_weighs_nan(dtype: torch.dtype, sign: int) -> None:
    query, key = (torch.randn(1, 2, n, 5, dtype=dtype) for n in (13, 11))
    key[..., 2] = key[..., 2].abs()  # all scores of the query are infinite, of one sign
    query[0, 1, 3, 2] = sign * torch.inf
    _, seen = regard.attention(query, key, key, observe=Observe(**ASKED), impl="sdpa")
    for name in ("entropy", "max", "logsumexp", "position", "distance"):
        assert getattr(seen, name).isnan().nonzero().tolist() == [[0, 1, 3]]
    assert seen.received.isnan().all(-1).tolist() == [[False, True]]
    assert seen.top.weights.isnan().any(-1).nonzero().tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", [regard.causal(offset=-3), regard.window(2, offset=0), regard.window(3, offset=9)])
def test_queries_before_and_behind_all_keys(dtype: torch.dtype, mask: regard.Mask) -> None:
    for sizes in BLOCKS:
        call = make_call((2, 3, 1, 17, 5, 7, 7)).to(dtype)
        _, found = in_blocks(call, sizes, Observe(**ASKED), mask=mask)
        _, expected = call.run(impl="reference", observe=Observe(**ASKED), mask=mask)
        assert_same(found, expected)


def test_scores_whose_weights_are_nothing_have_an_order() -> None:
    call = make_call((1, 1, 1, 1, 101, 1, 1))
    call.query.fill_(1.0)
    call.key.copy_(torch.linspace(-1e4, 0, 101).roll(50)[:, None])
    _, found = in_blocks(call, (1, 1), Observe(top=61), score=regard.Dot())
    assert torch.equal(found.top.keys.flatten(), call.key.flatten().argsort(descending=True)[:61])


@pytest.mark.parametrize("mask", [None, regard.causal()])
def test_the_largest_weights_of_scores_below_zero(mask: regard.Mask | None) -> None:
    torch.manual_seed(0)
    query, key = -4 * torch.rand(2, 211, 5), 0.1 + torch.rand(2, 211, 5)
    documents = regard.dense(torch.arange(211)[:, None] // 37 == torch.arange(211) // 37)
    for hidden in (mask, documents if mask is None else documents & mask):
        found = observed(query, key, Observe(top=3, entropy=True, max=True), mask=hidden)
        weights = observed(query, key, Observe(weights=True), mask=hidden).weights
        expected = weights.topk(3).values
        torch.testing.assert_close(found.top.weights, expected)
        visible = found.top.keys >= 0
        torch.testing.assert_close(weights.gather(-1, found.top.keys.clamp(min=0))[visible], expected[visible])
        torch.testing.assert_close(found.max, expected[..., 0])
        torch.testing.assert_close(found.entropy, torch.special.entr(weights).sum(-1))


def test_large_scores_have_an_entropy() -> None:
    call = make_call(SHAPES[7], score="dot")
    call.query.mul_(1e3)
    _, found = in_blocks(call, (40, 1), Observe(entropy=True, logsumexp=True))
    _, expected = call.to(torch.float64).run(impl="reference", observe=Observe(entropy=True, logsumexp=True))
    torch.testing.assert_close(found.entropy.double(), expected.entropy, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.logsumexp.double(), expected.logsumexp, rtol=1e-6, atol=0)
    assert (found.entropy >= 0).all()


@pytest.mark.parametrize("mask", [None, regard.causal()], ids=["none", "causal"])
@pytest.mark.parametrize("shape", [(1, 2, 1, 701, 709, 3, 3), (7, 11, 1, 8, 1009, 3, 3)])
def test_any_number_of_threads(mask: regard.Mask | None, shape: tuple[int, ...]) -> None:
    call = make_call(shape)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.append(call.run(impl="sdpa", mask=mask, observe=Observe(**ASKED))[1])
        finally:
            torch.set_num_threads(1)
    for other in found[1:]:
        assert_same(other, found[0])


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return made


@pytest.mark.parametrize(
    "mask", [None, regard.causal(), regard.padding(lengths=[2999])], ids=["none", "causal", "padding"]
)
@pytest.mark.parametrize("weights", [False, True])
def test_memory_is_linear_unless_the_matrix_is_asked_for(mask: regard.Mask | None, weights: bool) -> None:
    call = make_call(LONG)
    heads, queries, keys = call.shape[1:]
    with Largest() as largest:
        call.run(impl="sdpa", mask=mask, observe=Observe(**ASKED, weights=weights))
    if weights:
        assert largest.elements >= heads * queries * keys
    else:
        assert largest.elements <= 2**21


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("band", [regard.Mask(), regard.causal(), regard.window(7), regard.window(5) & regard.causal()])
def test_structured_masks_are_not_written_out_to_observe(band: regard.Mask, padded: bool) -> None:
    call = make_call((1, 2, 1, 2999, 3001, 3, 3))
    mask = band & regard.padding(torch.arange(3001)[None] > 17) if padded else band
    with Largest() as largest:
        observed(call.query, call.key, Observe(**ASKED), mask=mask)
    assert largest.elements <= 2**21


def test_a_block_computes_no_more_keys_than_it_sees() -> None:
    """Of a causal mask half, of a window little."""
    query = torch.empty(1, 1, 997, 2)
    sizes = {}
    for name, (low, high) in {"all": (-997, 997), "causal": (-997, 1), "window": (-6, 1)}.items():
        scores = dot_blocks.DotScores(query, query, 1.0, None, MaskParts(low, high, None, None), None)
        with patch.multiple(dot_blocks, _SCORES=1, _ROWS=10):
            blocks = list(dot_blocks._blocks(scores, dot_blocks._SCORES))
        assert [block.rows.start for block in blocks] == list(range(0, 997, 10))
        sizes[name] = sum((b.rows.stop - b.rows.start) * (b.keys.stop - b.keys.start) for b in blocks)
    assert sizes["all"] == 997**2
    assert sizes["causal"] < 0.51 * 997**2
    assert sizes["window"] <= 997 * 16


@pytest.mark.parametrize("low", [-32749, -20000, -700, -3])
@pytest.mark.parametrize("heads", [1, 6])
def test_blocks_are_small_whatever_the_band(low: int, heads: int) -> None:
    query, key = torch.empty(2, heads, 32749, 1), torch.empty(2, 1, 32749, 1)
    scores = dot_blocks.DotScores(query, key, 1.0, None, MaskParts(low, 1, None, None), None)
    for block in dot_blocks._blocks(scores, dot_blocks._SCORES):
        _, _, rows, keys = (at.stop - at.start for at in block)
        assert rows * keys <= max(dot_blocks._SCORES, dot_blocks._ROWS * 32749)


def test_a_scan_serves_what_it_computes() -> None:
    query = torch.empty(1, 1, 5, 2)
    scores = dot_blocks.DotScores(query, query, 1.0, None, MaskParts(-5, 5, None, None), None)
    request = request_of(Observe(**ASKED), 5)
    assert dot_blocks.served_by_scan(scores, request)
    assert not dot_blocks.served_by_scan(scores, request._replace(names=[*request.names, "variance"]))
    assert not dot_blocks.served_by_scan(scores, request._replace(top=65))
    assert not dot_blocks.served_by_scan(scores._replace(key=query.double()), request)
