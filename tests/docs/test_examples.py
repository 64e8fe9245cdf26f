"""Tests that the examples run, and that the pages show what was measured."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "images" / "rnn_vs_attention.json"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("rnn_vs_attention", ROOT / "examples" / "rnn_vs_attention.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def quick(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("quick")
    example.main(["--quick", "--out", str(folder)])
    assert (folder / "rnn_vs_attention.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "rnn_vs_attention.json").read_text(encoding="utf-8"))


def test_a_near_symbol_is_remembered_by_all(quick: dict[str, Any]) -> None:
    for name, shares in quick["reach"]["accuracy"].items():
        assert min(shares) > 0.95, name


def test_only_what_sees_the_right_side_uses_it(example: ModuleType, quick: dict[str, Any]) -> None:
    left, right, end = (dict(zip(example.MODELS, column, strict=True)) for column in columns(quick["direction"]))
    chance = 1 / example.SYMBOLS
    assert max(right[example.ONE_WAY], end[example.ONE_WAY]) < 1.5 * chance
    assert min(left[example.ONE_WAY], left[example.BOTH_WAYS], right[example.BOTH_WAYS]) > 0.95
    assert min(end[name] for name in example.MODELS if name != example.ONE_WAY) > 0.95


def test_attention_needs_positions_to_know_a_neighbour(example: ModuleType, quick: dict[str, Any]) -> None:
    for task in (0, 1):
        shares = {name: row[task] for name, row in quick["direction"]["accuracy"].items()}
        assert shares[example.UNPLACED] < 0.5 < shares[example.PLACED]


def test_sizes_are_alike(quick: dict[str, Any]) -> None:
    sizes = quick["parameters"].values()
    assert max(sizes) < 1.1 * min(sizes)


@pytest.mark.parametrize("task", ["reach", "left", "right", "end"])
def test_targets_are_what_the_task_asks_for(example: ModuleType, task: str) -> None:
    x, y = example.draw_batch(task, 7, 5, torch.Generator().manual_seed(0))
    wanted = {"left": (x[:, :-1], y[:, 1:]), "right": (x[:, 1:], y[:, :-1])}
    if task in wanted:
        assert torch.equal(*wanted[task])
        assert (y != example.NOT_ASKED).sum() == 7 * 4
        assert x.max() < example.SYMBOLS
    else:
        mark = x[:, 0 if task == "reach" else -1] - example.SYMBOLS
        asked = y[:, -1:] if task == "reach" else y[:, :-1]
        assert torch.equal(asked, mark[:, None].expand_as(asked))
        assert (x >= example.SYMBOLS).sum() == 7
        assert (y != example.NOT_ASKED).sum() == asked.numel()


def test_two_trainings_are_alike(example: ModuleType) -> None:
    plan = example.Plan(dim=8, batch=5)
    one, two = (example.trained(example.PLACED, "left", plan, 3, lambda _: 7).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_part_alone_is_measured_anew(
    example: ModuleType, quick: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / KEPT.name).write_text(json.dumps(quick), encoding="utf-8")
    example.main(["--quick", "--only", "time", "--out", str(tmp_path)])
    anew = json.loads((tmp_path / KEPT.name).read_text(encoding="utf-8"))
    assert {part for part in quick if anew[part] != quick[part]} == {"time"}
    said = capsys.readouterr().out
    assert all(table in said for table in example.tables(anew).values())


def columns(direction: dict[str, Any]) -> list[list[float]]:
    return [list(column) for column in zip(*direction["accuracy"].values(), strict=True)]


def test_the_page_shows_what_was_measured(example: ModuleType) -> None:
    page = (ROOT / "docs" / "rnn_vs_attention.md").read_text(encoding="utf-8")
    values = json.loads(KEPT.read_text(encoding="utf-8"))
    for table in example.tables(values).values():
        assert table in page
