"""KeyValueCache by itself: what it holds, what it costs, and whom it disturbs."""

from __future__ import annotations

import copy

import pytest
import torch

from regard.errors import ArgumentError
from regard.functional import Observe, causal, dense, padding, window
from regard.nn import KeyValueCache, MultiHeadAttention
from regard.positions import ALiBi, Rotary, Shaw, T5Bias

B, HEADS, SIZE = 3, 2, 5
DIM = HEADS * SIZE
RELATIVE = {
    "none": lambda: None,
    "rotary": lambda: Rotary(SIZE + 1),
    "alibi": lambda: ALiBi(HEADS),
    "t5": lambda: T5Bias(HEADS),
    "shaw": lambda: Shaw(SIZE + 1, 2),
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def tokens(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(B, HEADS, count, SIZE), torch.randn(B, HEADS, count, SIZE)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("size", [None, 1, 4])
def test_it_holds_what_was_appended(recorded: bool, size: int | None) -> None:
    cache, pairs = KeyValueCache(size), [tokens(count) for count in (3, 1, 1, 7, 1, 2)]
    assert cache.key is None
    assert cache.value is None
    with torch.set_grad_enabled(recorded):
        for k, pair in enumerate(pairs):
            before = 0 if cache.key is None else cache.key.shape[-2]
            given = cache.append(*pair)
            whole = [torch.cat(parts, -2) for parts in zip(*pairs[: k + 1], strict=True)]
            attended = pair[0].shape[-2] + (before if size is None else min(before, size - 1))
            for kept, of_call, expected in zip((cache.key, cache.value), given, whole, strict=True):
                assert torch.equal(of_call, expected[..., expected.shape[-2] - attended :, :])
                assert torch.equal(kept, expected if size is None else expected[..., -size:, :])
            assert len(cache) == cache.length == whole[0].shape[-2]
    assert repr(cache) == f"KeyValueCache(length=15{'' if size is None else f', window={size}'})"


@pytest.mark.parametrize("size", [None, 7])
def test_a_token_costs_its_own_size(size: int | None) -> None:
    cache, moves, places = KeyValueCache(size), 0, set()
    with torch.no_grad():
        for _ in range(300):
            cache.append(*tokens(1))
            end = cache.key.data_ptr() + cache.key.shape[-2] * SIZE * 4
            moves += end not in places and cache.length > 1
            places = {end + SIZE * 4}
    assert moves <= (10 if size is None else 60)
    storage = cache.key.untyped_storage().nbytes() // (4 * B * HEADS * SIZE)
    assert storage <= (600 if size is None else 2 * size)


def test_what_was_handed_out_stays() -> None:
    cache, seen = KeyValueCache(), []
    with torch.no_grad():
        for _ in range(20):
            key, _ = cache.append(*tokens(1))
            seen.append((key, key.clone()))
    assert all(torch.equal(key, then) for key, then in seen)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_copy_goes_its_own_way(recorded: bool) -> None:
    one = KeyValueCache()
    with torch.set_grad_enabled(recorded):
        for _ in range(5):  # memory for 3 more is there
            one.append(*tokens(1))
        other, first, second = copy.copy(one), tokens(1), tokens(1)
        one.append(*first)
        other.append(*second)
    assert torch.equal(one.key[..., -1:, :], first[0])
    assert torch.equal(other.key[..., -1:, :], second[0])
    assert torch.equal(one.value[..., :5, :], other.value[..., :5, :])


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("size", [None, 2])
def test_rows_are_selected_into_a_new_cache(recorded: bool, size: int | None) -> None:
    cache, rows = KeyValueCache(size), torch.tensor([2, 0, 0, 1])
    assert KeyValueCache().select(rows).key is None
    with torch.set_grad_enabled(recorded):
        for _ in range(5):
            cache.append(*tokens(1))
        key, value = cache.key.clone(), cache.value.clone()
        chosen = cache.select(rows)
        assert torch.equal(chosen.key, key[rows])
        assert torch.equal(chosen.value, value[rows])
        place = chosen.key.data_ptr()
        chosen.append(torch.randn(4, HEADS, 1, SIZE), torch.randn(4, HEADS, 1, SIZE))
        assert chosen.length == 6
        assert chosen.window == size
        if not recorded and size is None:
            assert chosen.key.data_ptr() == place, "room to grow has come along"
    assert cache.length == 5
    assert torch.equal(cache.key, key)
    assert torch.equal(cache.value, value)


def test_begun_in_inference_mode_and_gone_on_with_outside() -> None:
    layer, x = MultiHeadAttention(DIM, HEADS, causal=True), torch.randn(B, 6, DIM)
    cache, outputs = KeyValueCache(), []
    for k, mode in enumerate([torch.no_grad, torch.inference_mode, torch.inference_mode, torch.no_grad]):
        with mode():
            outputs.append(layer(x[:, k : k + 1], cache=cache))
    outputs.append(layer(x[:, 4:], cache=cache))
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x))


