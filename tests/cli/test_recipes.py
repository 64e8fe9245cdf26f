"""`regard recipes`: the list, the files of a recipe, their conversion, and a run."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from commands import Command, spelt, table
from regard.cli import published_figures as module
from regard.cli.app import app
from regard.cli.published_figures import RECIPES, PublishedFigure
from regard.cli.recipes import listed, prepared
from regard.errors import ArgumentError, DataError, RunError

pytest_plugins = ["command_fixtures"]

BY_NAME = {recipe.name: recipe for recipe in RECIPES}
LABELLED = PublishedFigure(
    "moods", "classify", "moods", "accuracy", "1", "us", ("a.train",), (), ("a.test",), "label first"
)
PARALLEL = PublishedFigure(
    "two", "seq2seq", "pairs", "BLEU", "1", "us", ("t.de", "t.en"), ("v.de", "v.en"), (), "parallel, lower case"
)


def published(folder: Path, recipe: PublishedFigure) -> Path:
    """Write made-up files under the names of a recipe, and return their folder."""
    for name in (*recipe.train, *recipe.dev, *recipe.test):
        (folder / name).write_text("1 a film\n", encoding="utf-8")
    return folder


def option(arguments: list[str], name: str) -> Path:
    return Path(arguments[arguments.index(name) + 1])


def test_names_are_told_apart() -> None:
    assert len(BY_NAME) == len(RECIPES) >= 17


@pytest.mark.parametrize("name", BY_NAME)
def test_every_recipe_is_a_command(name: str, tmp_path: Path) -> None:
    recipe = BY_NAME[name]
    data = published(tmp_path, recipe) if recipe.train else None
    (command, *arguments), *later = prepared(recipe, data, tmp_path / "run")
    context = get_command(app).commands[command].make_context(command, arguments)  # raises for an unknown option
    for another, *rest in later:
        assert get_command(app).commands[another].make_context(another, rest).params["run"] == tmp_path / "run"
    for part in (recipe.train, recipe.dev, recipe.test):
        assert len(part) in ((0, 2) if recipe.layout == "parallel, lower case" else (0, 1))
    assert context.params["task"] == (recipe.task if recipe.train else None)
    for part in ("dev", "test"):
        assert (context.params[part] is not None) == bool(getattr(recipe, part) and not (part == "test" and later))
    assert bool(later) == bool(recipe.evaluate)


def test_the_list_has_a_line_each(regard: Command) -> None:
    ended = regard("recipes")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(RECIPES) + 1]] == list(BY_NAME)
    assert all(recipe.source in ended.out and recipe.figure in ended.out for recipe in RECIPES)
    assert max(map(len, lines)) <= 120


def test_a_measured_figure_is_shown() -> None:
    (line,) = (line for line in listed((LABELLED, PARALLEL)).splitlines() if line.startswith("moods "))
    assert line.split()[-2:] == ["1", "-"]
    measured = PublishedFigure("x", "tag", "y", "accuracy", "1", "us", ours="97.3")
    assert listed((measured,)).splitlines()[1].endswith("97.3")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_labels_in_front_go_behind(tmp_path: Path, ending: str) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for name, text in (("a.train", "0 Was it  good ?\r\n1 höher .\n"), ("a.test", "1 so\n")):
        content = text.encode()
        (deep / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)
    arguments = prepared(LABELLED, tmp_path, tmp_path / "run")[0]
    assert Path(arguments[1]).read_bytes().decode() == "Was it  good ?\t0\nhöher .\t1\n"
    assert option(arguments, "--test").read_text(encoding="utf-8") == "so\t1\n"
    assert "--dev" not in arguments
    assert option(arguments, "--out") == tmp_path / "run"


def test_parallel_files_become_pairs_in_lower_case(tmp_path: Path) -> None:
    for name, text in (("t.de", "Ein  Haus\nÄpfel\n"), ("t.en", "A house\nApples\n"), ("v.de", "X\n"), ("v.en", "Y\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    arguments = prepared(PARALLEL, tmp_path, tmp_path / "run")[0]
    assert Path(arguments[1]).read_text(encoding="utf-8") == "ein haus\ta house\näpfel\tapples\n"
    assert option(arguments, "--dev").read_text(encoding="utf-8") == "x\ty\n"


def test_a_plain_file_goes_before_its_gz(tmp_path: Path) -> None:
    recipe = BY_NAME["tag-ewt"]
    published(tmp_path, recipe)
    (tmp_path / f"{recipe.train[0]}.gz").write_bytes(gzip.compress(b""))
    assert prepared(recipe, tmp_path, tmp_path / "run")[0][1] == str(tmp_path / recipe.train[0])


def test_files_that_are_not_there_or_twice_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected a\.test or a\.test\.gz at any depth in .*, found neither"):
        prepared(LABELLED, tmp_path, tmp_path / "run")
    published(tmp_path, LABELLED)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.train.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ArgumentError, match=r"expected one a\.train .* found .*a\.train and .*a\.train\.gz"):
        prepared(LABELLED, tmp_path, tmp_path / "run")


def test_faults_in_the_files_have_their_place(tmp_path: Path) -> None:
    published(tmp_path, LABELLED)
    (tmp_path / "a.train").write_text("0 good\nbad\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.train:2: expected a label, a space and a text"):
        prepared(LABELLED, tmp_path, tmp_path / "run")
    published(tmp_path, PARALLEL)
    (tmp_path / "t.en").write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"t\.de:2: expected as many lines as in .*t\.en"):
        prepared(PARALLEL, tmp_path, tmp_path / "run")


def test_a_run_that_is_there_keeps_its_data(tmp_path: Path) -> None:
    published(tmp_path, LABELLED)
    prepared(LABELLED, tmp_path, tmp_path / "run")
    (tmp_path / "run" / "config.json").touch()
    (tmp_path / "a.train").write_text("0 other\n", encoding="utf-8")
    with pytest.raises(RunError, match="expected a new directory, found a run"):
        prepared(LABELLED, tmp_path, tmp_path / "run")
    assert (tmp_path / "run" / "data" / "train.tsv").read_text(encoding="utf-8") == "a film\t1\n"


def test_wrong_use_is_one_line(regard: Command, tmp_path: Path) -> None:
    assert "expected the name of a recipe, got 'nothing'" in regard("recipes", "nothing").error
    assert "trec: expected --data FOLDER" in regard("recipes", "trec").error
    assert "expected a folder" in regard("recipes", "trec", "--data", tmp_path / "none").error
    assert "expected the NAME of a recipe" in regard("recipes", "--data", tmp_path).err


def test_a_recipe_prints_its_command_and_runs_it(
    regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ("--epochs", "1", "--embed-dim", "8", "--hidden-dim", "16")
    files_of = (("w",), ("w-dev",), ("w-test",))
    recipe = PublishedFigure(
        "spelt", "seq2seq", "s", "WER", "0", "us", *files_of, arguments=quick, evaluate=("--length-penalty", "1")
    )
    monkeypatch.setattr(module, "RECIPES", (recipe,))
    for name, rows in (("w", spelt(40)), ("w-dev", spelt(10, seed=2)), ("w-test", spelt(7, seed=3))):
        table(tmp_path / name, rows)
    run = tmp_path / "run"
    ended = regard("recipes", "spelt", "--data", tmp_path, "--out", run)
    assert ended.code == 0, ended
    files = [tmp_path / "w", "--dev", tmp_path / "w-dev"]
    command = ["regard", "train", *files, "--task", "seq2seq", *quick, "--out", run]
    assert shlex.split(ended.out.splitlines()[0]) == [str(word) for word in command]
    assert (run / "scores.json").exists()
    later = shlex.join(["regard", "evaluate", str(run), str(tmp_path / "w-test"), "--length-penalty", "1"])
    assert later in ended.out.splitlines()
    assert "7 pairs" in ended.out
