"""Vocabularies: the map between the units of texts and the ids of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from regard._symbols import BOS, EOS, PAD, SPECIALS, UNK
from regard.errors import ArgumentError, RunError

__all__ = ["Vocabulary"]


@dataclass(frozen=True)
class Vocabulary:
    """The units of the training data, sorted by code point, after the four special symbols.

    Unit ``units[i]`` has id ``i + 4``; the ids before it are PAD, UNK, BOS and EOS, which no unit of a text maps to: a
    unit that reads ``<pad>`` is an ordinary unit. The order depends on the set of units alone, so that equal data give
    equal ids.

    Errors: `ArgumentError` unless ``units`` are sorted and distinct; ``from_units`` sorts them.

    >>> vocabulary = Vocabulary.from_units("banana")
    >>> vocabulary.units
    ('a', 'b', 'n')
    >>> vocabulary.encode("bat"), vocabulary.unseen_units("bat")
    ([5, 4, 1], ['t'])
    >>> vocabulary.decode([2, 5, 4, 3, 0])
    ['b', 'a']
    """

    units: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if list(self.units) != sorted(set(self.units)):
            raise ArgumentError("expected units sorted and distinct; use Vocabulary.from_units, which takes any order")
        object.__setattr__(self, "_ids", {unit: i for i, unit in enumerate(self.units, start=len(SPECIALS))})

    @classmethod
    def from_units(cls, units: Iterable[str]) -> Vocabulary:
        """Build a vocabulary of units in any order, with repetitions.

        >>> Vocabulary.from_units(["T", "AA", "T"]).units
        ('AA', 'T')
        """
        return cls(tuple(sorted(set(units))))

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Read the output of ``to_json``; `RunError` for any other text.

        >>> Vocabulary.from_json('["a", "b"]').encode("ab")
        [4, 5]
        """
        try:
            units = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RunError(f"the vocabulary is not JSON ({error}); restore the file, or train again") from error
        strings = isinstance(units, list) and all(isinstance(unit, str) for unit in units)
        if not strings or units != sorted(set(units)):
            raise RunError(
                "expected a sorted JSON list of distinct strings as the vocabulary, found something else; "
                "restore the file, or train again"
            )
        return cls(tuple(units))

    def to_json(self) -> str:
        """Return the units as a JSON list, the same text for the same set of units.

        >>> Vocabulary.from_units("ba").to_json()
        '["a", "b"]'
        """
        return json.dumps(self.units, ensure_ascii=False)

    def __len__(self) -> int:
        """Return the number of ids, with the four special symbols."""
        return len(SPECIALS) + len(self.units)

    def encode(self, units: Iterable[str]) -> list[int]:
        """Return the ids of units, UNK for an unknown one, without BOS and EOS."""
        find = self._ids.get
        return [find(unit, UNK) for unit in units]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the units of ids up to the first EOS, without PAD and BOS; UNK becomes ``<unk>``.

        Raises `ArgumentError` for an id outside the vocabulary.
        """
        units = []
        for i in ids:
            if not 0 <= i < len(self):
                raise ArgumentError(f"expected ids from 0 to {len(self) - 1}, got {i}")
            if i == EOS:
                break
            if i not in (PAD, BOS):
                units.append(SPECIALS[UNK] if i == UNK else self.units[i - len(SPECIALS)])
        return units

    def unseen_units(self, units: Iterable[str]) -> list[str]:
        """Return the units, repetitions included, that ``encode`` turns into UNK."""
        return [unit for unit in units if unit not in self._ids]
