"""Sentences of tagged words in, the same file with other tags out.

Two formats, told apart by the first line that holds a word:

- CoNLL-U, ten columns between TABs. Words only are tagged; ranges (``1-2``), empty nodes (``3.1``) and comments are
  carried along. Source: https://universaldependencies.org/format.html
- ``WORD TAB TAG`` lines, or words alone, one a line; a line that begins with ``# `` is a comment.

A blank line ends a sentence. A word may hold spaces, NBSP among them: a TAB alone splits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike

from regard.data.lines import name_of, read_lines
from regard.data.pair_rows import shown
from regard.errors import ArgumentError, DataError

__all__ = ["Sentence", "check_column", "read"]

_ID, _FORM, _UPOS, _XPOS, _FEATS = 0, 1, 3, 4, 5
_COLUMNS = 10
_NOTHING = "_"
_IDENTIFIER = re.compile(r"(0|[1-9][0-9]*)(?:[.-][1-9][0-9]*)?")
_FEATURE = re.compile(r"[A-Z0-9][A-Za-z0-9]*(\[[a-z0-9]+\])?")


@dataclass(frozen=True)
class Sentence:
    """The lines from the end of the sentence before to the blank line that ends this one, and where its words are.

    ``words[i]`` stands in ``lines[places[i]]``, the first line being number ``number`` of the file ``name``. What
    follows the last sentence of a file, comments or further blank lines, is a sentence without words.
    """

    words: tuple[str, ...]
    lines: tuple[str, ...]
    places: tuple[int, ...]
    name: str
    number: int

    def tags(self, column: str) -> tuple[str, ...]:
        """The tags of the words: ``"upos"``, ``"xpos"``, or the value of a feature, ``"_"`` where a word has none.

        In lines of WORD TAB TAG there is one column only, whatever it is called. Raises `DataError` for a word
        without a tag.
        """
        return tuple(self._tag(place, column) for place in self.places)

    def _tag(self, place: int, column: str) -> str:
        cells = self.lines[place].split("\t")
        tag = _tag(cells, column) if len(cells) == _COLUMNS else "".join(cells[1:])
        if tag:
            return sys.intern(tag)
        raise DataError(
            f"expected a tag for each word ({column} of CoNLL-U, or WORD TAB TAG), found none in "
            f"{shown(self.lines[place])}; add it",
            file=self.name,
            line=self.number + place,
        )

    def tagged(self, tags: Sequence[str], column: str) -> Iterator[str]:
        """The lines with these tags in place of those they have, or behind words that have none; all else is kept.

        A feature is put where the order of FEATS wants it: sorted, without regard to case; ``"_"`` takes it away.
        Raises `ArgumentError` when there is not one tag for each word.
        """
        if len(tags) != len(self.words):
            raise ArgumentError(f"expected a tag for each of {len(self.words)} words, got {len(tags)}")
        given = dict(zip(self.places, tags, strict=True))
        for place, line in enumerate(self.lines):
            yield _replace(line, given[place], column) if place in given else line


def check_column(column: str) -> None:
    """Refuse what is no column: ``ArgumentError`` unless it is upos, xpos, or could be a feature's name.

    >>> check_column("Number[psor]")
    """
    if column not in ("upos", "xpos") and not _FEATURE.fullmatch(column):
        raise ArgumentError(f"expected a column upos, xpos, or the name of a feature such as Number, got {column!r}")


def read(path: str | PathLike[str]) -> Iterator[Sentence]:
    """The sentences of a file, plain or gzip, or of standard input (``"-"``), as they come.

    All lines of the file are in one of the sentences; line ends and a byte order mark are not kept, see
    `regard.data.lines.read_lines`. Raises ``DataError`` with file and line for a line that is not of the format.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "words.txt")
    >>> _ = path.write_text("a\\tDET\\ndog\\tNOUN\\n")
    >>> (sentence,) = read(path)
    >>> sentence.words, sentence.tags("upos"), list(sentence.tagged(["X", "NOUN"], "upos"))
    (('a', 'dog'), ('DET', 'NOUN'), ['a\\tX', 'dog\\tNOUN'])
    """
    name = name_of(path)
    numbered = enumerate(read_lines(path), start=1)
    begin: list[tuple[int, str]] = []  # up to the line that tells the format
    for number, line in numbered:
        begin.append((number, line))
        if line.strip(" ") and not line.startswith("#"):
            break
    conllu = bool(begin) and begin[-1][1].count("\t") == _COLUMNS - 1
    block: list[tuple[int, str]] = []
    for number, line in chain(begin, numbered):
        block.append((number, line))
        if not line.strip(" "):
            yield _sentence(block, name, conllu)
            block = []
    if block:
        yield _sentence(block, name, conllu)


def _sentence(block: list[tuple[int, str]], name: str, conllu: bool) -> Sentence:
    words, places = [], []
    expected = 1
    for place, (number, line) in enumerate(block):
        if not line.strip(" ") or line.startswith("#" if conllu else "# "):
            continue
        fault = _fault(line, expected) if conllu else _simple_fault(line)
        if fault:
            raise DataError(f"expected {fault} in {shown(line)}", file=name, line=number)
        cells = line.split("\t")
        if not conllu or cells[_ID].isdecimal():
            words.append(sys.intern(cells[_FORM if conllu else 0]))
            places.append(place)
            expected += 1
    return Sentence(tuple(words), tuple(line for _, line in block), tuple(places), name, block[0][0])


def _fault(line: str, expected: int) -> str:
    """What was expected of a line of CoNLL-U, what was found, and what to do; empty when it is right."""
    cells = line.split("\t")
    if len(cells) != _COLUMNS:
        return f"{_COLUMNS} columns between TABs, found {len(cells)}; put TABs (spaces do not count) between columns,"
    if not _IDENTIFIER.fullmatch(cells[_ID]):
        return f"an ID such as 3, 3-4 or 3.1, found {cells[_ID]!r}; correct it"
    if cells[_ID].isdecimal() and cells[_ID] != str(expected):
        return f"word {expected}, found {cells[_ID]}; number the words from 1, with a blank line between sentences,"
    if not cells[_FORM]:
        return "a word in column 2, found none; write it"
    return ""


def _simple_fault(line: str) -> str:
    word, _, rest = line.partition("\t")
    if not word.strip(" "):
        return "WORD TAB TAG, found no word; write it"
    if "\t" in rest:
        return f"WORD TAB TAG, found {line.count(chr(9))} TABs; keep two columns"
    return ""


def _tag(cells: list[str], column: str) -> str:
    if column == "upos":
        return cells[_UPOS]
    if column == "xpos":
        return cells[_XPOS]
    features = (feature.split("=", 1) for feature in cells[_FEATS].split("|"))
    return next((pair[1] for pair in features if pair[0] == column and len(pair) == 2), _NOTHING)


def _replace(line: str, tag: str, column: str) -> str:
    cells = line.split("\t")
    if len(cells) != _COLUMNS:
        return f"{cells[0]}\t{tag}"
    if column in ("upos", "xpos"):
        cells[_UPOS if column == "upos" else _XPOS] = tag
    elif tag != _tag(cells, column):
        cells[_FEATS] = _put(cells[_FEATS], column, tag)
    return "\t".join(cells)


def _put(features: str, name: str, value: str) -> str:
    """FEATS with another value of one feature, which leaves the order of the others as it is.

    >>> _put("Case=Nom|Person=3", "Number", "Sing"), _put("Number=Sing", "Number", "_")
    ('Case=Nom|Number=Sing|Person=3', '_')
    """
    feature = f"{name}={value}"
    others = [] if features == _NOTHING else features.split("|")
    place = next((i for i, other in enumerate(others) if other.startswith(f"{name}=")), None)
    if place is None:
        # As the validator of Universal Dependencies compares
        place = next((i for i, other in enumerate(others) if other.lower() > feature.lower()), len(others))
    else:
        del others[place]
    if value != _NOTHING:
        others.insert(place, feature)
    return "|".join(others) or _NOTHING
