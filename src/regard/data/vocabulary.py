"""The map between the units of a text and the ids of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from regard._symbols import BOS, EOS, PAD, SPECIALS, UNK
from regard.errors import ArgumentError, RunError

__all__ = ["Vocabulary"]


@dataclass(frozen=True)
class Vocabulary:
    """The units that training saw, sorted by code point, after the four symbols of the model.

    Unit ``units[i]`` has id ``i + 4``; the ids before are PAD, UNK, BOS and EOS, which no text can spell: a unit that
    reads ``<pad>`` is an ordinary unit. The order depends on the set of units alone, so equal data give equal ids.

    Raises ``ArgumentError`` when ``units`` are not sorted and distinct; ``from_units`` sorts them.

    >>> vocabulary = Vocabulary.from_units("banana")
    >>> vocabulary.units
    ('a', 'b', 'n')
    >>> vocabulary.encode("bat"), vocabulary.unseen("bat")
    ([5, 4, 1], 1)
    >>> vocabulary.decode([2, 5, 4, 3, 0])
    ['b', 'a']
    """

    units: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if list(self.units) != sorted(set(self.units)):
            raise ArgumentError("expected units sorted and distinct; Vocabulary.from_units takes them in any order")
        object.__setattr__(self, "_ids", {unit: i for i, unit in enumerate(self.units, start=len(SPECIALS))})

    @classmethod
    def from_units(cls, units: Iterable[str]) -> Vocabulary:
        """Collect the units of a text, in any order and with repetitions.

        >>> Vocabulary.from_units(["T", "AA", "T"]).units
        ('AA', 'T')
        """
        return cls(tuple(sorted(set(units))))

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Read what ``to_json`` wrote; ``RunError`` when it is anything else.

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
                "expected the vocabulary to be a sorted JSON list of distinct strings, and it is not: "
                "ids would no longer mean what the model learned; restore the file, or train again"
            )
        return cls(tuple(units))

    def to_json(self) -> str:
        """The units as a JSON list, the same text for the same set of units.

        >>> Vocabulary.from_units("ba").to_json()
        '["a", "b"]'
        """
        return json.dumps(self.units, ensure_ascii=False)

    def __len__(self) -> int:
        """The number of ids, the four symbols included."""
        return len(SPECIALS) + len(self.units)

    def encode(self, units: Iterable[str]) -> list[int]:
        """The ids of units, UNK for one that training never saw; no BOS or EOS is added."""
        find = self._ids.get
        return [find(unit, UNK) for unit in units]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The units of ids up to the first EOS, without PAD and BOS; UNK reads ``<unk>``.

        Raises ``ArgumentError`` for an id outside the vocabulary.
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

    def unseen(self, units: Iterable[str]) -> int:
        """How many of the units, repetitions counted, ``encode`` would turn into UNK."""
        return sum(unit not in self._ids for unit in units)
