"""Imports point down: from a module to those of lower floors, within every folder too, and never in a circle.

The floors below are the rule. A module belongs to the longest name that it begins with. It may import its own room and
any room of a lower floor; rooms that share a floor do not import each other. Imports inside functions and under
TYPE_CHECKING count like all others.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# From the ground up; what stands on one line is side by side.
FLOORS = (
    ("regard.errors", "regard._eager", "regard._lazy", "regard._symbols", "regard._version", "regard._wording"),
    ("regard._files",),
    ("regard._kernels.dropout_mask", "regard._kernels.dtypes"),
    ("regard._kernels.cpu.loops", "regard._kernels.mask_parts"),
    ("regard._kernels.statistics",),
    ("regard._kernels.dropout",),
    ("regard._kernels.cpu", "regard._kernels.triton", "regard._kernels.reference", "regard._kernels.sdpa"),
    ("regard._kernels",),
    ("regard.functional", "regard.positions"),
    ("regard.nn",),
    ("regard.models", "regard.data"),
    ("regard.tasks",),
    ("regard.training", "regard.look.record"),
    ("regard.look.reading", "regard.look.watching"),
    ("regard.look.page", "regard.look.pictures"),
    ("regard.look.watch_record",),
    ("regard.look.watching.watch",),
    ("regard.look",),
    ("regard",),
    ("regard.bench",),
    ("regard.cli.messages", "regard.cli.published_figures", "regard.cli.train_plan"),
    ("regard.cli.tasks",),
    ("regard.cli",),
)
# Arrows that still point up, or into a neighbour's room: each must exist, so that none is kept here after it was cut.
NOT_YET_CUT: set[tuple[str, str]] = set()
NOT_YET_OPENED: set[frozenset[str]] = set()


def modules() -> dict[str, Path]:
    """Each module by its dotted name."""
    paths = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def imports(path: Path, known: set[str]) -> set[str]:
    """The modules of the package that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= within & known or {node.module}
    return found & known


ARROWS = {
    (name, target) for name, path in modules().items() for target in imports(path, set(modules())) if name != target
}


def room(module: str) -> tuple[int, str]:
    """The floor of a module, counted from the ground, and the name of its room."""
    rooms = [(floor, name) for floor, names in enumerate(FLOORS) for name in names]
    within = [(floor, name) for floor, name in rooms if module == name or module.startswith(f"{name}.")]
    return max(within, key=lambda found: len(found[1]))


def points_down(module: str, target: str) -> bool:
    (floor, name), (below, other) = room(module), room(target)
    return name == other or below < floor


def test_imports_point_down() -> None:
    assert {arrow for arrow in ARROWS if not points_down(*arrow)} == NOT_YET_CUT


def circles() -> set[frozenset[str]]:
    """Modules that import each other, directly or by others."""
    reached = {module: {target for name, target in ARROWS if name == module} for module in modules()}
    for middle in reached:  # Warshall's closure
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    found = (frozenset(other for other in reached[module] if module in reached[other]) for module in reached)
    return set(filter(None, found))


def test_no_modules_import_each_other() -> None:
    assert circles() == NOT_YET_OPENED


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("regard.functional.attention", "regard.nn._dropout"),  # up
        ("regard.look.watching.recorder", "regard.look.page.html"),  # up, within a folder
        ("regard.models.tagger", "regard.data.pairs"),  # into the room next door
        ("regard._kernels.cpu.additive", "regard._kernels.triton.additive"),  # a kernel into another
        ("regard._kernels.statistics.dot", "regard._kernels.cpu.dot_statistics"),
        ("regard.look.record", "regard.training.trainer"),
    ],
)
def test_the_rule_refuses(module: str, target: str) -> None:
    assert not points_down(module, target)
    assert points_down(target, module) == (room(target)[0] > room(module)[0])


def test_every_module_is_there_and_has_a_room() -> None:
    assert {name.split(".")[0] for name in modules()} == {"regard"}
    assert len(ARROWS) > 300
