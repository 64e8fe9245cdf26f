"""Errors that are meant for the user: each message is one line, with the expected value, the actual one and a remedy.

    RegardError
    ├── ArgumentError     (ValueError)    a wrong argument: shapes, dtypes, masks, options
    ├── UnsupportedError  (RuntimeError)  a valid request that the chosen implementation cannot serve
    ├── DataError         (ValueError)    a fault in a data file, with file and line
    └── RunError                          a run directory that is damaged, of a newer version, or cannot be written
"""

from __future__ import annotations

from os import PathLike

__all__ = ["ArgumentError", "DataError", "RegardError", "RunError", "UnsupportedError"]


def __dir__() -> list[str]:
    return __all__


class RegardError(Exception):
    """The root of all errors that are meant for the user."""


class ArgumentError(RegardError, ValueError):
    """An argument has the wrong shape, dtype, kind or value."""


class UnsupportedError(RegardError, RuntimeError):
    """The request is valid, but the implementation chosen cannot serve it; the message names the switch to use."""


class DataError(RegardError, ValueError):
    """A data file has a fault; the message begins with ``file:line:`` where these are known.

    >>> str(DataError("expected one TAB, found none", file="words.tsv", line=3))
    'words.tsv:3: expected one TAB, found none'
    """

    def __init__(self, message: str, *, file: str | PathLike[str] | None = None, line: int | None = None) -> None:
        place = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(place + message)
        self.file = file
        self.line = line


class RunError(RegardError):
    """A run directory is missing, damaged, of a newer version, or cannot be written."""
