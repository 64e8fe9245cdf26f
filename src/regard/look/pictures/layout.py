"""The layout of heat maps in inches: the size of cells, the form of labels, the positions of maps in a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from regard.look.pictures.labels import drawable, families, visible

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

__all__ = [
    "Panel",
    "bare_axes",
    "compose",
    "draw",
    "in_lines",
    "label_scale",
    "scale_end",
    "shrink",
    "text_width",
]

DPI = 150
POINTS = 72  # an inch

# Lengths in inches.
CELLS = (0.21, 0.40)  # the side of a cell, for many units and for few
SMALL_CELL = 0.16  # in a grid of many maps
WIDEST_CELL = 0.54  # up to which cells widen to keep the labels above them upright
LONGEST_SIDE = 24.0  # above it cells shrink, then labels do, then only every second, third, … is written
MARGIN = 0.15
GAP = 0.45  # between maps
BAR_WIDTH, BAR_HEIGHTS = 0.13, (1.5, 2.6)
BAR_LABEL = 0.62
WIDEST_ROW = 13.0  # of maps in one figure

# Lengths in points.
FONT, SMALLEST_FONT, SMALL_FONT, TITLE_FONT = 10.0, 6.0, 8.5, 11.0
LINE = 1.3  # the height of a label with its distance to the next, in font sizes
PAD, NAME_PAD, TITLE_PAD = 5.0, 4.0, 7.0

INK, FAINT, PAPER = "#22252b", "#6b7280", "#ffffff"
# Lightness decreases evenly (OKLab 0.97 to 0.26), so that equal steps of weight look equal. Weight 0 is near white.
COLOURS = LinearSegmentedColormap.from_list(
    "regard", ["#f1f5f8", "#b6e0ea", "#7bc7e3", "#59aad3", "#3d8bc3", "#2c6daf", "#2c4f90", "#263470", "#1d1a50"]
).with_extremes(bad="#e58e8e")


@dataclass(frozen=True)
class Panel:
    """A heat map: weights, labels in their written form, and the size of cells (inches) and labels (points)."""

    weights: NDArray[np.float64]
    rows: list[str]
    columns: list[str]
    title: str
    fonts: tuple[str, ...]
    cell: tuple[float, float] = (0.0, 0.0)
    font: float = FONT
    upright: bool = True
    steps: tuple[int, int] = (1, 1)
    named: bool = True

    @classmethod
    def of(cls, weights: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], title: str | None) -> Panel:
        """Make the panel with suitable cells: larger for few units, wider if that keeps labels upright."""
        row_labels, column_labels = [visible(unit) for unit in rows], [visible(unit) for unit in columns]
        heading = drawable(title or "")
        fonts = tuple(families([*row_labels, *column_labels, heading]))
        panel = cls(weights, row_labels, column_labels, heading, fonts)
        height, width = (min(CELLS[1], max(CELLS[0], 9 / n), LONGEST_SIDE / n) for n in weights.shape)
        needed = panel.widest(panel.columns, FONT) / POINTS
        if needed <= WIDEST_CELL and needed * len(columns) <= LONGEST_SIDE / 2:
            width = max(width, needed)
        width, height = min(width, max(2 * height, CELLS[0])), min(height, max(2 * width, CELLS[0]))
        return panel.fitted(width, height)

    def fitted(self, width: float, height: float) -> Panel:
        """Return the panel with labels that do not touch in such cells: upright if possible, smaller, thinned out."""
        wide, high = width * POINTS, height * POINTS
        font = min(FONT, max(SMALLEST_FONT, min(high, wide) / LINE))
        upright = self.widest(self.columns, font) <= wide
        steps = 1 if upright else math.ceil(font * LINE / wide), math.ceil(font * LINE / high)
        return replace(self, cell=(width, height), font=font, upright=upright, steps=steps)

    def widest(self, labels: Sequence[str], font: float) -> float:
        """Return the size of the widest label in points, with its distance to the next."""
        return max(text_width(label, self.fonts) for label in labels) * font + PAD

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the map alone, in inches."""
        return self.cell[0] * len(self.columns), self.cell[1] * len(self.rows)

    @property
    def left(self) -> float:
        """The width of the labels to the left of the map, in inches."""
        names = NAME_PAD + SMALL_FONT * LINE if self.named else 0.0
        return (self.widest(self.rows, self.font) + names) / POINTS

    @property
    def top(self) -> float:
        """The height of labels and title above the map, in inches."""
        labels = PAD + self.font if self.upright else self.widest(self.columns, self.font)
        names = NAME_PAD + SMALL_FONT * LINE if self.named else 0.0
        heading = TITLE_PAD + TITLE_FONT if self.title else 0.0
        return (labels + names + heading) / POINTS

    @property
    def width(self) -> float:
        """The width from the left of the labels to the end of the map, or of the title if that is longer, in inches."""
        return self.left + max(self.size[0], text_width(self.title, self.fonts) * TITLE_FONT / POINTS)


