"""Splits of the data of any task: the examples of a file, and a held-out part of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from regard._wording import counted_noun
from regard.data.storage import store
from regard.errors import ArgumentError, DataError

__all__ = ["Split", "split_off"]


class Split(Protocol):
    """The examples of one file or of a part of one, tuples of an input and a target, and notes for the user."""

    @property
    def examples(self) -> Sequence[Any]: ...

    @property
    def name(self) -> str: ...

    @property
    def notes(self) -> list[str]: ...


AnySplit = TypeVar("AnySplit", bound=Split)


def split_off(
    split: AnySplit, *, fraction: float = 0.1, at_most: int = 1000, seed: int = 0
) -> tuple[AnySplit, AnySplit]:
    """Return ``(train, dev)``: a fraction of the inputs, at most ``at_most``, is held out to select the best model.

    All examples of one input stay on the same side. Which inputs are held out depends on the seed and on the inputs,
    not on their order in the file. Raises `DataError` when there are fewer than two inputs.
    """
    if not 0 < fraction < 1 or at_most < 1:
        raise ArgumentError(f"expected a fraction between 0 and 1 and at_most >= 1, got {fraction} and {at_most}")
    inputs = {example[0] for example in split.examples}
    if len(inputs) < 2:
        raise DataError(
            f"expected at least two different inputs, because some are held out to select the best model, "
            f"found {len(inputs)}; add examples, or pass a separate file with --dev",
            file=split.name,
        )
    chosen = min(at_most, len(inputs) - 1, max(1, round(fraction * len(inputs))))
    held_out = set(sorted(inputs, key=lambda one: _hash(one, seed))[:chosen])
    train = store(example for example in split.examples if example[0] not in held_out)
    dev = [example for example in split.examples if example[0] in held_out]
    of_all = counted_noun(len(split.examples), "example")
    note = f"{split.name}: {len(dev):,} of {of_all} held out to select the best model (no --dev)"
    # Every split is a dataclass, which a protocol cannot express
    return (
        replace(split, examples=train, notes=[*split.notes, note]),  # type: ignore[type-var]
        replace(split, examples=dev, notes=[]),  # type: ignore[type-var]
    )


def _hash(units: tuple[str, ...], seed: int) -> bytes:
    return hashlib.blake2b("\t".join((str(seed), *units)).encode(), digest_size=16).digest()
