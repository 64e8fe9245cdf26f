"""The lines of text files: UTF-8, plain or gzip, or of standard input.

Only ``\\n`` and ``\\r\\n`` end a line: a quote, U+2028 or a form feed is text like any other.
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

__all__ = ["name_of", "read_lines"]

_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_lines(path: str | PathLike[str]) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or gzip, or of standard input (``"-"``), as they come; blank lines are kept.

    Raises ``DataError`` with file and line for what cannot be read or is not UTF-8.
    """
    name = name_of(path)
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                yield _text(raw, name, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"expected the gzip data to go on after this line, it is damaged ({error}); fetch or compress it again",
            file=name,
            line=number,
        ) from error
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}); check the path", file=name) from error


def name_of(path: str | PathLike[str]) -> str:
    """What a file is called in messages; a name need not be UTF-8, and must not break the line it stands in."""
    return "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "replace")


@contextmanager
def _open(path: str | PathLike[str]) -> Iterator[Iterable[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as stream:
        # Looking at the content, not at the name, also serves a pipe and a file without .gz in its name.
        if stream.peek(2)[:2] != _GZIP:
            yield stream
            return
        # GzipFile finds each line in Python code; a buffer over it does so in C.
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
            remedy = "convert the file from the encoding it has, for instance: iconv -f CP1252 -t UTF-8"
        raise DataError(f"expected UTF-8, found {found}; {remedy}", file=name, line=number) from error
    if number == 1:
        text = text.removeprefix("\ufeff")
    return text.removesuffix("\n").rstrip("\r")
