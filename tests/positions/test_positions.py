"""Positions: the formula, every size, padding, offsets, and the errors."""

from __future__ import annotations

import copy
import math
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

from regard import positions
from regard.cli.train import train
from regard.errors import ArgumentError
from regard.positions import Learned, Sinusoidal, sinusoidal

KINDS = {
    "sinusoidal": lambda mode="add", dim=6: Sinusoidal(dim, mode=mode),
    "learned": lambda mode="add", dim=6: Learned(31, dim, mode=mode),
}
both = pytest.mark.parametrize("kind", KINDS)
modes = pytest.mark.parametrize("mode", ["add", "concat"])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_the_public_names_are_pinned() -> None:
    assert positions.__all__ == [
        "BY_NAME",
        "ALiBi",
        "Learned",
        "LinearScaling",
        "Llama3Scaling",
        "NTKScaling",
        "Relative",
        "Rotary",
        "Scaling",
        "Shaw",
        "Sinusoidal",
        "T5Bias",
        "YarnScaling",
        "sinusoidal",
    ]


def test_the_command_offers_every_encoding_that_has_a_name() -> None:
    offered, _none = get_args(get_type_hints(train)["positions"])
    assert get_args(offered) == tuple(positions.BY_NAME)


@pytest.mark.parametrize("dim", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_sinusoids_are_the_formula(dim: int, base: float) -> None:
    table = sinusoidal(11, dim, base)
    assert table.shape == (11, dim)
    assert table.dtype == torch.float32
    for i in range(11):
        for column in range(dim):
            angle = i / base ** (2 * (column // 2) / dim)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[i, column].item() == pytest.approx(expected, abs=1e-7)


def test_sinusoids_are_right_to_float32_far_out() -> None:
    place = 100_003
    row = Sinusoidal(4)(torch.zeros(1, 4), offset=place)[0]
    slow = place / 100
    expected = [math.sin(place), math.cos(place), math.sin(slow), math.cos(slow)]
    assert row.tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("shift", [-3, 0, 1, 7])
def test_a_shift_is_the_same_rotation_everywhere(shift: int) -> None:
    dim = 10
    table = sinusoidal(47, dim).double()
    for j in range(dim // 2):
        angle = shift / 10000 ** (2 * j / dim)
        rotation = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]).double()
        here = table[3:40, 2 * j : 2 * j + 2]
        there = table[3 + shift : 40 + shift, 2 * j : 2 * j + 2]
        torch.testing.assert_close(here @ rotation.T, there, rtol=0, atol=2e-6)


def test_the_product_of_two_places_depends_on_their_distance_alone() -> None:
    table = sinusoidal(30, 8).double()
    products = table @ table.T
    for distance in range(5):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=2e-6)


@both
@modes
def test_added_or_concatenated(kind: str, mode: str) -> None:
    layer = KINDS[kind](mode)
    x = torch.randn(2, 5, 6)
    table = sinusoidal(5, 6) if kind == "sinusoidal" else layer.weight[:5]
    expected = x + table if mode == "add" else torch.cat([x, table.expand(2, -1, -1)], -1)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x[0]), expected[0])
    assert layer(x[:, :0]).shape == (2, 0, expected.shape[-1])


@both
def test_a_concatenated_encoding_has_a_size_of_its_own(kind: str) -> None:
    assert KINDS[kind]("concat", dim=3)(torch.zeros(2, 5, 7)).shape == (2, 5, 10)


@both
@modes
def test_positions_count_the_kept_tokens(kind: str, mode: str) -> None:
    layer = KINDS[kind](mode)
    x = torch.randn(3, 7, 6)
    keep = torch.tensor([[1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1, 0]]).bool()
    batch = layer(x, keep=keep)
    assert batch.isfinite().all()
    for row in range(3):
        torch.testing.assert_close(batch[row, keep[row]], layer(x[row, keep[row]]))


@both
def test_chunks_with_offsets_equal_the_whole(kind: str) -> None:
    layer = KINDS[kind]()
    x = torch.randn(2, 7, 6)
    whole = layer(x)
    chunks = [layer(x[:, :3]), layer(x[:, 3:4], offset=3), layer(x[:, 4:], offset=4)]
    torch.testing.assert_close(torch.cat(chunks, 1), whole)


@both
def test_an_offset_for_each_sequence_continues_a_padded_batch(kind: str) -> None:
    layer = KINDS[kind]()
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    x = torch.randn(2, 5, 6)
    whole = layer(x, keep=keep)
    step = layer(x[:, 4:], keep=keep[:, 4:], offset=keep[:, :4].sum(1))
    torch.testing.assert_close(step, whole[:, 4:])
    torch.testing.assert_close(layer(x[:, 4:], offset=keep[:, :4].sum(1)), whole[:, 4:])


