"""Texts with labels, read from a file and split into units.

A file is UTF-8, plain or gzip, in one of two formats, which its first line determines:

- columns between TABs, such as ``text TAB label`` or ``label TAB text``, without quoting. If the first line has a cell
  ``label``, it names the columns.
- JSON lines: one object on each line, ``{"text": "...", "label": "..."}``.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from typing import Literal, NamedTuple

from regard._wording import counted_noun
from regard.data.lines import is_blank, name_of, quoted, read_lines
from regard.data.storage import store
from regard.errors import ArgumentError, DataError

__all__ = [
    "LabelledText",
    "LabelledTexts",
    "TextUnits",
    "guess_text_units",
    "is_json",
    "read_labelled",
    "read_unlabelled",
    "split_text",
]

TextUnits = Literal["words", "chars"]

_LABEL, _TEXT = "label", "text"
_HALF = re.compile(r"[\ud800-\udfff]")
_OBJECT = re.compile(r'\s*\{ *(["}]|$)')
_WITHIN = "'’-"  # marks that begin and end words too: 's, o', -ing


class LabelledText(NamedTuple):
    """One text, in units, and its label."""

    text: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of one file or of a part of one, how they were read and split, and notes for the user.

    Pass ``columns`` to `read_labelled` to read other files in the same way.
    """

    examples: Sequence[LabelledText]
    units: TextUnits
    columns: tuple[str, ...]
    name: str
    notes: list[str] = field(default_factory=list)


def split_text(text: str, units: TextUnits) -> list[str]:
    """Return the words of a text, or its characters (code points, of which repeated spaces are one).

    Words end at spaces. Marks at either end of a word (punctuation and symbols, except apostrophes and hyphens) are
    separate units; marks within a word stay. A text that is already tokenized therefore comes out unchanged.

    >>> split_text('"Well, it\\'s state-of-the-art..." (so they say!)', "words")
    ['"', 'Well', ',', "it's", 'state-of-the-art', '..."', '(', 'so', 'they', 'say', '!)']
    >>> split_text("it wo n't do , 's all", "words")
    ['it', 'wo', "n't", 'do', ',', "'s", 'all']
    >>> split_text("你 好", "chars")
    ['你', ' ', '好']
    """
    if units == "chars":
        return list(" ".join(text.split()))
    return [unit for piece in text.split() for unit in _split_marks(piece)]


@lru_cache(maxsize=100_000)
def _split_marks(piece: str) -> tuple[str, ...]:
    start, end = 0, len(piece)
    if all(unicodedata.category(char)[0] in "PS" for char in piece):
        return (sys.intern(piece),)  # a smiley, a dash
    while start < end and _is_mark(piece[start]):
        start += 1
    while end > start and _is_mark(piece[end - 1]):
        end -= 1
    # Interned, equal units are one object: a large file takes a fraction of the memory.
    return tuple(sys.intern(part) for part in (piece[:start], piece[start:end], piece[end:]) if part)


def _is_mark(char: str) -> bool:
    return char not in _WITHIN and unicodedata.category(char)[0] in "PS"


def guess_text_units(texts: Iterable[str]) -> TextUnits:
    """Return ``chars`` if more than half of the texts have no space, as in Chinese or single names, else ``words``.

    >>> guess_text_units(["a fine film", "dull"]), guess_text_units(["很好看", "不好看", "ok film"])
    ('words', 'chars')
    """
    single = [len(text.split()) < 2 for text in texts]
    return "chars" if 2 * sum(single) > len(single) else "words"


