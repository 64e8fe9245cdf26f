"""The README's promises: its code runs, its commands work as they are written, its links lead somewhere."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.main import get_command

import regard as regard_package
from commands import MODEL, Command, spelt, table
from packaged import MINILM, folder_of
from regard.cli.app import app

pytest_plugins = ["command_fixtures"]

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The pages whose commands are followed, and which these are; those left out are long, or have nothing to go on with.
FOLLOWED = {
    "README.md": {"train", "predict", "evaluate", "look", "export"},
    "docs/transformers.md": {"train", "predict", "look"},
    "docs/tasks.md": {"train", "predict", "evaluate", "look"},
}
NOT_FOLLOWED = {"bench"}
SMALL = ["--dim", "16", "--heads", "2", "--feedforward", "16", "--layers", "1"]
OF_FILE = {"films.tsv": ["--embed-dim", "16"]}  # where the options of other models would mean nothing
FILES = {
    "pairs.tsv": "the dog runs.\tder Hund rennt.\na dog sleeps.\tein Hund schläft.\n" * 3,
    "forms.tsv": "Haus\tN;PL\tHäuser\nMaus\tN;PL\tMäuse\nMaus\tN;SG\tMaus\n",
    "sentences.conllu": "1\tdogs\t_\tNOUN\t_\t_\t_\t_\t_\t_\n2\trun\t_\tVERB\t_\t_\t_\t_\t_\t_\n\n"
    "1\tcats\t_\tNOUN\t_\t_\t_\t_\t_\t_\n2\tsleep\t_\tVERB\t_\t_\t_\t_\t_\t_\n\n",
    "films.tsv": "a lovely film\tgood\na dull film\tbad\nsuch a lovely story\tgood\nsuch a dull story\tbad\n" * 3,
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return [content for name, content in BLOCK.findall(text) if name == language]


def commands(text: str) -> list[list[str]]:
    """The arguments of every ``regard ...`` of a page, in blocks and in the text, without comment and redirection."""
    lines = [line for content in blocks(text, "sh") + blocks(text, "") for line in content.splitlines()]
    lines += re.findall(r"`(regard [a-z]+ [^`]*)`", BLOCK.sub("", text))
    found = (shlex.split(line, comments=True) for line in lines if line.startswith("regard "))
    return [words[1 : words.index(">") if ">" in words else None] for words in found]


def test_the_first_block_of_code_runs_and_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    (code, *_) = blocks(README, "python")
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["output"].shape == (2, 8, 5, 64)
    assert capsys.readouterr().out.startswith("torch.Size([2, 8, 5, 64]) torch.Size([2, 8, 5]) tensor([")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12


def test_the_second_looks_into_a_model_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    put_minilm(tmp_path)
    monkeypatch.chdir(tmp_path)
    _, code, *_ = blocks(README, "python")
    exec(compile(code, "README.md", "exec"), {"regard": regard_package})
    (line,) = [line for line in code.splitlines() if line.startswith("print")]
    assert capsys.readouterr().out.strip() == line.split("# ")[1]  # what the comment promises
    assert (tmp_path / "look.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def put_minilm(folder: Path) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "minilm").symlink_to(folder_of(MINILM) / "model", target_is_directory=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_is_one(page: Path) -> None:
    program = get_command(app)
    for name, *arguments in commands(page.read_text(encoding="utf-8")):
        program.commands[name].make_context(name, arguments)  # raises for what the command does not know


@pytest.mark.parametrize(("page", "names"), FOLLOWED.items(), ids=FOLLOWED)
def test_commands_work_in_their_order(
    page: str, names: set[str], tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = spelt(50)
    for name, rows in (("words.tsv", pairs[:40]), ("dev.tsv", pairs[40:45]), ("test.tsv", pairs[45:])):
        table(tmp_path / name, rows)
    (tmp_path / "new.txt").write_text("bad\ncab\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    if page == "README.md":
        put_minilm(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = set()
    for name, *arguments in commands((ROOT / page).read_text(encoding="utf-8")):
        if name == "train" and "--minutes" in arguments:
            arguments[arguments.index("--minutes") + 1] = "0.01"
            arguments += SMALL if "transformer" in arguments else OF_FILE.get(arguments[0], MODEL)
        elif name in NOT_FOLLOWED or name == "train":
            continue
        ended = regard(name, *arguments)
        assert ended.code == 0, ended
        if name == "predict" and "new.txt" in arguments:
            assert len(ended.out.splitlines()) == 2
        for option, file in itertools.pairwise(arguments):
            assert option != "--out" or (tmp_path / file).exists(), file
        done.add(name)
    assert done == names
    for run in (tmp_path / "runs").iterdir():
        assert {path.name for path in run.iterdir()} >= {"config.json", "model.safetensors"}


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for text in (page.read_text(encoding="utf-8") for page in PAGES):
        assert {a or b for a, b in re.findall(r"^make ([a-z]+)|`make ([a-z]+)", text, re.MULTILINE)} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), link
