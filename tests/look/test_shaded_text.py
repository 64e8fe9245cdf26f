"""Shaded texts, measured: words, positions, shades. Their look must be judged by a person."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from regard.errors import ArgumentError
from regard.look import save
from regard.look.pictures.layout import COLOURS, INK, PAPER
from regard.look.pictures.shaded_text import shaded_texts
from regard.tasks import Classification

TEXTS = {
    "short": ["fine", "!"],
    "one": ["a"],
    "long": [f"word{n}" for n in range(97)],
    "wide": ["x" * 300, "y"],
    "signs": ["$x$", " ", "\t", "_", "^", "\u0301", "{"],
    "scripts": ["注意", "力", "어텐션", "שלום", "हिन्दी"],
}


def answer(units: list[str], label: str = "good", weights: torch.Tensor | None = None) -> Classification:
    weights = torch.softmax(torch.arange(2.0 * len(units)).view(2, -1).sin(), -1) if weights is None else weights
    return Classification(units, label, {"bad": 0.25, label: 0.75}, weights)


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def boxes(figure: Figure) -> tuple[list[Bbox], list[Bbox]]:
    """Return the boxes of the shades, and of the texts, the label first."""
    ax = figure.axes[0]
    return [patch.get_window_extent() for patch in ax.patches], [text.get_window_extent() for text in ax.texts]


def test_each_word_is_shaded_by_the_mean_of_the_heads() -> None:
    figure = shaded_texts([answer(["so", "fine", "!"], weights=torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.6, 0.2]]))])
    assert words(figure) == ["good 75 %", "so", "fine", "!"]
    colours = [patch.get_facecolor() for patch in figure.axes[0].patches]
    assert colours == [pytest.approx(COLOURS(share)) for share in (0.1, 0.8, 0.1)]
    assert [text.get_color() for text in figure.axes[0].texts[1:]] == [INK, PAPER, INK]
    assert figure.axes[1].get_ylim() == (0.0, 1.0)


def test_the_scale_ends_at_the_largest_of_small_weights() -> None:
    figure = shaded_texts(
        [answer(["a"] * 5, weights=torch.full((1, 5), 0.2)), answer(["b"] * 10, weights=torch.ones(3, 10) / 10)]
    )
    assert figure.axes[1].get_ylim() == (0.0, pytest.approx(0.2))
    assert figure.axes[0].patches[0].get_facecolor() == pytest.approx(COLOURS(1.0))


@pytest.mark.parametrize("case", TEXTS)
def test_nothing_touches_and_all_stands_on_the_page(case: str, tmp_path: Path) -> None:
    figure = shaded_texts([answer(TEXTS[case]), answer(["another"])])
    save(figure, tmp_path / "text.png")  # which warns of a glyph that no font has
    shades, written = boxes(figure)
    label, *units = written[: len(TEXTS[case]) + 1]
    page = figure.bbox
    for shade, unit in zip(shades, units, strict=False):
        assert shade.x0 - 1 <= unit.x0
        assert unit.x1 <= shade.x1 + 1
        assert label.x1 < shade.x0
    for box in [*shades, *written]:
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1
    assert not any(one.overlaps(other) for i, one in enumerate(shades) for other in shades[:i])
    assert max(shade.x1 for shade in shades) < figure.axes[1].get_window_extent().x0


def test_texts_stand_below_each_other_and_break_into_lines() -> None:
    shades, _ = boxes(shaded_texts([answer(TEXTS["long"]), answer(["another"])]))
    lines = sorted({round(shade.y0) for shade in shades}, reverse=True)
    assert len(lines) > 5
    assert round(shades[-1].y0) == lines[-1]
    assert lines[-2] - lines[-1] > lines[0] - lines[1]


def test_what_was_not_looked_at_is_left_out_or_refused() -> None:
    blank = Classification([], "", {})
    assert len(words(shaded_texts([blank, answer(["a"])]))) == 2
    with pytest.raises(ArgumentError, match="expected answers with weights, got none; call predict"):
        shaded_texts([blank])
