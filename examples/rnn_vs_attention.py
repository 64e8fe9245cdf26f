"""Measurement of recurrent networks against self-attention: reach, direction and parallelism, as tables and a figure.

    python examples/rnn_vs_attention.py [--only reach|direction|time] [--out FOLDER] [--quick]

Print Markdown tables, and write rnn_vs_attention.json and rnn_vs_attention.png to FOLDER (default: docs/images). With
--only, read the other parts from the JSON file. Needs no network; every result except the times is reproducible.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from regard.bench.measure import interleaved
from regard.look import save
from regard.look.pictures.heat_maps import CURVES
from regard.look.pictures.layout import DPI, FAINT, FONT, INK, PAPER, SMALL_FONT, bare_axes
from regard.nn import BlockConfig, TransformerEncoder
from regard.positions import Sinusoidal

SYMBOLS = 8  # noise symbols; there are as many marks, so accuracy by chance is 1 / SYMBOLS
NOT_ASKED = -100  # the target that cross_entropy ignores
LAYERS, HEADS = 2, 4

ONE_WAY, BOTH_WAYS = "GRU, unidirectional", "GRU, bidirectional"
UNPLACED, PLACED = "attention, no positions", "attention, sinusoids"
MIXED = "GRU, unidirectional, mixed distances"
STYLES: dict[str, dict[str, Any]] = {  # of the lines and bars
    ONE_WAY: {"color": CURVES[2], "marker": "o", "linestyle": "-"},
    BOTH_WAYS: {"color": CURVES[3], "marker": "s", "linestyle": "--"},
    UNPLACED: {"color": CURVES[1], "marker": "D", "linestyle": "-", "linewidth": 4},
    PLACED: {"color": CURVES[0], "marker": ".", "linestyle": "--"},
    MIXED: {"color": CURVES[4], "marker": "^", "linestyle": ":"},
}
MODELS = (ONE_WAY, BOTH_WAYS, UNPLACED, PLACED)
RATES = {ONE_WAY: 0.02, BOTH_WAYS: 0.02, UNPLACED: 0.003, PLACED: 0.003}  # the best of 0.003, 0.01 and 0.02
TASKS = {"left": "previous symbol", "right": "next symbol", "end": "mark at the end"}


@dataclass(frozen=True)
class Plan:
    """Sizes of the measurements."""

    dim: int = 64
    batch: int = 32
    distances: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    reach_updates: int = 100
    seeds: int = 3  # accuracy is their mean: the longest distance that a GRU learns depends on the seed
    length: int = 16  # of the sequences for direction
    updates: int = 300
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)  # of the timed sequences
    timed_batch: int = 8
    seconds: float = 2.0  # of timing, for each model and length


QUICK = Plan(
    batch=16,
    distances=(4,),
    reach_updates=60,
    seeds=1,
    length=6,
    updates=90,
    lengths=(8, 64),
    timed_batch=2,
    seconds=0.2,
)


class Recurrent(nn.GRU):
    """A GRU that returns its outputs without the final state."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class Labeller(nn.Module):
    """A model that predicts a symbol at each position; the models differ only between embedding and output layer.

    The widths of the GRUs give all models about the same number of parameters.
    """

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * SYMBOLS, dim)
        size = 3 * dim // 2 if name == ONE_WAY else 2 * dim if name == BOTH_WAYS else dim
        self.places = Sinusoidal(dim) if name == PLACED else nn.Identity()
        self.body: nn.Module
        if name in (ONE_WAY, BOTH_WAYS):
            both = name == BOTH_WAYS
            self.body = Recurrent(dim, size // (1 + both), batch_first=True, bidirectional=both)
        else:
            self.body = TransformerEncoder(BlockConfig(dim, HEADS, dim, dropout=0.0, norm_first=True), LAYERS)
        self.head = nn.Linear(size, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.places(self.embedding(x))))
        return scores


