"""Pairs of texts in, examples of units out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard._wording import counted_noun
from regard.data.lines import name_of, read_lines
from regard.data.pair_columns import PLAIN, Normal, feature_units, normalize
from regard.data.pair_rows import Texts, is_blank, read_texts, shown
from regard.data.storage import store
from regard.data.vocabulary import Vocabulary
from regard.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from regard.data.subwords import Subwords

__all__ = [
    "Example",
    "Pairs",
    "Units",
    "cut",
    "guess_units",
    "learn_units",
    "read_pairs",
    "read_sources",
    "source_text",
    "split_source",
    "unseen_notes",
    "vocabularies",
]


class Example(NamedTuple):
    """One pair, in units."""

    source: tuple[str, ...]
    target: tuple[str, ...]


@dataclass(frozen=True)
class Units:
    """How a text falls into units: ``"chars"`` (code points), ``"words"`` (at spaces), or at a separator of yours.

    Several separators in a row count as one, and those at the ends as none, so no unit is empty; but for these,
    ``join(split(text))`` is the text. ``split(join(units))`` gives the units back when they share no character with
    the separator.

    Raises ``ArgumentError`` for a separator that is empty, holds a TAB or a line end, or is a word
    (more likely a misspelt ``chars``).

    >>> Units("chars").split("ab"), Units("words").split("K AE T"), Units("|").join(["a", "b"])
    (['a', 'b'], ['K', 'AE', 'T'], 'a|b')
    """

    name: str

    def __post_init__(self) -> None:
        misspelt = self.name not in ("chars", "words") and len(self.name) > 1 and self.name.isalpha()
        if not self.name or misspelt or any(end in self.name for end in "\t\r\n"):
            raise ArgumentError(
                f"expected units to be 'chars', 'words' or a separator such as '|', without letters, TAB or line end, "
                f"or 'subword' to train with; got {self.name!r}"
            )

    @property
    def separator(self) -> str:
        """What stands between two units."""
        return {"chars": "", "words": " "}.get(self.name, self.name)

    def split(self, text: str) -> list[str]:
        """The units of a text."""
        return [unit for unit in text.split(self.separator) if unit] if self.separator else list(text)

    def join(self, units: Iterable[str]) -> str:
        """The text of units."""
        return self.separator.join(units)

    def __str__(self) -> str:
        return self.name if self.name in ("chars", "words") else f"separated by {self.name!r}"


@dataclass(frozen=True)
class Pairs:
    """The examples of one file (or of a part of one), how they were read and cut, and what is to be said of them."""

    examples: Sequence[Example]
    source_units: Units | Subwords
    target_units: Units | Subwords
    name: str
    notes: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = PLAIN
    normal: Normal = "none"

    def __len__(self) -> int:
        return len(self.examples)


def guess_units(texts: Iterable[str]) -> Units:
    """``words`` when more than half of the texts have three words or more, ``chars`` otherwise.

    Two do not suffice: names ("Ada Lovelace") and words of two syllables (Vietnamese) are to be read by character.

    >>> guess_units(["K AE T", "D AO G"]).name, guess_units(["Ada Lovelace", "Alan Turing"]).name
    ('words', 'chars')
    """
    long = [text.strip(" ").count(" ") > 1 for text in texts]
    return Units("words" if 2 * sum(long) > len(long) else "chars")


def learn_units(
    texts: Texts, source: str | None, target: str | None, *, size: int, shared: bool = False
) -> tuple[Units | Subwords | None, Units | Subwords | None]:
    """Units of both sides by their names; ``"subword"`` is learnt from the texts of its side, ``None`` stays.

    ``shared`` subwords are learnt from the texts of both sides together.
    """
    names = (source, target)
    columns = ((row.source for row in texts.rows), (row.target for row in texts.rows))
    if "subword" not in names:
        return _named(source), _named(target)
    from regard.data.subwords import Subwords

    if shared and names == ("subword", "subword"):
        both = Subwords.from_texts(chain(*columns), size)
        return both, both
    first, second = (
        Subwords.from_texts(column, size) if name == "subword" else _named(name)
        for name, column in zip(names, columns, strict=True)
    )
    return first, second


def _named(name: str | None) -> Units | None:
    return None if name is None else Units(name)


def read_pairs(
    path: str | PathLike[str],
    source_units: Units | Subwords | None = None,
    target_units: Units | Subwords | None = None,
    *,
    columns: Sequence[str] | None = None,
    normal: Normal = "none",
    max_length: int = 200,
) -> Pairs:
    """Read a file of pairs and cut it into units: `read_texts`, then `cut`."""
    texts = read_texts(path, columns=columns, normal=normal)
    return cut(texts, source_units, target_units, max_length=max_length)


def cut(
    texts: Texts,
    source_units: Units | Subwords | None = None,
    target_units: Units | Subwords | None = None,
    *,
    max_length: int = 200,
) -> Pairs:
    """Cut texts into units; those that are ``None`` are guessed, and a note says so.

    Pairs with a side of more than ``max_length`` units are left out, duplicates and sources with several targets kept;
    the notes count them all. Features are units of the source, before the others. Raises ``DataError``
    with file, line and remedy for a side that holds nothing but separators, and when no pair is left.
    """
    if max_length < 1:
        raise ArgumentError(f"expected max_length of at least 1, got {max_length}")
    guessed = list(texts.guessed)
    if source_units is None:
        source_units = guess_units(row.source for row in texts.rows)
        guessed.append(f"source in {source_units}")
    if target_units is None:
        target_units = guess_units(row.target for row in texts.rows)
        guessed.append(f"target in {target_units}")
    left_out: list[int] = []
    examples = store(_cut(texts, source_units, target_units, max_length, left_out))
    if not examples:
        raise DataError(
            f"expected pairs of at most {max_length} units a side, found none ({len(left_out):,} longer); "
            f"raise --max-length, or cut the texts",
            file=texts.name,
            line=left_out[0],
        )
    notes = [_summary(texts.name, examples)]
    if guessed:
        notes.append(f"{texts.name}: {', '.join(guessed)} (guessed)")
    if left_out:
        notes.append(
            f"{texts.name}: {counted_noun(len(left_out), 'pair')} of more than {max_length} units left out "
            f"(first: line {left_out[0]}); --max-length raises the limit"
        )
    return Pairs(examples, source_units, target_units, texts.name, [*notes, *texts.notes], texts.columns, texts.normal)


def _cut(
    texts: Texts, source_units: Units | Subwords, target_units: Units | Subwords, max_length: int, left_out: list[int]
) -> Iterator[Example]:
    """The examples; the numbers of the lines that are too long, and so not among them, go to ``left_out``."""
    # Interned, equal units are one object: a large file takes a fraction of the memory.
    for number, source_side, features, target_side in texts.rows:
        source = tuple(map(sys.intern, source_units.split(source_side)))
        target = tuple(map(sys.intern, target_units.split(target_side)))
        if not source or not target:
            side = "target" if source else "source"
            raise DataError(
                f"expected text on both sides, the {side} holds nothing but separators; fill it in or delete the line",
                file=texts.name,
                line=number,
            )
        source = (*map(sys.intern, feature_units(features)), *source)
        if len(source) > max_length or len(target) > max_length:
            left_out.append(number)
        else:
            yield Example(source, target)


def _summary(name: str, examples: Sequence[Example]) -> str:
    # By their hashes, which take a tenth of the memory that the examples themselves would
    hashes = np.fromiter((hash(side) for pair in examples for side in (pair, pair.source)), np.int64)
    distinct, firsts = np.unique(hashes[::2], return_index=True)
    _, targets = np.unique(hashes[1::2][firsts], return_counts=True)
    several = int((targets > 1).sum())
    found = []
    if len(distinct) < len(examples):
        found.append(counted_noun(len(examples) - len(distinct), "duplicate"))
    if several:
        found.append(f"{counted_noun(several, 'source')} with more than one target")
    return f"{name}: {counted_noun(len(examples), 'pair')}" + ("; " + ", ".join(found) if found else "")


def vocabularies(pairs: Pairs, *, shared: bool = False) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of both sides: all units of the examples, and all that subwords can be cut into.

    ``shared`` gives one vocabulary, of both sides together, twice.
    """
    source = {unit for example in pairs.examples for unit in example.source}.union(_learnt(pairs.source_units))
    target = {unit for example in pairs.examples for unit in example.target}.union(_learnt(pairs.target_units))
    if shared:
        both = Vocabulary.from_units(source | target)
        return both, both
    return Vocabulary.from_units(source), Vocabulary.from_units(target)


