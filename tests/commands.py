"""Running commands as a user does, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

MODEL = ["--embed-dim", "16", "--hidden-dim", "32"]
QUICK = [*MODEL, "--epochs", "1"]

Command = Callable[..., "Ended"]


class Ended(NamedTuple):
    """The result of a command: its exit status and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error it ended with, which must be one line without a traceback."""
        assert self.code == 1, self
        assert "Traceback" not in self.err
        *notes, last = self.err.splitlines()
        assert last.startswith("regard: error: ")
        assert not any(line.startswith("regard: error: ") for line in notes)
        return last.removeprefix("regard: error: ")


def spelt(count: int = 150, seed: int = 1) -> list[tuple[str, str]]:
    """Return words over the letters a to d, each with its spelling in capitals: "bad", "B A D"."""
    drawn = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(drawn.choice("abcd") for _ in range(drawn.randint(2, 5)))] = None
    return [(word, " ".join(word.upper())) for word in words]


def table(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return path


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Within, a command may change signal handlers, and warnings are errors; both are restored at the end."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    options, sys.warnoptions = sys.warnoptions, ["error"]
    try:
        yield
    finally:
        sys.warnoptions = options
        for number, handler in signals.items():
            signal.signal(number, handler)


def start(*arguments: object, path: Path | None = None, **options: object) -> subprocess.Popen[bytes]:
    """Start a command in a process of its own, with streams of bytes; ``path`` is a folder to import from first."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-m", "regard.cli", *map(str, arguments)], env=environment, **pipes)
