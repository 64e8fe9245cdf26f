"""Rows of files of pairs: source TAB target, or more columns with names; there is no quoting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from typing import NamedTuple

from regard._wording import counted_noun
from regard.data.lines import is_blank, name_of, quoted, read_lines
from regard.data.pair_columns import DEFAULT_COLUMNS, UnicodeForm, check_columns, guess_columns, normalize
from regard.data.storage import store
from regard.errors import DataError

__all__ = ["PairRow", "PairRows", "read_pair_rows"]

_SAMPLE = 1000  # lines from which columns are guessed


class PairRow(NamedTuple):
    """One line of a file of pairs; ``features`` are empty if the file has none."""

    number: int
    source: str
    features: str
    target: str


@dataclass(frozen=True)
class PairRows:
    """The rows of one file before they are split into units, how they were read, and notes for the user.

    ``guessed`` describes the guesses about the file.
    """

    rows: Sequence[PairRow]
    columns: tuple[str, ...]
    unicode_form: UnicodeForm
    name: str
    notes: list[str]
    guessed: list[str]


def read_pair_rows(
    path: str | PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    unicode_form: UnicodeForm = "none",
) -> PairRows:
    """Read a file of pairs: source TAB target, or the ``columns`` named, in a Unicode normalization form.

    Without names, three columns are accepted if one of them looks like features (see `guess_columns`), and a note
    reports the guess. Blank lines are skipped, and counted in a note.

    Errors: `DataError` with file, line and remedy for a line with other columns, an empty column, bytes that are not
    UTF-8, and a file without pairs.
    """
    name = name_of(path)
    numbered = ((number, normalize(line, unicode_form)) for number, line in enumerate(read_lines(path), start=1))
    sample = list(islice(numbered, _SAMPLE))
    guessed = []
    if columns is None:
        columns = _guess([line for _, line in sample if not is_blank(line)])
        guessed = [f"columns: {_spell(columns)}"] * (columns != DEFAULT_COLUMNS)
    columns = check_columns(columns)
    blank = 0

    def filled() -> Iterator[PairRow]:
        nonlocal blank
        for number, line in chain(sample, numbered):
            if is_blank(line):
                blank += 1
            else:
                yield PairRow(number, *_cells(line, columns, name, number))

    rows = store(filled())
    if not rows:
        found = f"nothing but {counted_noun(blank, 'blank line')}" if blank else "an empty file"
        raise DataError(f"expected lines of {_spell(columns)}, found {found}; check the path", file=name)
    notes = [f"{name}: {counted_noun(blank, 'blank line')} skipped"] if blank else []
    return PairRows(rows, columns, unicode_form, name, notes, guessed)


def _spell(columns: Sequence[str]) -> str:
    return " TAB ".join(column.upper() for column in columns)


def _guess(lines: list[str]) -> tuple[str, ...]:
    """Guess columns from the lines that have as many as the first."""
    rows = [line.split("\t") for line in lines]
    return guess_columns([row for row in rows if len(row) == len(rows[0])]) or DEFAULT_COLUMNS


def _cells(line: str, columns: tuple[str, ...], name: str, number: int) -> tuple[str, str, str]:
    """Return source, features and target of a line."""
    cells = line.split("\t")
    named = {column: cell for column, cell in zip(columns, cells, strict=False) if column != "_"}
    if len(cells) == len(columns) and all(cell.strip() for cell in named.values()):
        return named["source"], named.get("features", ""), named["target"]
    tabs = len(cells) - 1
    if not tabs:
        fault, remedy = "no TAB", "separate columns by one TAB, not by spaces"
    elif "\r" in line:
        fault, remedy = "lines that end in CR alone", r"convert the file: tr '\r' '\n'"
    elif len(cells) != len(columns):
        fault = counted_noun(tabs, "TAB")
        name_them = "keep two columns (cut -f1,2), or name all of them (--columns source,target,_)"
        remedy = name_them if columns == DEFAULT_COLUMNS else "correct or delete the line"
    else:
        fault = f"an empty {next(column for column, cell in named.items() if not cell.strip())} column"
        remedy = "fill it in or delete the line"
    raise DataError(f"expected {_spell(columns)}, found {fault} in {quoted(line)}; {remedy}", file=name, line=number)
