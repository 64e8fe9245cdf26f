"""Tokenizers, which split texts into units and join them again: characters, or units between separators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from regard.errors import ArgumentError

__all__ = ["SeparatorTokenizer", "Tokenizer", "guess_tokenizer"]


class Tokenizer(Protocol):
    """A map between a text and its units: `SeparatorTokenizer`, or `SubwordTokenizer` for learned units.

    ``name`` is its name in config.json; ``separator`` the text between two units, ``None`` for subwords; ``units`` the
    learned units, all of which belong to a vocabulary.
    """

    @property
    def name(self) -> str: ...

    @property
    def separator(self) -> str | None: ...

    @property
    def units(self) -> tuple[str, ...]: ...

    def split(self, text: str) -> list[str]:
        """Return the units of a text."""

    def join(self, units: Iterable[str]) -> str:
        """Return the text of units."""

    def to_json(self) -> str | None:
        """Return the content of its file in a run directory; ``None`` if its name is enough."""


@dataclass(frozen=True)
class SeparatorTokenizer:
    """A tokenizer without anything to learn: ``"chars"`` (code points), ``"words"`` (at spaces), or a separator.

    Repeated separators count as one, and those at either end are ignored, so that no unit is empty; but for these,
    ``join(split(text))`` is the text. ``split(join(units))`` returns the units if none contains the separator.

    Errors: `ArgumentError` for a separator that is empty, contains a TAB or a line end, or is a word (more likely a
    misspelt ``chars``).

    >>> SeparatorTokenizer("chars").split("ab"), SeparatorTokenizer("words").split("K AE T")
    (['a', 'b'], ['K', 'AE', 'T'])
    >>> SeparatorTokenizer("|").join(["a", "b"])
    'a|b'
    """

    name: str

    def __post_init__(self) -> None:
        misspelt = self.name not in ("chars", "words") and len(self.name) > 1 and self.name.isalpha()
        if not self.name or misspelt or any(end in self.name for end in "\t\r\n"):
            raise ArgumentError(
                f"units: expected 'chars', 'words', 'subword' (in training) or a separator such as '|', "
                f"neither a word nor with a TAB or line end, got {self.name!r}"
            )

    @property
    def separator(self) -> str:
        """The text between two units."""
        return {"chars": "", "words": " "}.get(self.name, self.name)

    @property
    def units(self) -> tuple[str, ...]:
        """No units: nothing is learned."""
        return ()

    def split(self, text: str) -> list[str]:
        """Return the units of a text."""
        return [unit for unit in text.split(self.separator) if unit] if self.separator else list(text)

    def join(self, units: Iterable[str]) -> str:
        """Return the text of units."""
        return self.separator.join(units)

    def to_json(self) -> None:
        """Return ``None``: the name is enough."""

    def __str__(self) -> str:
        if self.name == "chars":
            return "characters"
        return f"units separated by {'spaces' if self.name == 'words' else repr(self.name)}"


def guess_tokenizer(texts: Iterable[str]) -> SeparatorTokenizer:
    """Return the tokenizer for ``words`` if more than half of the texts have three words or more, else for ``chars``.

    Two words are not enough: names ("Ada Lovelace") and words of two syllables (Vietnamese) are read by character.

    >>> guess_tokenizer(["K AE T", "D AO G"]).name, guess_tokenizer(["Ada Lovelace", "Alan Turing"]).name
    ('words', 'chars')
    """
    long = [text.strip(" ").count(" ") > 1 for text in texts]
    return SeparatorTokenizer("words" if 2 * sum(long) > len(long) else "chars")
