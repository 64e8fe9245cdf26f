"""Lines of standard input; those of files are read in the tests of pairs."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from regard.data.lines import read_lines
from regard.errors import DataError


def test_lines_of_standard_input_come_as_they_are_written() -> None:
    code = "from regard.data.lines import read_lines\nfor line in read_lines('-'): print(repr(line), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        for line in ("猫\r\n", "\n", "no end"):
            child.stdin.write(line.encode())
            child.stdin.flush()
            if line.endswith("\n"):  # The answer comes before the next line, or the end of the input, is known.
                assert child.stdout.readline().decode().strip() == repr(line.rstrip("\r\n"))
        rest, errors = child.communicate(timeout=20)
    assert (rest.decode().strip(), errors) == ("'no end'", b"")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a\nb\xe9\n", "<stdin>:2: expected UTF-8, found byte 0xe9"),
        (gzip.compress(b"a", mtime=0), "gzip data; unpack it"),
    ],
)
def test_faults_of_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "in").write_bytes(raw)
    with (tmp_path / "in").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(DataError, match=message):
            list(read_lines("-"))
        assert not stream.buffer.closed


def test_an_empty_file_has_no_lines(write) -> None:
    assert list(read_lines(write(b""))) == []
