"""Heat maps of attention, one or many, and of position encodings, without pyplot or global state."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard.errors import ArgumentError, RegardError

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ModuleNotFoundError as error:
    raise RegardError("pictures need matplotlib, which is not installed: pip install 'regard[look]'") from error

from regard.look.pictures.layout import (
    DPI,
    FAINT,
    FONT,
    INK,
    PAPER,
    SMALL_FONT,
    Panel,
    bare_axes,
    compose,
    draw,
    in_lines,
    label_scale,
    shrink,
)

if TYPE_CHECKING:
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    Values = Tensor | ArrayLike

__all__ = ["Alignment", "alignment", "alignments", "grid", "position_encoding", "save"]

# From negative through near-white to positive; two neighbouring curves, a sine and its cosine, share a hue.
DIVERGING = LinearSegmentedColormap.from_list("signed", ["#1f4e8c", "#7fb2d9", "#f6f7f8", "#eeb27a", "#b5541c"])
CURVES = ["#1f4e8c", "#7fb2d9", "#b5541c", "#eeb27a", "#2f6b4f", "#8cc5a4"]


class Alignment(NamedTuple):
    """A heat map: weights `(Tout, Tin)`, the output's units (rows), the input's (columns), a title."""

    weights: Values
    rows: Sequence[str]
    columns: Sequence[str]
    title: str | None = None


def alignment(
    weights: Values,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw weights `(Tout, Tin)` as a heat map, outputs from top to bottom, inputs from left to right.

    The figure grows with the number of units, and labels never overlap: above some hundred units, or in an `ax` of your
    own (by its size at the call), they shrink, then only every second, third, … is written. A space appears as ␣,
    `<eos>` as ⏎, a character that no installed font has as its code point, a NaN in red. The scale ends at 1, or at
    the largest weight if that is below one half. The picture is that of Bahdanau, Cho & Bengio 2014, figure 3.

    Raises `ArgumentError` if the labels do not fit the weights, or the weights are not probabilities.

    >>> axes = alignment([[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]], ["AY", "<eos>"], "eye")
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['AY', '⏎']
    """
    panel = _panel(Alignment(weights, rows, columns, title))
    if ax is None:
        return compose([[panel]]).axes[0]
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ArgumentError("alignment: expected axes of a figure, got axes that were removed from theirs")
    box = ax.get_window_extent()
    draw(panel.fitted(box.width / figure.dpi / len(columns), box.height / figure.dpi / len(rows)), ax)
    return ax


def alignments(pictures: Iterable[Alignment]) -> Figure:
    """Draw several heat maps in one figure, in the order given, with one scale of colours.

    >>> figure = alignments([Alignment([[1.0]], ["AH"], ["a"], "a"), Alignment([[0.5, 0.5]], ["IH"], "in", "in")])
    >>> len(figure.axes)  # two maps and the scale
    3
    """
    panels = [_panel(Alignment(*picture)) for picture in pictures]
    if not panels:
        raise ArgumentError("alignments: expected at least one picture, got none")
    return compose(in_lines(panels))


def grid(lines: Iterable[Iterable[Alignment]]) -> Figure:
    """Draw small heat maps in lines, such as a line for each layer with all its heads, with one scale of colours.

    >>> figure = grid([[Alignment([[1.0]], ["AH"], ["a"], f"layer {i}, head {j}") for j in (1, 2)] for i in (1, 2)])
    >>> len(figure.axes)  # four maps and the scale
    5
    """
    panels = [[_panel(Alignment(*picture)) for picture in line] for line in lines]
    if not panels or not all(panels):
        raise ArgumentError("grid: expected lines with at least one picture each, got none")
    return compose([shrink(line) for line in panels])