def read_labelled(
    path: str | PathLike[str],
    columns: Sequence[str] | None = None,
    units: TextUnits | None = None,
    *,
    max_length: int = 400,
) -> LabelledTexts:
    """Read a file of texts with labels; columns and units that are ``None`` are guessed, and a note reports the guess.

    ``columns`` name the columns between the TABs, ``text`` and ``label`` among them; others are skipped. For JSON lines
    they are the keys of the text and of the label. If ``columns`` is ``None``, the label is the one of two columns that
    repeats a few values. Blank lines are skipped, texts of more than ``max_length`` units are cut, duplicates and
    contradictory labels stay; the notes count all of these.

    Errors: `DataError` with file, line and remedy for a line with other columns, an empty text or label, columns that
    cannot be guessed, and a file without texts.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "films.tsv")
    >>> _ = path.write_text("good\\ta fine film\\nbad\\ta dull film\\ngood\\tfine!\\nbad\\tso dull\\n")
    >>> read_labelled(path).examples[2]
    LabelledText(text=('fine', '!'), label='good')
    """
    if max_length < 1:
        raise ArgumentError(f"expected max_length of at least 1, got {max_length}")
    name = name_of(path)
    lines, blank = [], 0
    for number, line in enumerate(read_lines(path), start=1):
        if is_blank(line):
            blank += 1
        else:
            lines.append((number, line))
    if not lines:
        found = f"nothing but {counted_noun(blank, 'blank line')}" if blank else "an empty file"
        raise DataError(f"expected lines of TEXT TAB LABEL, or JSON lines, found {found}; check the path", file=name)
    guessed = []
    if is_json(lines[0][1]):
        columns = (_TEXT, _LABEL) if columns is None else _keys(columns)
        rows = [(number, *_record(line, columns, name, number)) for number, line in lines]
    else:
        cells, columns, said = _cells(lines, columns, name)
        rows = [(number, row[columns.index(_TEXT)], row[columns.index(_LABEL)]) for number, row in cells]
        guessed += said
    if units is None:
        units = guess_text_units(text for _, text, _ in rows)
        guessed.append(f"units: {'characters' if units == 'chars' else 'words'}")
    longer: list[int] = []
    examples = store(_examples(rows, units, max_length, name, longer))
    notes = [_summary(name, examples)]
    if guessed:
        notes.append(f"{name}: {'; '.join(guessed)} (guessed)")
    if longer:
        notes.append(
            f"{name}: {counted_noun(len(longer), 'text')} of more than {counted_noun(max_length, 'unit')} cut "
            f"(first: line {longer[0]}); --max-length raises the limit"
        )
    if blank:
        notes.append(f"{name}: {counted_noun(blank, 'blank line')} skipped")
    return LabelledTexts(examples, units, tuple(columns), name, notes)


def read_unlabelled(path: str | PathLike[str], columns: Sequence[str]) -> Iterator[str]:
    """Yield the text of each line of a file that needs no labels, ``""`` for a blank line.

    A line is a text, or has as many columns as ``columns`` names, with the text among them, or is a JSON object, if
    the first line is one. A first line that names the columns counts as blank.
    """
    name, columns = name_of(path), tuple(columns)
    as_json: bool | None = None
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        first = as_json is None and not is_blank(line)
        if first:
            as_json = is_json(line)
        if is_blank(line) or (first and len(cells) > 1 and _is_header(cells)):
            yield ""
        elif as_json:
            yield _value(_object(line, name, number), _keys(columns)[0], line, name, number)
        else:
            yield cells[columns.index(_TEXT)] if _TEXT in columns and len(cells) == len(columns) else line


def is_json(line: str) -> bool:
    """Return True if a line begins like a JSON object; a brace alone may begin a text.

    >>> is_json('{"text": "so so"}'), is_json("{\\tleft brace")
    (True, False)
    """
    return _OBJECT.match(line) is not None


def _is_header(cells: Sequence[str]) -> bool:
    return _LABEL in (cell.strip().lower() for cell in cells)


def _cells(
    lines: list[tuple[int, str]], columns: Sequence[str] | None, name: str
) -> tuple[list[tuple[int, list[str]]], tuple[str, ...], list[str]]:
    """Return the cells of each line with its number, the names of the columns, and what was guessed about them."""
    if columns is not None and not {_TEXT, _LABEL} <= set(columns):
        raise DataError(
            f"expected columns named text and label, got {','.join(columns)}; name them in the order of the file, "
            f"for instance --columns label,text",
            file=name,
        )
    first = lines[0][1].split("\t")
    header = len(first) > 1 and _is_header(first)
    guessed: list[str] = []
    if columns is None and header:
        columns = _named([cell.strip().lower() for cell in first], name, lines[0][0])
        guessed.append(f"columns: {', '.join(columns)}")
    rows = [
        (number, _row(line, 2 if columns is None else len(columns), name, number))
        for number, line in lines[1 if header else 0 :]
    ]
    if not rows:
        raise DataError("expected texts below the line that names the columns, found none; add texts", file=name)
    if columns is None:
        columns = _guess_columns([row for _, row in rows], name)
        guessed.append(f"columns: {', '.join(columns)}")
    return rows, tuple(columns), guessed


def _named(names: list[str], name: str, number: int) -> tuple[str, ...]:
    """Return the columns that the first line names; of two, the one beside the label is the text, whatever its name."""
    if _TEXT not in names and len(names) == 2:
        names = [cell if cell == _LABEL else _TEXT for cell in names]
    if names.count(_TEXT) != 1 or names.count(_LABEL) != 1:
        raise DataError(
            f"expected one column named text and one named label, found {', '.join(names)}; name them, "
            f"for instance --columns id,text,label",
            file=name,
            line=number,
        )
    return tuple(names)


