"""Storage of examples on disk, for data that do not fit in memory: written once, then read like a list."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Generic, TypeVar, cast, overload

from regard._files import disk_errors
from regard.data.storage import stored_by
from regard.errors import RegardError

try:
    from datasets import Dataset, Features, Value
    from datasets.arrow_writer import ArrowWriter
except ModuleNotFoundError as error:
    raise RegardError(
        f"data on disk needs {error.name}, which is not installed: pip install 'regard[large]'"
    ) from error

__all__ = ["DiskSequence", "disk_store"]

T = TypeVar("T")

_CHUNK = 1000  # examples that are written, or read, at once
_COLUMN = "example"


class DiskSequence(Sequence[T], Generic[T]):
    """A sequence in a memory-mapped file of Arrow records, which the operating system caches in part.

    Items may be any Python objects. They are pickled, and unpickled without a check: read only files that this process,
    or another of the same training, has written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     words = DiskSequence.write(iter(["ab", "cde", "f"]), Path(folder) / "words.arrow")
    ...     len(words), words[1], words[1:], list(words)
    (3, 'cde', ['cde', 'f'], ['ab', 'cde', 'f'])
    """

    def __init__(self, path: Path) -> None:
        self._rows = Dataset.from_file(str(path))

    @classmethod
    def write(cls, items: Iterable[T], path: Path) -> DiskSequence[T]:
        """Write items one by one; `RunError` when the disk is full or the folder cannot be written."""
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            features = Features({_COLUMN: Value("binary")})
            with ArrowWriter(path=str(path), features=features, writer_batch_size=_CHUNK) as writer:
                for item in items:
                    writer.write({_COLUMN: pickle.dumps(item)})
                writer.finalize()
        return cls(path)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self.__getitems__(range(len(self))[index])
        return cast(T, pickle.loads(self._rows[index][_COLUMN]))

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return several items at once; a ``DataLoader`` calls this for a batch."""
        return [pickle.loads(row) for row in self._rows[indices][_COLUMN]]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), _CHUNK):
            yield from self[start : start + _CHUNK]


@contextmanager
def disk_store(folder: Path) -> Iterator[None]:
    """Within, store examples in files of ``folder``, one for each call of `store`; remove the folder at the end.

    >>> import tempfile
    >>> from regard.data.storage import store
    >>> with tempfile.TemporaryDirectory() as made, disk_store(Path(made) / "data"):
    ...     squares = store(n * n for n in range(4))
    ...     squares[2], list(store(n + 1 for n in squares))
    (4, [1, 2, 5, 10])
    """
    numbers = count()

    def write(examples: Iterable[T], /) -> DiskSequence[T]:
        return DiskSequence.write(examples, folder / f"{next(numbers)}.arrow")

    try:
        with stored_by(write):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