def position_encoding(table: Values, *, dims: Sequence[int] | None = None, ax: Axes | None = None) -> Axes:
    """Draw a position table `(length, dim)` as a heat map, positions from left to right, dimensions downwards.

    For the sinusoids (Vaswani et al. 2017, section 3.5) each pair of rows is a slower wave than the pair above it. In
    a figure of its own the map has its scale, and below it some dimensions as curves: `dims`, or two pairs from the
    faster half. An `ax` of yours shows the map alone.

    Raises `ArgumentError` unless the table has two axes and the dimensions, and for `dims` together with `ax`.

    >>> position_encoding([[0.0, 1.0], [0.84, 0.54], [0.91, -0.42]]).get_ylabel()
    'dimension'
    """
    values = _matrix(table, "table", "(length, dim)")
    if ax is not None:
        if dims is not None:
            raise ArgumentError(
                "position_encoding: expected dims or ax, got both; remove ax, as curves need a figure of their own"
            )
        _map_positions(values, ax)
        return ax
    dim = values.shape[1]
    fast, slow = dim // 16 * 2, dim // 8 * 2
    chosen = sorted({fast, fast + 1, slow, slow + 1} & set(range(dim))) if dims is None else list(dims)
    if not all(0 <= j < dim for j in chosen):
        raise ArgumentError(f"position_encoding: expected dims from 0 to {dim - 1}, got {chosen}")
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(9.0, 6.2), dpi=DPI, facecolor=PAPER, layout=layout)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2), width_ratios=(60, 1))
    map_ax, bar_ax, curve_ax = (figure.add_subplot(cell) for cell in (grid[0, 0], grid[0, 1], grid[1, 0]))
    label_scale(figure, _map_positions(values, map_ax), bar_ax, "value")
    colours = dict(zip(chosen, CURVES * len(chosen), strict=False))
    for j, colour in colours.items():
        edge = map_ax.get_yaxis_transform()
        map_ax.plot((1.005, 1.014), (j, j), color=colour, linewidth=2.5, transform=edge, clip_on=False)
    _curves(values, colours, curve_ax)
    return map_ax


def _map_positions(values: NDArray[np.float64], ax: Axes) -> AxesImage:
    limit = _limit(values)
    image = ax.imshow(values.T, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    ax.set_ylabel("dimension", color=FAINT, fontsize=FONT)
    ax.set_xlim(-0.5, len(values) - 0.5)
    bare_axes(ax)
    return image


def _curves(values: NDArray[np.float64], colours: Mapping[int, str], ax: Axes) -> None:
    for j, colour in colours.items():
        ax.plot(np.arange(len(values)), values[:, j], color=colour, label=f"dimension {j}", linewidth=1.6)
    limit = _limit(values)
    ax.set(xlim=(-0.5, len(values) - 0.5), ylim=(-1.08 * limit, 1.08 * limit))
    ax.set_ylabel("value", color=FAINT, fontsize=FONT)
    ax.set_xlabel("position", color=FAINT, fontsize=FONT)
    bare_axes(ax)
    if colours:
        style = {"frameon": False, "fontsize": SMALL_FONT, "labelcolor": INK, "ncols": min(len(colours), 6)}
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), **style)


def _limit(values: NDArray[np.float64]) -> float:
    """Return the largest absolute number, which sets both ends of the scale."""
    return float(np.nanmax(np.abs(values), initial=0.0)) or 1.0


def save(picture: Axes | Figure, path: str | os.PathLike[str]) -> None:
    """Write the picture as PNG, SVG or PDF, by the name's ending, atomically, so that no partial file is visible.

    Raises `ArgumentError` for any other ending, `RegardError` if the file cannot be written.
    """
    target = Path(path)
    figure = picture if isinstance(picture, Figure) else picture.get_figure(root=True)
    if figure is None:
        raise ArgumentError("save: expected axes of a figure, got axes that were removed from theirs")
    kind = target.suffix.removeprefix(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise ArgumentError(f"save: expected a name that ends in .png, .svg or .pdf, got {target.name!r}")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        figure.savefig(partial, format=kind)
        partial.replace(target)
    except OSError as fault:
        reason = f"cannot write the picture {target}: {fault.strerror or fault}"
        raise RegardError(f"{reason}; choose another folder or free some space") from fault
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _panel(picture: Alignment) -> Panel:
    weights = _matrix(picture.weights, "weights", "(Tout, Tin)")
    if weights.shape != (len(picture.rows), len(picture.columns)):
        raise ArgumentError(
            f"alignment: expected weights of shape {(len(picture.rows), len(picture.columns))}, as many as labels, "
            f"got {weights.shape}; give one label for each row and column"
        )
    if not np.all(np.isnan(weights) | ((weights >= 0) & (weights <= 1.01))):  # half precision may round a little past 1
        raise ArgumentError(
            f"alignment: expected weights from 0 to 1, got {np.nanmin(weights):.3g} to {np.nanmax(weights):.3g}; "
            "take them after softmax, as from Observe(weights=True)"
        )
    return Panel.of(weights, picture.rows, picture.columns, picture.title)


def _matrix(values: Values, name: str, shape: str) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    array = np.asarray(values, np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise ArgumentError(f"expected {name} of shape {shape}, both above 0, got {array.shape}")
    return array
