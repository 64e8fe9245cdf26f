"""Lines of text files, UTF-8, plain or gzip, or of standard input.

Only ``\\n`` and ``\\r\\n`` end a line; quotes, U+2028 and form feeds are ordinary text.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from os import PathLike
from typing import cast

from regard.errors import DataError

__all__ = ["is_blank", "name_of", "quoted", "read_lines"]

_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_lines(path: str | PathLike[str]) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or gzip, or of standard input (``"-"``), blank ones included.

    Raises `DataError` with file and line for a file that cannot be read, or is not UTF-8.
    """
    name = name_of(path)
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                yield _text(raw, name, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"expected intact gzip data after this line, found damage ({error}); download or compress the file again",
            file=name,
            line=number,
        ) from error
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}); check the path", file=name) from error


def name_of(path: str | PathLike[str]) -> str:
    """Return the name of a file for messages, which are UTF-8, as file names need not be."""
    return "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "replace")


def is_blank(line: str) -> bool:
    """Return True for a line without text: at most spaces, and no TAB."""
    return not line or (line.isspace() and "\t" not in line)


def quoted(line: str) -> str:
    """Return a line quoted for a message, shortened to 40 characters."""
    return repr(line if len(line) <= 40 else line[:37] + "...")


@contextmanager
def _open(path: str | PathLike[str]) -> Iterator[Iterable[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as stream:
        # By content rather than by name, so that pipes and files without .gz are recognised too.
        if stream.peek(2)[:2] != _GZIP:
            yield stream
            return
        # GzipFile splits lines in Python, a buffer over it in C.
        with BufferedReader(cast(RawIOBase, gzip.GzipFile(fileobj=stream))) as lines:
            yield lines


def _text(raw: bytes, name: str, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1 and raw.startswith(_UTF16):
            found, remedy = "UTF-16", "convert the file: iconv -f UTF-16 -t UTF-8"
        elif number == 1 and raw.startswith(_GZIP):
            found, remedy = "gzip data", "unpack it first: zcat"
        else:
            found = f"byte 0x{raw[error.start]:02x} at offset {error.start} of the line"
            remedy = "convert the file from its encoding, for instance: iconv -f CP1252 -t UTF-8"
        raise DataError(f"expected UTF-8, found {found}; {remedy}", file=name, line=number) from error
    if number == 1:
        text = text.removeprefix("\ufeff")
    return text.removesuffix("\n").rstrip("\r")
