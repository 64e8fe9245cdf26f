"""Pictures of positions.md: python docs/pictures.py [FOLDER], by default docs/images."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Circle

from regard.look import position_encoding, save
from regard.look.pictures.heat_maps import CURVES
from regard.look.pictures.layout import COLOURS, DPI, FAINT, FONT, INK, PAPER, SMALL_FONT, bare_axes
from regard.positions import ALiBi, Rotary, T5Bias, sinusoidal

BLUE, PALE, ORANGE = CURVES[0], CURVES[1], CURVES[2]


def page(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER, layout="constrained")


def name(ax: Axes, title: str = "", x: str = "", y: str = "") -> None:
    bare_axes(ax)
    ax.set_title(title, loc="left", fontsize=FONT, color=INK)
    ax.set_xlabel(x, fontsize=SMALL_FONT, color=FAINT)
    ax.set_ylabel(y, fontsize=SMALL_FONT, color=FAINT)


def counter() -> Figure:
    """Draw the bits of 0 to 15, and for each digit a sine wave that is positive where the digit is 1."""
    figure = page(9.4, 3.9)
    left, right = figure.add_gridspec(1, 2, wspace=0.06)
    ax, numbers = figure.add_subplot(left), np.arange(16)
    bits = numbers >> np.arange(4)[:, None] & 1
    ax.imshow(bits, cmap=COLOURS, vmin=0, vmax=1.6, aspect="auto")
    for (row, column), bit in np.ndenumerate(bits):
        ax.text(column, row, str(bit), ha="center", va="center", fontsize=FONT, color=PAPER if bit else INK)
    ax.set_xticks(numbers)
    ax.set_yticks(range(4), ["ones", "twos", "fours", "eights"])
    name(ax, "A counter: each digit flips half as often", "number", "digit")
    ax.tick_params(labelsize=SMALL_FONT)
    rows = right.subgridspec(4, 1, hspace=0.08)
    fine = np.linspace(-0.5, 15.5, 500)
    for digit in range(4):
        ax = figure.add_subplot(rows[digit])
        ax.bar(numbers, 2 * bits[digit], width=1, bottom=-1, color="#dfe9f2", linewidth=0)
        ax.plot(fine, -np.sin(math.pi * (fine + 0.5) / 2**digit), color=BLUE, linewidth=1.6)
        ax.plot(numbers, -np.sin(math.pi * (numbers + 0.5) / 2**digit), "o", color=BLUE, markersize=3.5)
        ax.set(xlim=(-0.5, 15.5), ylim=(-1.15, 1.15), yticks=(-1, 1))
        ax.set_xticks(numbers if digit == 3 else [])
        last = "number" if digit == 3 else ""
        name(ax, "The same digits as sine waves" if digit == 0 else "", last)
    return figure


def clocks() -> Figure:
    """Draw two column pairs of the table as clock hands: two steps turn a hand by the same angle from anywhere."""
    base, dim, shift, starts = 16.0, 4, 2, (0, 3, 8)
    table = sinusoidal(max(starts) + shift + 1, dim, base).numpy()
    figure = page(7.6, 5.4)
    for hand in range(dim // 2):
        speed = base ** (-2 * hand / dim)
        for column, start in enumerate(starts):
            ax = figure.add_subplot(dim // 2, len(starts), hand * len(starts) + column + 1)
            ax.add_patch(Circle((0, 0), 1, facecolor="#f6f7f8", edgecolor="#c9ced6"))
            for place, colour in ((start, PALE), (start + shift, BLUE)):
                x, y = table[place, 2 * hand : 2 * hand + 2]
                arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0}
                ax.annotate("", (x, y), (0, 0), arrowprops=arrow)
                ax.text(1.17 * x, 1.17 * y, str(place), ha="center", va="center", fontsize=FONT, color=colour)
            until, since = (90 - math.degrees(place * speed) for place in (start, start + shift))
            ax.add_patch(Arc((0, 0), 0.8, 0.8, theta1=since, theta2=until, color=ORANGE, linewidth=2))
            middle = math.radians((until + since) / 2)
            label = f"{shift * speed:g}"
            ax.text(
                0.58 * math.cos(middle),
                0.58 * math.sin(middle),
                label,
                color=ORANGE,
                fontsize=FONT,
                ha="center",
                va="center",
            )
            ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", xticks=[], yticks=[])
            title = f"from {start} to {start + shift}" if hand == 0 else ""
            name(ax, "", "", f"hand {hand}: {speed:g} rad per step" if column == 0 else "")
            ax.set_title(title, fontsize=FONT, color=INK)
    return figure


def products() -> Figure:
    """Draw the products of all pairs of positions, and three rows as functions of the distance."""
    length, dim = 96, 64
    table = sinusoidal(length, dim).double().numpy()
    agree = table @ table.T
    figure = page(9.4, 3.9)
    left, right = figure.add_gridspec(1, 2, width_ratios=(1, 1.15))
    ax = figure.add_subplot(left)
    ax.imshow(agree, cmap=COLOURS, interpolation="nearest")
    name(ax, f"$P_i · P_k$, d = {dim}", "k", "i")
    ax = figure.add_subplot(right)
    for place, colour, style in ((20, PALE, "-"), (48, BLUE, "--"), (70, ORANGE, ":")):
        ax.plot(np.arange(length) - place, agree[place], style, color=colour, linewidth=2.2, label=f"i = {place}")
    ax.set_xlim(-50, 50)
    ax.legend(frameon=False, fontsize=SMALL_FONT, labelcolor=INK)
    name(ax, "Three of its rows, by distance", "distance k − i")
    return figure


def distances() -> Figure:
    """Draw how each encoding within attention depends on the distance."""
    at, here = torch.arange(-48, 49), torch.tensor([0])
    figure = page(9.4, 5.2)
    axes = figure.subplots(2, 2)
    for dim, colour in ((16, PALE), (64, BLUE)):
        rotary, same = Rotary(dim), torch.ones(1, 1, dim) / dim**0.5
        score = rotary.rotate(same, here) @ rotary.rotate(same.expand(1, len(at), dim), at).mT
        axes[0, 0].plot(at, score.flatten(), color=colour, linewidth=1.6, label=f"d = {dim}")
    name(axes[0, 0], "Rotary: q · k of equal vectors of length 1")
    bias = ALiBi(8).bias(torch.zeros(8, 1, 1), here, at)
    for head, colour in zip((0, 1, 2, 4), CURVES, strict=False):
        axes[0, 1].plot(at, bias[head, 0], color=colour, linewidth=1.6, label=f"head {head + 1}")
    axes[0, 1].set_ylim(-12, 0.6)
    name(axes[0, 1], "ALiBi, 8 heads: bias added to the score")
    axes[1, 0].step(at, T5Bias(1).bucket(at), where="mid", color=BLUE, linewidth=1.6, label="32 buckets up to 128")
    axes[1, 0].step(
        at,
        T5Bias(1, buckets=16, max_distance=32).bucket(at),
        where="mid",
        color=ORANGE,
        linewidth=1.6,
        label="16 up to 32",
    )
    name(axes[1, 0], "T5: index of the learned bias", "distance, key − query")
    axes[1, 1].plot(at, at.clamp(-16, 16), color=BLUE, linewidth=1.6, label="max_distance 16")
    axes[1, 1].plot(at, at.clamp(-4, 4), color=ORANGE, linewidth=1.6, label="max_distance 4")
    name(axes[1, 1], "Shaw: index of the learned vectors", "distance, key − query")
    for ax in axes.flat:
        ax.legend(frameon=False, fontsize=SMALL_FONT, labelcolor=INK, loc="upper left" if ax in axes[1] else "best")
    return figure


PICTURES = {
    "positions-counter.png": counter,
    "positions-table.png": lambda: position_encoding(sinusoidal(96, 32)),
    "positions-clocks.png": clocks,
    "positions-products.png": products,
    "positions-distances.png": distances,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, draw in PICTURES.items():
        save(draw(), folder / file)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
