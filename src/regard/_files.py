"""Atomic writes: a file has its old content or its new content at any time, never a part of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import RunError

__all__ = ["disk_errors", "write_atomically"]


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Within, turn an ``OSError``, as from a full disk or a read-only folder, into a `RunError` that names ``path``."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path} ({error.strerror or error}); free some space or choose another folder with --out"
        ) from error


def write_atomically(path: Path, fill: Callable[[Path], object]) -> None:
    """Have ``fill`` write a temporary file beside ``path``, then rename it to ``path`` in one step.

    Raises `RunError` when the disk is full or the folder cannot be written; the previous file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_errors(path):
        try:
            fill(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
