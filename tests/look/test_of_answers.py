"""Pictures of answers: the mean of layers and heads, or a grid of them all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from regard.data import SeparatorTokenizer
from regard.errors import ArgumentError
from regard.look import Alignment, grid
from regard.look.pictures.of_answers import head_grids, means, weights_of
from regard.tasks import Answer, Prediction

RUN = SimpleNamespace(source_tokenizer=SeparatorTokenizer("chars"))


def answer(weights: torch.Tensor | None, *, finished: bool = True) -> Answer:
    return Answer(list("eye"), [Prediction("AY", ["AY"], -1.0, -1.0, finished, weights)])


def test_one_picture_shows_the_mean_of_layers_and_heads() -> None:
    weights = torch.rand(2, 3, 2, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    (picture,) = means(weights_of(RUN, [answer(weights)]))
    torch.testing.assert_close(picture.weights, sum(weights[i, j] for i in range(2) for j in range(3)) / 6)
    assert (picture.rows, picture.columns, picture.title) == (["AY", "<eos>"], ["e", "y", "e"], "eye")
    (single,) = means(weights_of(RUN, [answer(weights[0, 0, :1], finished=False)]))
    assert torch.equal(single.weights, weights[0, 0, :1])
    assert single.rows == ["AY"]
    assert weights_of(RUN, [answer(None), Answer([], [])]) == []


def test_a_grid_has_a_line_a_layer_and_a_map_a_head() -> None:
    weights = torch.rand(2, 3, 2, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    lines = head_grids(weights_of(RUN, [answer(weights), answer(weights)]), named=True)
    assert [[picture.title for picture in line] for line in lines] == 2 * [
        [f"eye: layer {layer}, head {head}" for head in (1, 2, 3)] for layer in (1, 2)
    ]
    assert head_grids(weights_of(RUN, [answer(weights)]), named=False)[1][2].title == "layer 2, head 3"
    *maps, scale = grid(lines).axes
    assert len(maps) == 12
    assert scale.get_ylabel() == "attention weight"
    for i, ax in enumerate(maps):
        layer, head = i // 3 % 2, i % 3
        assert np.allclose(ax.images[0].get_array(), weights[layer, head])
    boxes = [ax.get_window_extent() for ax in maps]
    for i, box in enumerate(boxes[:9]):
        below = boxes[i + 3]
        assert box.x0 == pytest.approx(below.x0)  # heads one below the other
        assert box.y0 > below.y1
        assert i % 3 == 2 or box.x1 < boxes[i + 1].x0  # and beside each other
        assert (box.width, box.height) == pytest.approx((below.width, below.height))


@pytest.mark.parametrize(("heads", "units"), [(1, 1), (4, 7), (8, 21), (16, 60), (2, 300)])
def test_a_grid_keeps_to_the_page(heads: int, units: int) -> None:
    line = [Alignment(np.full((3, units), 1 / units), "abc", "x" * units, f"head {head}") for head in range(heads)]
    width, height = grid([line, line]).get_size_inches()
    assert width < 34
    assert height < 12


def test_a_grid_of_nothing_is_refused() -> None:
    for lines in ([], [[]], [[Alignment([[1.0]], "a", "b")], []]):
        with pytest.raises(ArgumentError, match="grid: expected lines with at least one picture each"):
            grid(lines)