@both
@modes
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_output_has_the_dtype_of_the_input(kind: str, mode: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, 6, dtype=dtype)
    output = KINDS[kind](mode)(x)
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), KINDS[kind](mode)(x.float()), rtol=1e-2, atol=0.1)


def test_a_half_model_keeps_the_waves_of_float32() -> None:
    x = torch.zeros(1, 1, 4, dtype=torch.bfloat16)
    output = Sinusoidal(4).to(torch.bfloat16)(x, offset=2001)
    expected = Sinusoidal(4)(x.float(), offset=2001)
    assert torch.equal(output, expected.to(torch.bfloat16))


@both
def test_gradients_reach_the_embeddings_and_the_learned_vectors(kind: str) -> None:
    layer = KINDS[kind]()
    x = torch.randn(2, 5, 6, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))
    if kind == "learned":
        assert torch.equal(layer.weight.grad[:5], torch.full((5, 6), 2.0))
        assert not layer.weight.grad[5:].any()


def test_learned_positions_use_all_their_places_and_no_more() -> None:
    layer = Learned(5, 6)
    keep = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]).bool()
    assert layer(torch.zeros(1, 5, 6)).shape == (1, 5, 6)
    assert layer(torch.zeros(1, 8, 6), keep=keep).shape == (1, 8, 6)  # five tokens: the padding takes no place
    assert layer(torch.zeros(1, 1, 6), offset=4).shape == (1, 1, 6)
    assert layer(torch.zeros(1, 0, 6), offset=5).shape == (1, 0, 6)
    for x, options, needed in [
        (torch.zeros(1, 6, 6), {}, 6),
        (torch.zeros(1, 8, 6), {"keep": torch.ones(1, 8, dtype=torch.bool)}, 8),
        (torch.zeros(1, 1, 6), {"offset": 5}, 6),
        (torch.zeros(1, 1, 6), {"offset": torch.tensor([5])}, 6),
    ]:
        with pytest.raises(ArgumentError, match=rf"{needed} positions needed, .*max_len=5"):
            layer(x, **options)


def test_what_is_saved_and_what_a_reset_draws() -> None:
    assert not Sinusoidal(6).state_dict()
    layer = Learned(31, 6)
    assert list(layer.state_dict()) == ["weight"]
    twin = copy.deepcopy(layer)
    twin.reset_parameters()
    assert not torch.equal(twin.weight, layer.weight)
    assert 0.01 < layer.weight.std() < 0.03


@both
def test_no_branch_on_values(kind: str) -> None:
    layer = KINDS[kind]()
    T = torch.export.Dim("T", min=2, max=20)
    x, keep = torch.randn(3, 5, 6), torch.ones(3, 5, dtype=torch.bool)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
            return self.layer(x, keep=keep)

    exported = torch.export.export(Wrapped(), (x, keep), dynamic_shapes={"x": {1: T}, "keep": {1: T}}).module()
    x, keep = torch.randn(3, 11, 6), torch.rand(3, 11) < 0.6
    torch.testing.assert_close(exported(x, keep), layer(x, keep=keep))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sinusoidal(0), "dim >= 1, got 0"),
        (lambda: Sinusoidal(4, mode="sum"), '"add" or "concat", got \'sum\''),
        (lambda: Sinusoidal(4, base=0.0), "positive, got 0.0"),
        (lambda: sinusoidal(-1, 4), "length >= 0, got -1"),
        (lambda: Learned(0, 4), "max_len >= 1, got 0"),
        (lambda: Sinusoidal(4)(torch.zeros(2, 3, 5)), 'size 5 cannot be added to positions of size 4.*mode="concat"'),
        (lambda: Sinusoidal(4)(torch.zeros(4)), r"\(\.\.\., T, D\), got torch.float32 of shape \(4,\)"),
        (lambda: Sinusoidal(4)(torch.zeros(2, 4).long()), "got torch.int64"),
        (lambda: Sinusoidal(4)(torch.zeros(2, 3, 4), keep=torch.ones(2, 3)), r"bool of shape \(2, 3\)"),
        (
            lambda: Sinusoidal(4)(torch.zeros(2, 3, 4), keep=torch.ones(3).bool()),
            r"\(2, 3\).*got torch.bool of shape \(3,\)",
        ),
        (lambda: Sinusoidal(4)(torch.zeros(2, 3, 4), offset=-1), "0 or more; got -1"),
        (lambda: Sinusoidal(4)(torch.zeros(2, 3, 4), offset=torch.zeros(3).long()), r"shape \(2,\), one a sequence"),
        (lambda: Sinusoidal(4)(torch.zeros(2, 3, 4), offset=torch.zeros(2)), "got torch.float32"),
        (lambda: Learned(9, 4)(torch.zeros(2, 3, 4), offset=torch.tensor([0, -1])), "0 or more"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
