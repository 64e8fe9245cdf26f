"""Masks: what they allow, how they compose, and how they draw themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import Mask, causal, dense, padding, window
from regard.errors import ArgumentError
from regard.functional import from_torch

sizes = st.integers(0, 9)
offsets = st.none() | st.integers(-4, 9)


@given(sizes, sizes, offsets)
def test_causal_is_its_formula(queries: int, keys: int, offset: int | None) -> None:
    shift = keys - queries if offset is None else offset
    expected = [[j <= i + shift for j in range(keys)] for i in range(queries)]
    assert causal(offset).allowed((queries, keys)).tolist() == expected


@given(sizes, sizes, st.integers(1, 5), offsets)
def test_window_is_its_formula(queries: int, keys: int, size: int, offset: int | None) -> None:
    shift = keys - queries if offset is None else offset
    expected = [[abs(j - i - shift) < size for j in range(keys)] for i in range(queries)]
    assert window(size, offset).allowed((queries, keys)).tolist() == expected


@given(st.integers(1, 5))
def test_causal_window_counts_the_token_itself(size: int) -> None:
    allowed = (causal() & window(size)).allowed((8, 8))
    assert allowed.sum(-1).tolist() == [min(size, i + 1) for i in range(8)]


@given(st.integers(1, 9), st.integers(1, 9), offsets, offsets, st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_reaches_is_any_of_the_allowed_and_marked(
    queries: int, keys: int, a: int | None, b: int | None, size: int, table: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator) > 0.5

    mask = causal(a) & window(size, b) & padding(random(2, keys)) & padding(lengths=[keys, keys // 2])
    if table:
        mask &= dense(random(queries, keys))
    shape, marked = (2, 3, queries, keys), random(2, 3, keys)
    expected = (mask.allowed(shape) & marked[..., None, :]).any(-1)
    assert torch.equal(mask.reaches(marked, shape).expand(expected.shape), expected)


def test_composition_is_and_and_keeps_each_band_once() -> None:
    keep = torch.tensor([[True, False, True]])
    table = torch.tensor([[True, True, True], [True, True, False], [True, True, True]])
    mask = causal() & padding(keep) & dense(table) & window(2) & causal()
    parts = [m.allowed((1, 1, 3, 3)) for m in (causal(), padding(keep), dense(table), window(2))]
    assert torch.equal(mask.allowed((1, 1, 3, 3)), torch.stack(parts).all(0))
    assert repr(mask) == "causal() & window(2) & padding(keep=1 x 3) & dense(3 x 3)"


def test_lengths_equal_keep() -> None:
    keep = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    for lengths in ([2, 0, 3], torch.tensor([2, 0, 3], dtype=torch.int32)):
        assert torch.equal(padding(lengths=lengths).allowed((3, 1, 2, 3)), padding(keep).allowed((3, 1, 2, 3)))


def test_the_first_axis_is_the_batch_at_any_rank() -> None:
    keep = torch.tensor([[True, False], [True, True]])
    for shape in ((2, 4, 2), (2, 3, 4, 2), (2, 5, 3, 4, 2)):
        allowed = padding(keep).allowed(shape)
        assert allowed.shape == shape
        assert torch.equal(allowed[0].flatten(0, -2).any(0), keep[0])
        assert allowed[1].all()


def test_allowed_refuses_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"\(2, 3\)"):
        padding(torch.ones(2, 3, dtype=torch.bool)).allowed((2, 1, 4, 5))


def test_an_empty_mask_allows_all() -> None:
    assert Mask().allowed((2, 3)).all()
    assert repr(Mask()) == "Mask()"


def test_drawing() -> None:
    assert causal().draw(2, 3) == "■ ■ ·\n■ ■ ■"
    assert str(padding(lengths=[1, 2])) == "padding(lengths=2)\n■ ·\n■ ·\n\n■ ■\n■ ■"
    assert padding(torch.ones(6, 2, dtype=torch.bool)).draw(1).endswith("\n\nand 2 more")
    heads = dense(torch.eye(2, dtype=torch.bool).view(1, 2, 1, 2).expand(1, 2, 1, 2))
    assert heads.draw() == "■ ·\n\n· ■"
    assert causal(offset=1).draw(0, 0) == ""
    assert repr(window(3, offset=2)) == "window(3, offset=2)"


def test_from_torch_inverts() -> None:
    hidden = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)) > 0.5
    assert torch.equal(from_torch(hidden).allowed((2, 1, 1, 4))[:, 0, 0], ~hidden)
    per_head = torch.rand(6, 3, 4, generator=torch.Generator().manual_seed(0)) > 0.5
    assert torch.equal(from_torch(attn_mask=per_head, num_heads=3).allowed((2, 3, 3, 4)).flatten(0, 1), ~per_head)


def test_masks_are_exported_at_the_top() -> None:
    for name in ("causal", "window", "padding", "dense", "Mask"):
        assert getattr(regard, name) is getattr(regard.functional, name)


@given(st.integers(1, 5), st.integers(1, 7), offsets, st.data())
def test_masks_of_first_and_last_keys_and_of_some_examples_are_parts_of_the_whole(
    queries: int, keys: int, offset: int | None, data: st.DataObject
) -> None:
    torch.manual_seed(0)
    table, each = torch.rand(queries, keys) < 0.7, torch.rand(3, 1, queries, 1) < 0.7
    lengths = torch.tensor([keys, 0, (keys + 1) // 2])
    mask = causal(offset) & window(3, offset) & dense(table) & dense(each)
    mask &= padding(torch.rand(3, keys) < 0.7) & padding(lengths=lengths)
    whole, last = mask.allowed((3, 2, queries, keys)), data.draw(st.integers(1, keys), "last")
    found = mask.of_last_keys(last, keys).allowed((3, 2, queries, last))
    assert torch.equal(found, whole[..., keys - last :])
    if offset is not None:  # else the bands align with the last key that stays
        found = mask.of_first_keys(last, keys).allowed((3, 2, queries, last))
        assert torch.equal(found, whole[..., :last])
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4), "rows"))
    found = mask.of_examples(rows).allowed((len(rows), 2, queries, keys))
    assert torch.equal(found, whole[rows])


def test_a_mask_of_some_heads_and_in_four_axes() -> None:
    torch.manual_seed(0)
    mask = causal() & dense(torch.rand(2, 5, 3, 4, 7) < 0.5) & dense(torch.rand(4, 7) < 0.9)
    mask &= padding(lengths=[7, 3])
    shape, heads = (2, 5, 3, 4, 7), torch.tensor([2, 0])
    whole = mask.allowed(shape)
    assert torch.equal(mask.of_heads(heads, 3).allowed((2, 5, 2, 4, 7)), whole[:, :, heads])
    flat = mask.in_four_axes(shape, torch.device("cpu"))
    assert torch.equal(flat.allowed((10, 3, 4, 7)), whole.flatten(0, 1))
    assert flat.in_four_axes((10, 3, 4, 7), torch.device("cpu")) is flat
    assert causal().in_four_axes(shape, torch.device("cpu")).is_causal_from_start(4, 4)


def test_what_a_mask_says_of_itself() -> None:
    for mask, banded, padded, is_causal, bottom_right in (
        (Mask(), True, False, False, False),
        (causal(), True, False, True, True),
        (window(3, offset=0) & causal(offset=2), True, False, True, False),
        (padding(lengths=[3]), False, True, False, False),
        (dense(torch.ones(2, 3, dtype=torch.bool)) & window(2), False, False, False, True),
    ):
        said = mask.is_banded, mask.has_padding, mask.is_causal, mask.is_bottom_right
        assert said == (banded, padded, is_causal, bottom_right)


def test_a_mask_moves_to_a_device() -> None:
    mask = causal() & padding(torch.ones(2, 3, dtype=torch.bool)) & padding(lengths=[1, 2])
    moved = (mask & dense(torch.ones(3, 3, dtype=torch.bool))).to("meta")
    assert {x.device.type for x in (*moved.keeps, *moved.lengths, *moved.tables)} == {"meta"}
    assert moved.bands == mask.bands
