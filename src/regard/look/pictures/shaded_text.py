"""Texts in which each word is shaded by its weight in a classifier's attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import ArgumentError, RegardError

try:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch
except ModuleNotFoundError as error:
    raise RegardError("pictures need matplotlib, which is not installed: pip install 'regard[look]'") from error

from regard.look.pictures.labels import drawable, families, visible
from regard.look.pictures.layout import (
    BAR_HEIGHTS,
    BAR_LABEL,
    BAR_WIDTH,
    COLOURS,
    DPI,
    FAINT,
    FONT,
    GAP,
    INK,
    MARGIN,
    PAPER,
    POINTS,
    label_scale,
    scale_end,
    text_width,
)

if TYPE_CHECKING:
    from regard.tasks.classify import Classification

__all__ = ["shaded_texts"]

# Lengths in inches.
_WIDEST = 8.0  # of the words of a text, side by side
_LINE, _BETWEEN = 0.27, 0.20  # from line to line within a text, and more from text to text
_BOX, _PAD, _SPACE = 0.21, 0.035, 0.025  # the height of a word's shade; beside the word within it; from shade to shade
_ROUND = "round,pad=0,rounding_size=0.03"

_WordBox = tuple[float, float, float]  # left, line, width


class _Text(NamedTuple):
    """A text with its label, its units, their weights and their boxes."""

    label: str
    units: list[str]
    weights: list[float]
    boxes: list[_WordBox]

    @property
    def height(self) -> float:
        return (self.boxes[-1][1] + 1) * _LINE


def shaded_texts(answers: Iterable[Classification]) -> Figure:
    """Draw the texts of a classifier's answers, each word shaded by its weight, the mean over the heads.

    Each text has its label with the probability beside it. The scale ends at 1, or at the largest weight if that is
    below one half. Answers to blank texts are omitted. Raises `ArgumentError` if no answer has weights.

    >>> import torch
    >>> from regard.tasks.classify import Classification
    >>> weights = torch.tensor([[0.1, 0.8, 0.1]])
    >>> answer = Classification(["a", "fine", "film"], "good", {"bad": 0.1, "good": 0.9}, weights)
    >>> [text.get_text() for text in shaded_texts([answer]).axes[0].texts]
    ['good 90 %', 'a', 'fine', 'film']
    """
    texts = [(answer, answer.weights.float().mean(0).tolist()) for answer in answers if answer.weights is not None]
    if not texts:
        raise ArgumentError(
            "shaded_texts: expected answers with weights, got none; call predict(texts, weights=True)"
        )
    labels = [drawable(f"{answer.label} {100 * answer.probabilities[answer.label]:.0f} %") for answer, _ in texts]
    fonts = families([*labels, *(visible(unit) for answer, _ in texts for unit in answer.units)])
    placed = [
        _Text(label, units := [visible(unit) for unit in answer.units], weights, list(_boxes(units, fonts)))
        for label, (answer, weights) in zip(labels, texts, strict=True)
    ]
    return _page(placed, fonts, scale_end(max(max(text.weights) for text in placed)))


def _boxes(units: Sequence[str], fonts: Sequence[str]) -> Iterator[_WordBox]:
    """Arrange words in lines."""
    x, line = 0.0, 0
    for unit in units:
        width = _inches(unit, fonts) + 2 * _PAD
        if x and x + width > _WIDEST:
            x, line = 0.0, line + 1
        yield x, line, width
        x += width + _SPACE


def _inches(text: str, fonts: Sequence[str]) -> float:
    return text_width(text, tuple(fonts)) * FONT / POINTS


def _page(texts: Sequence[_Text], fonts: list[str], highest: float) -> Figure:
    left = MARGIN + max(_inches(text.label, fonts) for text in texts) + GAP / 2
    bar_left = left + max(x + width for text in texts for x, _, width in text.boxes) + GAP
    width = bar_left + BAR_WIDTH + BAR_LABEL + MARGIN
    written = sum(text.height for text in texts) + _BETWEEN * (len(texts) - 1)
    bar_height = min(max(written, BAR_HEIGHTS[0]), BAR_HEIGHTS[1])
    height = 2 * MARGIN + max(written, bar_height)
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))  # in inches from the top
    ax.set_axis_off()
    y = MARGIN
    for text in texts:
        _draw(ax, text, left, y, highest, {"fontsize": FONT, "family": fonts, "parse_math": False})
        y += text.height + _BETWEEN
    bar = (bar_left / width, 1 - (MARGIN + bar_height) / height, BAR_WIDTH / width, bar_height / height)
    label_scale(figure, ScalarMappable(Normalize(0, highest), COLOURS), figure.add_axes(bar), "attention weight")
    return figure


def _draw(ax: Axes, text: _Text, left: float, top: float, highest: float, style: dict[str, Any]) -> None:
    baseline = top + 0.68 * _LINE
    ax.text(MARGIN, baseline, text.label, color=FAINT, **style)
    for unit, weight, (x, line, width) in zip(text.units, text.weights, text.boxes, strict=True):
        colour = COLOURS(weight / highest)
        down = line * _LINE
        shade = (left + x, top + down + (_LINE - _BOX) / 2)
        ax.add_patch(FancyBboxPatch(shade, width, _BOX, _ROUND, facecolor=colour, linewidth=0))
        dark = sum(share * part for share, part in zip((0.30, 0.59, 0.11), colour, strict=False)) < 0.55
        ax.text(left + x + _PAD, baseline + down, unit, color=PAPER if dark else INK, **style)
