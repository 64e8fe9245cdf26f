"""Fixtures for tests of commands: a command to call, its standard input, and the run of a small model."""

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
    """Return a function that runs a command in this process: ``regard("predict", run, "-")``."""

    def run(*arguments: object) -> Ended:
        with as_before(), pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return Ended(end.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Return a function that sets the content of standard input."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a model that spells, trained once for all tests."""
    directory = tmp_path_factory.getbasetemp() / "trained"
    if not directory.exists():
        data = table(tmp_path_factory.getbasetemp() / "spelt.tsv", spelt())
        with as_before(), contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as end:
            main(["train", str(data), "--out", str(directory), "--label-smoothing", "0", *MODEL, *LEARNS])
        assert not end.value.code, said.getvalue()
    return directory
