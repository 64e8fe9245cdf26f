"""Runs written by an earlier version open, predict the same strings, and resume.

`fixtures/runs.tar.xz` was written by the code at commit 64b5fe6: for each kind of model the folder of a training that
ended, the folder of the same training interrupted half way, an input, and what the finished model predicted for it.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from commands import Command

pytest_plugins = ["command_fixtures"]

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "runs.tar.xz"
KINDS = ["recurrent", "transformer", "tagger", "classifier"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with all runs, which name their data relative to it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_predicts_the_same_strings(kind: str, folder: Path, regard: Command) -> None:
    ended = regard("predict", f"{kind}-finished", f"{kind}.input")
    assert (ended.code, ended.out) == (0, (folder / f"{kind}.predicted").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_resumes_to_the_same_end(kind: str, folder: Path, regard: Command) -> None:
    ended = regard("train", "--resume", f"{kind}-interrupted")
    assert ended.code == 0, ended
    assert not (folder / f"{kind}-interrupted" / "resume.ckpt").exists()
    found = regard("predict", f"{kind}-interrupted", f"{kind}.input").out.splitlines()
    expected = (folder / f"{kind}.predicted").read_text(encoding="utf-8").splitlines()
    # On another processor the rest of the training rounds differently, which may change a word or two.
    assert len(found) == len(expected)
    assert sum(map(str.__eq__, found, expected)) >= 0.9 * len(expected)


def test_other_data_are_refused(folder: Path, regard: Command) -> None:
    lines = (folder / "words.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "words.tsv").write_text("\n".join([*lines[:-1], "bad\tB A D D"]) + "\n", encoding="utf-8")
    assert "restore them" in regard("train", "--resume", "recurrent-interrupted").error


def test_a_fingerprint_of_the_present_form_is_written(folder: Path, regard: Command) -> None:
    """It depends on the values of the examples alone, not on the classes that hold them."""
    regard("train", "words.tsv", "--out", "new", "--epochs", "1", "--embed-dim", "8", "--hidden-dim", "8")
    written = [json.loads((folder / run / "config.json").read_text()) for run in ("new", "recurrent-finished")]
    new, old = (config["training"]["fingerprint"] for config in written)
    assert new.startswith("values-")
    assert not old.startswith("values-")