def _learnt(units: Units | Subwords) -> Iterable[str]:
    return () if isinstance(units, Units) else units.units


def split_source(
    line: str,
    units: Units | Subwords,
    columns: Sequence[str] = PLAIN,
    normal: Normal = "none",
    *,
    name: str | None = None,
    number: int | None = None,
) -> list[str]:
    """The units of a line that asks for an answer: a source, or SOURCE TAB FEATURES where ``columns`` have features.

    Nothing comes of a blank line. Raises ``DataError`` when features are needed and not there.

    >>> split_source("go\\tV;PST", Units("chars"), ("source", "target", "features"))
    ['\\tV', '\\tPST', 'g', 'o']
    """
    line = normalize(line, normal)
    if "features" not in columns:
        return units.split(line)
    if is_blank(line):
        return []
    source, _, features = line.partition("\t")
    found = feature_units(features)
    if not source.strip() or not found or "\t" in features:
        fault = f"{counted_noun(line.count(chr(9)), 'TAB')} in {shown(line)}"
        raise DataError(
            f"expected SOURCE TAB FEATURES, as the model was trained with features, found {fault}; give both",
            file=name,
            line=number,
        )
    return [*found, *units.split(source)]


def read_sources(
    path: str | PathLike[str], units: Units | Subwords, columns: Sequence[str] = PLAIN, normal: Normal = "none"
) -> Iterator[list[str]]:
    """The units of each line of a file that asks for answers, as they come, none for a blank line: `split_source`."""
    name = name_of(path)
    for number, line in enumerate(read_lines(path), start=1):
        yield split_source(line, units, columns, normal, name=name, number=number)


