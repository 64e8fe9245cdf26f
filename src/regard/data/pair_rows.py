"""Files of pairs, column by column: source TAB target, or more columns with names. There is no quoting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from typing import NamedTuple

from regard._wording import counted_noun
from regard.data.lines import name_of, read_lines
from regard.data.pair_columns import PLAIN, Normal, check_columns, guess_columns, normalize
from regard.data.storage import store
from regard.errors import DataError

__all__ = ["Row", "Texts", "is_blank", "read_texts", "shown"]

_LOOKED_AT = 1000  # lines, to guess by


class Row(NamedTuple):
    """One line of a file of pairs; ``features`` are empty where the file has none."""

    number: int
    source: str
    features: str
    target: str


@dataclass(frozen=True)
class Texts:
    """The rows of one file before they are cut into units, how they were read, and what is to be said about them."""

    rows: Sequence[Row]
    columns: tuple[str, ...]
    normal: Normal
    name: str
    notes: list[str]
    guessed: list[str]


def read_texts(
    path: str | PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    normal: Normal = "none",
) -> Texts:
    """Read a file of pairs: source TAB target, or the ``columns`` named, in a normal form of Unicode.

    Without names three columns are taken where one of them looks like features (see `guess_columns`), and a note says
    so. Blank lines are skipped, and counted in a note. Raises ``DataError``
    with file, line and remedy for a line with other columns, for an empty one, for bytes that are not UTF-8, and when
    there are no pairs.
    """
    name = name_of(path)
    numbered = ((number, normalize(line, normal)) for number, line in enumerate(read_lines(path), start=1))
    head = list(islice(numbered, _LOOKED_AT))
    guessed = []
    if columns is None:
        columns = _columns([line for _, line in head if not is_blank(line)])
        guessed = [f"read as {_spelt(columns)}"] * (columns != PLAIN)
    columns = check_columns(columns)
    blank = 0

    def filled() -> Iterator[Row]:
        nonlocal blank
        for number, line in chain(head, numbered):
            if is_blank(line):
                blank += 1
            else:
                yield Row(number, *_sides(line, columns, name, number))

    rows = store(filled())
    if not rows:
        found = f"nothing but {counted_noun(blank, 'blank line')}" if blank else "an empty file"
        raise DataError(f"expected lines of {_spelt(columns)}, found {found}; check the path", file=name)
    notes = [f"{name}: {counted_noun(blank, 'blank line')} skipped"] if blank else []
    return Texts(rows, columns, normal, name, notes, guessed)


def is_blank(line: str) -> bool:
    """Whether a line has nothing to read: spaces at most, and no TAB."""
    return not line or (line.isspace() and "\t" not in line)


def _spelt(columns: Sequence[str]) -> str:
    return " TAB ".join(column.upper() for column in columns)


def shown(line: str) -> str:
    """A line as messages quote it."""
    return repr(line if len(line) <= 40 else line[:37] + "...")


def _columns(lines: list[str]) -> tuple[str, ...]:
    """What the columns hold, by all lines that have as many as the first: two, or three with features for certain."""
    rows = [line.split("\t") for line in lines]
    return guess_columns([row for row in rows if len(row) == len(rows[0])]) or PLAIN


def _sides(line: str, columns: tuple[str, ...], name: str, number: int) -> tuple[str, str, str]:
    """Source, features and target of a line."""
    cells = line.split("\t")
    named = {column: cell for column, cell in zip(columns, cells, strict=False) if column != "_"}
    if len(cells) == len(columns) and all(cell.strip() for cell in named.values()):
        return named["source"], named.get("features", ""), named["target"]
    tabs = len(cells) - 1
    if not tabs:
        between = "the two" if len(columns) == 2 else "all of them"
        fault, remedy = "no TAB", f"put one TAB (spaces do not count) between {between}"
    elif "\r" in line:
        fault, remedy = "lines that end in CR alone", r"convert the file: tr '\r' '\n'"
    elif len(cells) != len(columns):
        fault = counted_noun(tabs, "TAB")
        name_them = "keep two columns (cut -f1,2), or name all of them (--columns source,target,_)"
        remedy = name_them if columns == PLAIN else "correct or delete the line"
    else:
        fault = "an empty " + next(column for column, cell in named.items() if not cell.strip())
        remedy = "fill it in or delete the line"
    raise DataError(f"expected {_spelt(columns)}, found {fault} in {shown(line)}; {remedy}", file=name, line=number)
