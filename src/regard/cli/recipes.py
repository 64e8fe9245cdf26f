"""`regard recipes`: list and run the trainings that are compared with published figures."""

from __future__ import annotations

import gzip
import os
import shlex
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from regard.errors import ArgumentError, DataError, RunError

if TYPE_CHECKING:
    from regard.cli.published_figures import PublishedFigure


def recipes(
    context: Context,
    name: Annotated[str | None, Argument(metavar="NAME", help="the recipe to run  [default: list all]")] = None,
    data: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="folder with its data files at any depth, by their original names, plain or .gz"),
    ] = None,
    out: Annotated[Path | None, Option(metavar="RUN", help="run directory to create  [default: runs/NAME]")] = None,
) -> None:
    """List recipes beside the published figures they are compared with, or run one.

    Prints the `regard train` command of a recipe before running it, and a `regard evaluate` command if the test needs
    other options. Data published in another format are first converted, into the folder `data` of the run.
    """
    from regard.cli.published_figures import RECIPES

    if name is None:
        if data is not None or out is not None:
            context.fail("--data and --out: expected the NAME of a recipe, got none; `regard recipes` lists the names")
        print(listed(RECIPES))
        return
    known = {recipe.name: recipe for recipe in RECIPES}
    if name not in known:
        raise ArgumentError(f"expected the name of a recipe, got {name!r}; `regard recipes` lists the names")
    recipe = known[name]
    if recipe.train and data is None:
        wanted = ", ".join(recipe.train + recipe.dev + recipe.test)
        raise ArgumentError(f"{name}: expected --data FOLDER, with these files at any depth: {wanted}; got none")
    regard = context.find_root().command
    for arguments in prepared(recipe, data, out or Path("runs") / name):
        print(shlex.join(["regard", *arguments]), flush=True)
        try:
            regard(args=arguments, prog_name="regard")
        except SystemExit as ended:
            if ended.code:
                raise


def listed(recipes: tuple[PublishedFigure, ...]) -> str:
    """Return the recipes as a table."""
    heads = ("name", "task", "data", "measure", "published", "ours")
    rows = [heads, *((r.name, r.task, r.about, r.metric, r.figure, r.ours or "-") for r in recipes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    names: dict[str, list[str]] = {}
    for recipe in recipes:
        names.setdefault(recipe.source, []).append(recipe.name)
    sources = (f"  {' … '.join(dict.fromkeys((of[0], of[-1])))}: {source}" for source, of in names.items())
    return "\n".join([*lines, "", "published by:", *sources])


def prepared(recipe: PublishedFigure, data: Path | None, out: Path) -> list[list[str]]:
    """Find and convert the files of a recipe; return the arguments of each ``regard`` command that it takes."""
    arguments, later = ["train"], list[list[str]]()
    found = {} if data is None else _found(data, {*recipe.train, *recipe.dev, *recipe.test})
    if recipe.layout != "as published" and (out / "config.json").exists():
        raise RunError(f"{out}: expected a new directory, found a run; choose another --out, or delete the run first")
    for option, names in (("", recipe.train), ("--dev", recipe.dev), ("--test", recipe.test)):
        if names:
            files = [found[name] for name in names]
            file = files[0]
            if recipe.layout != "as published":
                file = out / "data" / f"{option.removeprefix('--') or 'train'}.tsv"
                _write(file, _labelled(*files) if recipe.layout == "label first" else _paired(*files))
            if option == "--test" and recipe.evaluate:
                later.append(["evaluate", str(out), str(file), *recipe.evaluate])
            else:
                arguments += [*filter(None, [option]), str(file)]
    task = ["--task", recipe.task] if recipe.train else []
    return [[*arguments, *task, *recipe.arguments, "--out", str(out)], *later]


def _found(folder: Path, names: set[str]) -> dict[str, Path]:
    """Return the path of each file below a folder, with or without .gz."""
    if not folder.is_dir():
        raise ArgumentError(f"--data: expected a folder, got {folder}")
    places: dict[str, list[Path]] = {name: [] for name in names}
    for place, _, files in os.walk(folder):
        for file in {file.removesuffix(".gz"): file for file in sorted(files, reverse=True)}.values():
            places.get(file.removesuffix(".gz"), []).append(Path(place, file))
    for name, paths in sorted(places.items()):
        if not paths:
            raise ArgumentError(
                f"--data: expected {name} or {name}.gz at any depth in {folder}, found neither; add the file"
            )
        if len(paths) > 1:
            which = " and ".join(str(path) for path in sorted(paths)[:2])
            raise ArgumentError(
                f"--data: expected one {name} in {folder}, found {which}; choose a folder with only one"
            )
    return {name: paths[0] for name, paths in places.items()}


def _labelled(file: Path) -> Iterator[str]:
    """Yield ``text TAB label`` for each line of a label, a space and a text; a byte of TREC is not valid UTF-8."""
    content = file.read_bytes()
    text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        label, space, words = line.strip().partition(" ")
        if not space:
            raise DataError(
                "expected a label, a space and a text, found no space; download the file again", file=file, line=number
            )
        yield f"{words}\t{label}"


def _paired(source: Path, target: Path) -> Iterator[str]:
    """Yield ``source TAB target`` for the lines of two parallel files, in lower case."""
    from regard.data.lines import read_lines

    for number, sides in enumerate(zip_longest(read_lines(source), read_lines(target)), 1):
        if None in sides:
            ended, other = (source, target) if sides[0] is None else (target, source)
            message = f"expected as many lines as in {other}, found the end of the file; download both files again"
            raise DataError(message, file=ended, line=number)
        yield "\t".join(" ".join(side.lower().split()) for side in sides)


def _write(path: Path, lines: Iterator[str]) -> None:
    from regard._files import disk_errors, write_atomically

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))