def source_text(units: Sequence[str], of: Units | Subwords) -> str:
    """The text of a source's units; features, if there are any, stand behind it: SOURCE TAB FEATURES.

    >>> source_text(["\\tV", "\\tPST", "g", "o"], Units("chars"))
    'go\\tV;PST'
    """
    features = ";".join(unit[1:] for unit in units if unit.startswith("\t"))
    text = of.join(unit for unit in units if not unit.startswith("\t"))
    return f"{text}\t{features}" if features else text


def unseen_notes(pairs: Pairs, source: Vocabulary, target: Vocabulary) -> list[str]:
    """One line a side that has units which training never saw, with their number and the first few of them."""
    notes = []
    for side, vocabulary, sequences, effect in (
        ("source", source, [example.source for example in pairs.examples], "read as unknown"),
        ("target", target, [example.target for example in pairs.examples], "they count as errors"),
    ):
        unseen = sorted({unit for units in sequences for unit in units}.difference(vocabulary.units))
        if unseen:
            number = counted_noun(len(unseen), f"{side} unit")
            shown = " ".join(map(_visible, unseen[:5])) + (" ..." if len(unseen) > 5 else "")
            notes.append(f"{pairs.name}: {number} that training never saw, {effect}: {shown}")
    return notes


def _visible(unit: str) -> str:
    return unit if unit.isprintable() and not unit.isspace() else repr(unit)
