"""Storage of examples while they are read and encoded: in memory, or in the store that `stored_by` sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

__all__ = ["Store", "store", "stored_by"]

T = TypeVar("T")


class Store(Protocol):
    """A function that consumes examples one by one and returns them as a sequence, such as ``list``."""

    def __call__(self, examples: Iterable[T], /) -> Sequence[T]: ...


_STORE: ContextVar[Store] = ContextVar("store", default=list)


def store(examples: Iterable[T]) -> Sequence[T]:
    """Consume examples one by one and return them as a sequence: a list, or that of the store in use.

    >>> store(n * n for n in range(4))
    [0, 1, 4, 9]
    """
    return _STORE.get()(examples)


@contextmanager
def stored_by(chosen: Store) -> Iterator[None]:
    """Within the context, `store`, and so every reader of examples, uses the chosen store.

    >>> with stored_by(tuple):
    ...     store(n * n for n in range(4))
    (0, 1, 4, 9)
    """
    token = _STORE.set(chosen)
    try:
        yield
    finally:
        _STORE.reset(token)