def test_keys_without_gradients_are_not_written_to_under_those_who_need_them() -> None:
    layer, x = MultiHeadAttention(DIM, HEADS, causal=True), torch.randn(B, 6, DIM)
    for projection in (layer.k_proj, layer.v_proj):
        projection.requires_grad_(False)
    cache = KeyValueCache()
    loss = sum(layer(piece, cache=cache).square().sum() for piece in x.split(1, 1))
    loss.backward()
    found = layer.q_proj.weight.grad.clone()
    layer.zero_grad()
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, layer.q_proj.weight.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    layer, x = MultiHeadAttention(DIM, HEADS, causal=True).to(dtype), torch.randn(B, 6, DIM, dtype=dtype)
    cache = KeyValueCache()
    with torch.no_grad():
        pieces = [layer(piece, cache=cache) for piece in x.split(2, 1)]
        assert cache.key.dtype == cache.value.dtype == dtype
        torch.testing.assert_close(torch.cat(pieces, 1), layer(x))


def test_without_a_batch() -> None:
    layer, x = MultiHeadAttention(DIM, HEADS, causal=True, positions=ALiBi(HEADS)), torch.randn(6, DIM)
    cache = KeyValueCache()
    torch.testing.assert_close(torch.cat([layer(piece, cache=cache) for piece in x.split([1, 3, 2])]), layer(x))


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("queries", [1, 4, 9])
def test_a_memory_is_read_once(name: str, queries: int) -> None:
    """Also where positions turn the keys: the padding is known at the call alone."""
    dim = HEADS * (SIZE + 1)
    layer = MultiHeadAttention(dim, HEADS, kdim=7, vdim=11, positions=RELATIVE[name]())
    memory, value, query = torch.randn(B, 4, 7), torch.randn(B, 4, 11), torch.randn(B, queries, dim)
    cache = layer.project(memory, value)
    assert len(cache) == 4
    for mask in (None, padding(lengths=[4, 0, 2]), padding(torch.arange(4) >= torch.tensor([[0], [1], [3]]))):
        for _ in range(2):
            expected = layer(query, memory, value, mask=mask)
            torch.testing.assert_close(layer(query, cache=cache, mask=mask), expected)
    assert len(cache) == 4
    rows = torch.tensor([1, 0])
    torch.testing.assert_close(layer(query[rows], cache=cache.select(rows)), layer(query, memory, value)[rows])


def test_masks_and_biases_are_about_all_keys_so_far_also_within_a_window() -> None:
    layer, x = MultiHeadAttention(DIM, HEADS, positions=Shaw(SIZE, 1)), torch.randn(B, 9, DIM)
    table, bias = torch.rand(B, HEADS, 9, 9) < 0.7, torch.randn(1, HEADS, 9, 9)
    lengths = padding(lengths=[9, 3, 5])
    for size in (None, 4):
        layer.causal = False
        base = causal() if size is None else causal() & window(size)
        full = layer(x, mask=base & dense(table) & lengths, bias=bias)
        cache, outputs = KeyValueCache(size), []
        for start, end in [(0, 3), (3, 4), (4, 7), (7, 9)]:
            part = table[:, :, start:end, :end]
            so_far = padding(lengths=lengths.lengths[0].clamp(max=end))
            masks = [dense(part) & so_far & causal(), dense(part) & so_far & causal(offset=start)]
            steps = [copy.copy(cache) for _ in masks]
            both = [
                layer(x[:, start:end], mask=mask, bias=bias[:, :, start:end, :end], cache=step)
                for mask, step in zip(masks, steps, strict=True)
            ]
            torch.testing.assert_close(*both)
            cache = steps[0]
            outputs.append(both[0])
        torch.testing.assert_close(torch.cat(outputs, 1), full)
        layer.causal = True  # as a tensor cannot say it, and a window asks for it
        raw = layer(x[:, -1:], mask=table[:, :, -1:, :1].expand(B, HEADS, 1, 10), cache=cache)
        assert raw.shape == (B, 1, DIM)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("positions", [None, Shaw(SIZE, 1)])