@lru_cache(maxsize=4096)
def text_width(text: str, fonts: tuple[str, ...]) -> float:
    """Return the width of a text in font sizes."""
    figure = Figure(dpi=POINTS)
    return figure.text(0, 0, text, fontsize=100, family=list(fonts), parse_math=False).get_window_extent().width / 100


def in_lines(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Arrange panels in lines, like words in a text; the first names its axes."""
    lines: list[list[Panel]] = [[]]
    for panel in (replace(panel, named=panel is panels[0]) for panel in panels):
        if lines[-1] and sum(p.width + GAP for p in lines[-1]) + panel.width > WIDEST_ROW:
            lines.append([])
        lines[-1].append(panel)
    return lines


def shrink(line: Sequence[Panel]) -> list[Panel]:
    """Shrink the cells of panels so that these fit in one line and can be compared at a glance."""
    side = min(SMALL_CELL, (LONGEST_SIDE / len(line) - GAP) / max(len(panel.columns) for panel in line))
    return [panel.fitted(side, side) for panel in line]


def compose(lines: Sequence[Sequence[Panel]]) -> Figure:
    """Draw lines of panels in one figure, with one scale of colours to the right."""
    tops = [max(panel.top for panel in line) for line in lines]
    heights = [max(panel.size[1] for panel in line) for line in lines]
    bar_height = min(max(heights[0], BAR_HEIGHTS[0]), BAR_HEIGHTS[1])
    bar_left = MARGIN + max(sum(panel.width + GAP for panel in line) for line in lines) - GAP / 2
    width = bar_left + BAR_WIDTH + BAR_LABEL + MARGIN
    below = max(0.0, bar_height - heights[0]) if len(lines) == 1 else 0.0
    height = 2 * MARGIN + sum(tops) + sum(heights) + GAP / 2 * (len(lines) - 1) + below
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER)

    def place(x: float, y: float, w: float, h: float) -> Axes:
        return figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))

    y, highest = MARGIN, _scale([panel for line in lines for panel in line])
    for line, top, line_height in zip(lines, tops, heights, strict=True):
        x, y = MARGIN, y + top
        for panel in line:
            image = draw(panel, place(x + panel.left, y, *panel.size), highest)
            x += panel.width + GAP
        y += line_height + GAP / 2
    label_scale(figure, image, place(bar_left, MARGIN + tops[0], BAR_WIDTH, bar_height), "attention weight")
    return figure


def _scale(panels: Sequence[Panel]) -> float:
    return scale_end(max(float(np.nanmax(panel.weights, initial=0.0)) for panel in panels))


def scale_end(largest: float) -> float:
    """Return the weight drawn darkest: 1, or the largest of all if that is below one half."""
    return 1.0 if largest >= 0.5 or largest == 0 else largest


def draw(panel: Panel, ax: Axes, highest: float | None = None) -> AxesImage:
    """Draw a fitted panel into the axes, whose position and size do not change."""
    highest = _scale([panel]) if highest is None else highest
    image = ax.imshow(panel.weights, cmap=COLOURS, vmin=0, vmax=highest, aspect="auto", interpolation="nearest")
    bare_axes(ax)
    ax.xaxis.set_ticks_position("top")
    ax.xaxis.set_label_position("top")
    (across, down), fonts = panel.steps, list(panel.fonts)
    style: dict[str, Any] = {"fontsize": panel.font, "family": fonts, "color": INK, "parse_math": False}
    turn: dict[str, Any] = {"va": "baseline"} if panel.upright else {"rotation": 90, "va": "bottom"}
    ax.set_xticks(range(0, len(panel.columns), across), panel.columns[::across], **style, **turn)
    ax.set_yticks(range(0, len(panel.rows), down), panel.rows[::down], **style)
    ax.tick_params(length=0, pad=PAD)
    if panel.named:
        ax.set_xlabel("input", color=FAINT, fontsize=SMALL_FONT, labelpad=NAME_PAD)
        ax.set_ylabel("output", color=FAINT, fontsize=SMALL_FONT, labelpad=NAME_PAD)
    if panel.title:
        heading: dict[str, Any] = {"fontsize": TITLE_FONT, "color": INK, "family": fonts, "parse_math": False}
        ax.set_title(panel.title, loc="left", pad=TITLE_PAD, **heading)
    if min(panel.cell) >= CELLS[0] / 2:
        ax.set_xticks(np.arange(1, len(panel.columns)) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, len(panel.rows)) - 0.5, minor=True)
        ax.grid(which="minor", color=PAPER, linewidth=1.2)
        ax.tick_params(which="minor", length=0)
    return image


def bare_axes(ax: Axes) -> None:
    """Remove the frame and the marks of ticks, and set the colours."""
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=SMALL_FONT, colors=FAINT, labelcolor=INK)


def label_scale(figure: Figure, image: ScalarMappable, ax: Axes, name: str) -> None:
    """Draw the scale of colours."""
    bar = figure.colorbar(image, cax=ax)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(nbins=4)
    bar.set_label(name, color=FAINT, fontsize=SMALL_FONT)
    bare_axes(ax)