def draw_batch(task: str, count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return symbols and targets, both (count, length): noise and, for some tasks, a mark that is never noise."""
    x = torch.randint(SYMBOLS, (count, length), generator=generator)
    mark = torch.randint(SYMBOLS, (count,), generator=generator)
    y = torch.full_like(x, NOT_ASKED)
    if task == "left":
        y[:, 1:] = x[:, :-1]
    elif task == "right":
        y[:, :-1] = x[:, 1:]
    elif task == "end":
        x[:, -1] = SYMBOLS + mark
        y[:, :-1] = mark[:, None]
    else:  # at the last position, predict the mark at the first
        x[:, 0] = SYMBOLS + mark
        y[:, -1] = mark
    return x, y


def backward(model: Labeller, x: Tensor, y: Tensor) -> None:
    """Run a forward and a backward pass, which set the gradients of the mean loss."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()


def trained(
    name: str, task: str, plan: Plan, updates: int, length: Callable[[torch.Generator], int], seed: int = 0
) -> Labeller:
    """Train a model with Adam and a one-cycle learning rate; each update draws new sequences of the given length."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    model = Labeller(name, plan.dim)
    optimizer = torch.optim.Adam(model.parameters(), RATES[name])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATES[name], updates, cycle_momentum=False)
    for _ in range(updates):
        x, y = draw_batch(task, plan.batch, length(generator), generator)
        backward(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def accuracy(model: Labeller, task: str, length: int) -> float:
    """Return the accuracy on 512 sequences that were not used in training."""
    x, y = draw_batch(task, 512, length, torch.Generator().manual_seed(1000))
    right = model(x).argmax(-1) == y
    return round(right[y != NOT_ASKED].float().mean().item(), 3)


def reach(plan: Plan) -> dict[str, Any]:
    """Train a model for each distance, and one GRU on all distances from 1 to the longest; return accuracies."""

    def learned(name: str, length: Callable[[torch.Generator], int], distances: Sequence[int]) -> list[float]:
        models = [trained(name, "reach", plan, plan.reach_updates, length, seed) for seed in range(plan.seeds)]
        return [round(mean(accuracy(model, "reach", d + 1) for model in models), 3) for d in distances]

    def mixed(generator: torch.Generator) -> int:
        return 1 + int(torch.randint(1, max(plan.distances) + 1, (), generator=generator))

    found = {
        name: [share for d in plan.distances for share in learned(name, lambda _, d=d: d + 1, [d])] for name in MODELS
    }
    found[MIXED] = learned(ONE_WAY, mixed, plan.distances)
    return {"distances": plan.distances, "updates": plan.reach_updates, "seeds": plan.seeds, "accuracy": found}


def direction(plan: Plan) -> dict[str, Any]:
    """Train a model for each of TASKS, and for the first also with a sixth of the updates; return accuracies."""

    def learned(name: str, task: str, updates: int) -> float:
        return accuracy(trained(name, task, plan, updates, lambda _: plan.length), task, plan.length)

    early = plan.updates // 6
    return {
        "tasks": list(TASKS),
        "updates": plan.updates,
        "accuracy": {name: [learned(name, task, plan.updates) for task in TASKS] for name in MODELS},
        "early": {"updates": early, "accuracy": {name: learned(name, "left", early) for name in MODELS}},
    }


def times(plan: Plan) -> dict[str, Any]:
    """Time a forward and a backward pass of each model in turn; return milliseconds."""
    models = {name: Labeller(name, plan.dim) for name in MODELS}
    found: dict[str, list[float]] = {name: [] for name in MODELS}
    for length in plan.lengths:
        x, y = draw_batch("left", plan.timed_batch, length, torch.Generator().manual_seed(0))
        calls = {name: partial(backward, model, x, y) for name, model in models.items()}
        for name, seconds in interleaved(calls, plan.seconds * len(MODELS)).items():
            found[name].append(round(1e3 * seconds, 2))
    return {"lengths": plan.lengths, "batch": plan.timed_batch, "threads": torch.get_num_threads(), "ms": found}


PARTS: dict[str, Callable[[Plan], dict[str, Any]]] = {"reach": reach, "direction": direction, "time": times}


def tables(values: dict[str, Any]) -> dict[str, str]:
    """Return a Markdown table for each part."""

    def table(corner: str, columns: list[Any], rows: dict[str, list[float]], form: str) -> str:
        head = [corner, *map(str, columns)]
        lines = [head, ["---"] * len(head), *([name, *(format(v, form) for v in row)] for name, row in rows.items())]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    far, sides, clock = (values[part] for part in PARTS)
    early = sides["early"]
    asked = [*(TASKS[task] for task in sides["tasks"]), f"{TASKS['left']}, after {early['updates']} updates"]
    right = {name: [*shares, early["accuracy"][name]] for name, shares in sides["accuracy"].items()}
    return {
        "reach": table("steps back", far["distances"], far["accuracy"], ".2f"),
        "direction": table("target", asked, right, ".2f"),
        "time": table("length", clock["lengths"], clock["ms"], ".1f"),
    }


def figure(values: dict[str, Any]) -> Figure:
    """Draw three panels, one for each part."""
    page = Figure(figsize=(12.6, 4.3), dpi=DPI, facecolor=PAPER, layout="constrained")
    far, sides, clock = page.subplots(1, 3)
    for name, shares in values["reach"]["accuracy"].items():
        far.plot(values["reach"]["distances"], shares, label=name, **STYLES[name])
    _label(far, "Reach: recall the first symbol", "steps back", "accuracy")
    _logarithmic(far, values["reach"]["distances"])
    width = 0.8 / len(MODELS)
    for k, (name, shares) in enumerate(values["direction"]["accuracy"].items()):
        at = [group + (k - (len(MODELS) - 1) / 2) * width for group in range(len(shares))]
        bars = sides.bar(at, shares, 0.92 * width, color=STYLES[name]["color"])
        sides.bar_label(bars, [f"{share:.2f}" for share in shares], fontsize=6.5, color=INK, padding=1)
    sides.set_xticks(range(len(TASKS)), [TASKS[task] for task in values["direction"]["tasks"]])
    _label(sides, "Direction: predict at each position", "", "accuracy")
    for ax in (far, sides):
        ax.axhline(1 / SYMBOLS, color=FAINT, linewidth=1, linestyle=(0, (1, 2)))
        ax.set_ylim(0, 1.09)
    far.annotate("chance", (min(values["reach"]["distances"]), 1 / SYMBOLS), (0, 3), textcoords="offset points")
    far.texts[-1].set(fontsize=SMALL_FONT, color=FAINT)
    for name, milliseconds in values["time"]["ms"].items():
        clock.plot(values["time"]["lengths"], milliseconds, **STYLES[name])
    clock.set_yscale("log")
    clock.yaxis.set_major_formatter("{x:g}")
    clock.minorticks_off()
    _label(clock, f"Parallelism: forward and backward, {values['time']['batch']} sequences", "length", "milliseconds")
    _logarithmic(clock, values["time"]["lengths"])
    page.legend(loc="outside lower center", ncols=len(STYLES), frameon=False, fontsize=SMALL_FONT, labelcolor=INK)
    return page


def _label(ax: Axes, title: str, x: str, y: str) -> None:
    bare_axes(ax)
    ax.tick_params(labelsize=SMALL_FONT)
    ax.set_title(title, loc="left", fontsize=FONT, color=INK)
    ax.set_xlabel(x, fontsize=SMALL_FONT, color=FAINT)
    ax.set_ylabel(y, fontsize=SMALL_FONT, color=FAINT)


def _logarithmic(ax: Axes, ticks: list[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", choices=PARTS, help="measure only this part, and read the others from the JSON file")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "images")
    parser.add_argument("--quick", action="store_true", help="use small sizes, to check that everything runs")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else Plan()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "rnn_vs_attention.json"
    values = json.loads(kept.read_text(encoding="utf-8")) if options.only and kept.exists() else {}
    values["parameters"] = {name: sum(p.numel() for p in Labeller(name, plan.dim).parameters()) for name in MODELS}
    for part in [options.only] if options.only else PARTS:
        begin = time.perf_counter()
        values[part] = PARTS[part](plan)
        print(f"{part}: {time.perf_counter() - begin:.0f} s", flush=True)
        kept.write_text(json.dumps(values) + "\n", encoding="utf-8")
    if PARTS.keys() <= values.keys():
        for table in tables(values).values():
            print(f"\n{table}")
        save(figure(values), kept.with_suffix(".png"))


if __name__ == "__main__":
    main()