def test_a_call_that_is_refused_leaves_the_cache_as_it_was(positions: Shaw | None, size: int | None) -> None:
    layer, cache = MultiHeadAttention(DIM, HEADS, causal=True, positions=positions), KeyValueCache(size)
    x = torch.randn(B, 4, DIM)
    layer(x[:, :2], cache=cache)
    for options in (
        {"mask": padding(torch.ones(B, 2).bool())},
        {"mask": torch.ones(B, 1, 2, 2).bool()},
        {"mask": torch.ones(B, 1, 2, 4)},
        {"mask": torch.ones(2, 4).bool()},
        {"bias": torch.zeros(2, 4)},
        {"bias": torch.zeros(B, HEADS, 2, 3)},
        {"bias": torch.zeros(B, HEADS, 2, 4).long()},
        {"bias": torch.zeros(B, HEADS, 2, 4).double()},
        {"observe": Observe(rows=[2])},
    ):
        with pytest.raises(ArgumentError) as caught:
            layer(x[:, 2:], cache=cache, **options)
        assert "\n" not in str(caught.value)
    torch.testing.assert_close(layer(x[:, 2:], cache=cache), layer(x)[:, 2:])


def filled(size: int | None = None) -> KeyValueCache:
    cache = KeyValueCache(size)
    cache.append(*tokens(2))
    return cache


LAYER = MultiHeadAttention(DIM, HEADS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KeyValueCache(0), "window must be at least 1 .*got 0"),
        (lambda: KeyValueCache(True), "window must be at least 1 .*got True"),
        (lambda: LAYER(torch.zeros(2, 1, DIM), cache=filled()), r"\(3, 2, 'T', 5\), got \(2, 2, 1, 5\): make a new"),
        (lambda: LAYER(torch.zeros(1, DIM), cache=filled()), r"\(3, 2, 'T', 5\), got \(2, 1, 5\)"),
        (
            lambda: LAYER.double()(torch.zeros(B, 1, DIM).double(), cache=filled()),
            "float32 on cpu, got .*float64",
        ),
        (lambda: filled().append(*(x.to("meta") for x in tokens(1))), "on cpu, got torch.float32 on meta"),
        (lambda: filled().select(torch.tensor([[1]])), r"rows must be \(B,\) integers, got torch.int64 .*\(1, 1\)"),
        (lambda: filled().select(torch.tensor([1.0])), "rows must be .*got torch.float32"),
        (lambda: LAYER.project(torch.zeros(3, DIM)).select(torch.tensor([0])), r"without a batch .*\(2, 3, 5\)"),
        (
            lambda: KeyValueCache.of_memory(*tokens(2)).append(*tokens(1)),
            "holds the keys of a memory and cannot grow",
        ),
        (lambda: LAYER(torch.zeros(B, 1, DIM), torch.zeros(B, 1, DIM), cache=filled()), "leave key and value out"),
        (
            lambda: LAYER(torch.zeros(B, 1, DIM), cache=KeyValueCache(3)),
            r"window=3 drops old tokens: .*causal=True or a mask",
        ),
        (lambda: LAYER(torch.zeros(B, 1, DIM), mask=window(2), cache=KeyValueCache(3)), "window=3 drops old tokens"),
        (
            lambda: LAYER(torch.zeros(B, 1, DIM), mask=causal() & padding(lengths=[1, 2]), cache=KeyValueCache(3)),
            r"lengths must be \(B,\) = \(3,\), got \(2,\)",
        ),
        (
            lambda: LAYER(torch.zeros(B, 1, DIM), mask=causal() & padding(torch.ones(B, 1).bool()), cache=filled(3)),
            r"keep must be \(B, Tk\) = \(3, 3\), got \(3, 1\)",
        ),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    LAYER.float()
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