def _row(line: str, width: int, name: str, number: int) -> list[str]:
    cells = line.split("\t")
    if len(cells) == width:
        return cells
    expected = "TEXT TAB LABEL" if width == 2 else f"{width} columns between TABs"
    if "\r" in line:
        fault, remedy = "lines that end in CR alone", r"convert the file: tr '\r' '\n'"
    elif len(cells) == 1:
        fault, remedy = "no TAB", "separate columns by one TAB, not by spaces"
    else:
        fault, remedy = f"{len(cells)} columns", "name all of them, for instance --columns id,text,label"
    raise DataError(f"expected {expected}, found {fault} in {quoted(line)}; {remedy}", file=name, line=number)


def _guess_columns(rows: list[list[str]], name: str) -> tuple[str, str]:
    """Guess which of two columns is the label: the one with at most half as many different values as the other."""
    left, right = (len({row[i].strip() for row in rows}) for i in (0, 1))
    if 2 * right <= left:
        return _TEXT, _LABEL
    if 2 * left <= right:
        return _LABEL, _TEXT
    raise DataError(
        f"expected a column that repeats a few labels, found {left:,} and {right:,} different values in "
        f"{counted_noun(len(rows), 'line')}; name the columns with --columns text,label or --columns label,text",
        file=name,
    )


def _keys(columns: Sequence[str]) -> tuple[str, str]:
    """Return the keys of text and label in JSON lines."""
    if {_TEXT, _LABEL} <= set(columns):
        return _TEXT, _LABEL
    if len(columns) != 2:
        raise ArgumentError(f"expected two columns, the keys of text and label in this order, got {','.join(columns)}")
    return columns[0], columns[1]


def _record(line: str, columns: Sequence[str], name: str, number: int) -> tuple[str, str]:
    record = _object(line, name, number)
    return _value(record, columns[0], line, name, number), _value(record, columns[1], line, name, number)


def _object(line: str, name: str, number: int) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"expected a JSON object, found {quoted(line)} ({error}); correct the line", file=name, line=number
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"expected a JSON object, found {quoted(line)}; correct the line", file=name, line=number)
    return record


def _value(record: dict[str, object], key: str, line: str, name: str, number: int) -> str:
    """Return the text of a key; numbers and booleans, which labels may be, are returned as JSON writes them."""
    value = record.get(key)
    if isinstance(value, str):
        if _HALF.search(value):  # JSON can express it, UTF-8 cannot
            fault = f"half of a surrogate pair under the key {key!r}"
            raise DataError(f"expected text, found {fault} in {quoted(line)}; correct it", file=name, line=number)
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    found = "no such key" if key not in record else "null" if value is None else type(value).__name__
    raise DataError(
        f"expected text under the key {key!r}, found {found} in {quoted(line)}; name the keys of text and label, "
        f"for instance --columns sentence,class",
        file=name,
        line=number,
    )


def _examples(
    rows: list[tuple[int, str, str]], units: TextUnits, max_length: int, name: str, longer: list[int]
) -> Iterator[LabelledText]:
    """Yield the examples; line numbers of texts that are cut are appended to ``longer``."""
    for number, text, label in rows:
        words, label = tuple(split_text(text, units)), " ".join(label.split())
        if not words or not label:
            raise DataError(
                f"expected a text and a label, found an empty {'text' if label else 'label'}; "
                f"fill it in or delete the line",
                file=name,
                line=number,
            )
        if len(words) > max_length:
            longer.append(number)
        yield LabelledText(words[:max_length], sys.intern(label))


def _summary(name: str, examples: Sequence[LabelledText]) -> str:
    labels = Counter(example.label for example in examples)
    listed = ", ".join(f"{label} ({labels[label]:,})" for label in sorted(labels)[:6])
    distinct = set(examples)
    several = sum(n > 1 for n in Counter(example.text for example in distinct).values())
    found = [f"{counted_noun(len(labels), 'label')}: {listed}{', ...' if len(labels) > 6 else ''}"]
    if len(distinct) < len(examples):
        found.append(counted_noun(len(examples) - len(distinct), "duplicate"))
    if several:
        found.append(f"{counted_noun(several, 'text')} with more than one label")
    return f"{name}: {counted_noun(len(examples), 'text')}; {'; '.join(found)}"
