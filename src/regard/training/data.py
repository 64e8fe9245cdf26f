"""Pairs of texts in, examples of units out.

A file is UTF-8, plain or gzip, one pair a line: source TAB target. There is no quoting, and only ``\\n`` and ``\\r\\n``
end a line: a quote, U+2028 or a form feed is text like any other.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from os import PathLike
from typing import NamedTuple, cast

from regard.errors import ArgumentError, DataError
from regard.training.vocabulary import Vocabulary
from regard.training.wording import count

__all__ = ["Example", "Pairs", "Units", "guess_units", "read_lines", "read_pairs", "unseen_notes"]

_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


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
                f"expected units to be 'chars', 'words' or a separator such as '|', without letters, TAB or line end; "
                f"got {self.name!r}"
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
    """The examples of one file (or of a part of one), how they were cut, and what is to be said about them."""

    examples: list[Example]
    source_units: Units
    target_units: Units
    name: str
    notes: list[str] = field(default_factory=list)

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


def read_lines(path: str | PathLike[str]) -> Iterator[str]:
    """The lines of a UTF-8 file, plain or gzip, or of standard input (``"-"``), as they come; blank lines are kept.

    Raises ``DataError`` with file and line for what cannot be read or is not UTF-8.
    """
    name = _name(path)
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                yield _text(raw, name, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"expected the gzip data to go on after this line, it is damaged ({error}); fetch or compress it again",
            file=name,
            line=number,
        ) from error
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}); check the path", file=name) from error


def _name(path: str | PathLike[str]) -> str:
    # A file's name need not be UTF-8, and must not break the message that it stands in.
    return "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "replace")


@contextmanager
def _open(path: str | PathLike[str]) -> Iterator[Iterable[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as stream:
        # Looking at the content, not at the name, also serves a pipe and a file without .gz in its name.
        if stream.peek(2)[:2] != _GZIP:
            yield stream
            return
        # GzipFile finds each line in Python code; a buffer over it does so in C.
        with BufferedReader(cast(RawIOBase, gzip.GzipFile(fileobj=stream))) as lines:
            yield lines


def _text(raw: bytes, name: str, number: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1 and raw.startswith(_UTF16):
            found, remedy = "UTF-16", "convert the file: iconv -f UTF-16 -t UTF-8"
        elif number == 1 and raw.startswith(_GZIP):
            found, remedy = "gzip data", "unpack it first: zcat"
        else:
            found = f"byte 0x{raw[error.start]:02x} at offset {error.start} of the line"
            remedy = "convert the file from the encoding it has, for instance: iconv -f CP1252 -t UTF-8"
        raise DataError(f"expected UTF-8, found {found}; {remedy}", file=name, line=number) from error
    if number == 1:
        text = text.removeprefix("\ufeff")
    return text.removesuffix("\n").rstrip("\r")


def read_pairs(
    path: str | PathLike[str],
    source_units: Units | None = None,
    target_units: Units | None = None,
    *,
    max_length: int = 200,
) -> Pairs:
    """Read a file of pairs, one a line: source TAB target; units that are ``None`` are guessed, and a note says so.

    Blank lines are skipped, pairs with a side of more than ``max_length`` units left out, duplicates and sources with
    several targets kept; the notes count them all. Raises ``DataError`` with file, line and remedy for a line without
    a TAB or with several, for an empty side, for bytes that are not UTF-8, and when no pair is left.
    """
    if max_length < 1:
        raise ArgumentError(f"expected max_length of at least 1, got {max_length}")
    name = _name(path)
    rows: list[tuple[int, str, str]] = []
    blank = 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line or (line.isspace() and "\t" not in line):
            blank += 1
        else:
            rows.append((number, *_sides(line, name, number)))
    if not rows:
        found = f"nothing but {count(blank, 'blank line')}" if blank else "an empty file"
        raise DataError(f"expected lines of SOURCE TAB TARGET, found {found}; check the path", file=name)
    guessed = []
    if source_units is None:
        source_units = guess_units(source for _, source, _ in rows)
        guessed.append(f"source in {source_units}")
    if target_units is None:
        target_units = guess_units(target for _, _, target in rows)
        guessed.append(f"target in {target_units}")
    examples, left_out = _cut(rows, source_units, target_units, max_length, name)
    notes = [_summary(name, examples)]
    if guessed:
        notes.append(f"{name}: {', '.join(guessed)} (guessed)")
    if left_out:
        notes.append(
            f"{name}: {count(len(left_out), 'pair')} of more than {max_length} units left out "
            f"(first: line {left_out[0]}); --max-length raises the limit"
        )
    if blank:
        notes.append(f"{name}: {count(blank, 'blank line')} skipped")
    return Pairs(examples, source_units, target_units, name, notes)


def _sides(line: str, name: str, number: int) -> tuple[str, str]:
    source, tab, target = line.partition("\t")
    if tab and source.strip() and target.strip() and "\t" not in target:
        return source, target
    shown = line if len(line) <= 40 else line[:37] + "..."
    if not tab:
        fault, remedy = "no TAB", "put one TAB (spaces do not count) between the two"
    elif "\r" in line:
        fault, remedy = "lines that end in CR alone", r"convert the file: tr '\r' '\n'"
    elif "\t" in target:
        fault, remedy = f"{line.count(chr(9))} TABs", "keep two columns, for instance: cut -f1,2"
    else:
        fault = f"an empty {'target' if source.strip() else 'source'}"
        remedy = "fill it in or delete the line"
    raise DataError(f"expected SOURCE TAB TARGET, found {fault} in {shown!r}; {remedy}", file=name, line=number)


def _cut(
    rows: list[tuple[int, str, str]], source_units: Units, target_units: Units, max_length: int, name: str
) -> tuple[list[Example], list[int]]:
    """The examples, and the numbers of the lines left out as too long."""
    examples, left_out = [], []
    # Interned, equal units are one object: a large file takes a fraction of the memory.
    for number, source_text, target_text in rows:
        source = tuple(map(sys.intern, source_units.split(source_text)))
        target = tuple(map(sys.intern, target_units.split(target_text)))
        if not source or not target:
            side = "target" if source else "source"
            raise DataError(
                f"expected text on both sides, the {side} holds nothing but separators; fill it in or delete the line",
                file=name,
                line=number,
            )
        if len(source) > max_length or len(target) > max_length:
            left_out.append(number)
        else:
            examples.append(Example(source, target))
    if not examples:
        raise DataError(
            f"expected pairs of at most {max_length} units a side, found none ({len(left_out):,} longer); "
            f"raise --max-length, or cut the texts",
            file=name,
            line=left_out[0],
        )
    return examples, left_out


def _summary(name: str, examples: list[Example]) -> str:
    distinct = set(examples)
    several = sum(n > 1 for n in Counter(example.source for example in distinct).values())
    found = []
    if len(distinct) < len(examples):
        found.append(count(len(examples) - len(distinct), "duplicate"))
    if several:
        found.append(f"{count(several, 'source')} with more than one target")
    return f"{name}: {count(len(examples), 'pair')}" + ("; " + ", ".join(found) if found else "")


def unseen_notes(pairs: Pairs, source: Vocabulary, target: Vocabulary) -> list[str]:
    """One line a side that has units which training never saw, with their number and the first few of them."""
    notes = []
    for side, vocabulary, sequences, effect in (
        ("source", source, [example.source for example in pairs.examples], "read as unknown"),
        ("target", target, [example.target for example in pairs.examples], "they count as errors"),
    ):
        unseen = sorted({unit for units in sequences for unit in units}.difference(vocabulary.units))
        if unseen:
            number = count(len(unseen), f"{side} unit")
            shown = " ".join(map(_visible, unseen[:5])) + (" ..." if len(unseen) > 5 else "")
            notes.append(f"{pairs.name}: {number} that training never saw, {effect}: {shown}")
    return notes


def _visible(unit: str) -> str:
    return unit if unit.isprintable() and not unit.isspace() else repr(unit)
