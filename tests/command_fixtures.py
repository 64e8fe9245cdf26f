"""A command to call, its standard input, and a small model for it to use."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import MODEL, Command, Ended, as_before, spelt, table
from regard.cli import main

LEARNS = ["--epochs", "30", "--lr", "0.02", "--warmup", "10", "--dropout", "0", "--batch-tokens", "150"]


@pytest.fixture
def regard(capsys: pytest.CaptureFixture[str]) -> Command:
    """A call such as ``regard("predict", run, "-")``: a command in this process, until it leaves."""

    def run(*arguments: object) -> Ended:
        with as_before(), pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return Ended(end.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Says what is to be read from standard input."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a model that spells; made once, read by many."""
    directory = tmp_path_factory.getbasetemp() / "trained"
    if not directory.exists():
        data = table(tmp_path_factory.getbasetemp() / "spelt.tsv", spelt())
        with as_before(), contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as end:
            main(["train", str(data), "--out", str(directory), "--label-smoothing", "0", *MODEL, *LEARNS])
        assert not end.value.code, said.getvalue()
    return directory
