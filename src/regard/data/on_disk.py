"""Examples on disk, for data that memory has no room for: written once, then read as if they were a list."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Generic, TypeVar, cast, overload

from regard._files import disk_errors
from regard.data.splits import Keep
from regard.errors import RegardError

try:
    from datasets import Dataset, Features, Value
    from datasets.arrow_writer import ArrowWriter
except ModuleNotFoundError as error:
    raise RegardError(
        f"data on disk needs {error.name}, which is not installed: pip install 'regard[large]'"
    ) from error

__all__ = ["Stored", "shelf"]

T = TypeVar("T")

_TOGETHER = 1000  # examples that are written, and read in turn, at once
_COLUMN = "example"


class Stored(Sequence[T], Generic[T]):
    """Examples in a file of Arrow records, mapped into memory: the operating system holds of it what it has room for.

    Each example comes back equal to what it was, whatever Python object it is. The file is for the process that wrote
    it, and for others of the same training, as it trusts what it holds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     words = Stored.write(iter(["ab", "cde", "f"]), Path(folder) / "words.arrow")
    ...     len(words), words[1], words[1:], list(words)
    (3, 'cde', ['cde', 'f'], ['ab', 'cde', 'f'])
    """

    def __init__(self, path: Path) -> None:
        self._rows = Dataset.from_file(str(path))

    @classmethod
    def write(cls, examples: Iterable[T], path: Path) -> Stored[T]:
        """Write examples as they come; `RunError` when the disk is full or the folder cannot be written."""
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            features = Features({_COLUMN: Value("binary")})
            with ArrowWriter(path=str(path), features=features, writer_batch_size=_TOGETHER) as writer:
                for example in examples:
                    writer.write({_COLUMN: pickle.dumps(example)})
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
        """Several examples at once; a ``DataLoader`` asks for a batch in this way."""
        return [pickle.loads(row) for row in self._rows[indices][_COLUMN]]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), _TOGETHER):
            yield from self[start : start + _TOGETHER]


@contextmanager
def shelf(folder: Path) -> Iterator[Keep]:
    """A place to keep examples in, each time in another file of a folder, which is removed at the end.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made, shelf(Path(made) / "data") as keep:
    ...     squares = keep(n * n for n in range(4))
    ...     squares[2], list(keep(n + 1 for n in squares))
    (4, [1, 2, 5, 10])
    """
    numbers = count()

    def keep(examples: Iterable[T], /) -> Stored[T]:
        return Stored.write(examples, folder / f"{next(numbers)}.arrow")

    try:
        yield keep
    finally:
        shutil.rmtree(folder, ignore_errors=True)
