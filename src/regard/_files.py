"""Writing a file so that a reader finds the old content or the new, never a part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import RunError

__all__ = ["write", "writing"]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, a disk that is full or a folder that cannot be written is a ``RunError``."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path} ({error.strerror or error}); free some space or choose another folder with --out"
        ) from error


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Let ``fill`` write a temporary neighbour of ``path``, then put it in its place in one step.

    Raises ``RunError`` when the disk is full or the folder cannot be written; the file before stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            fill(temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
