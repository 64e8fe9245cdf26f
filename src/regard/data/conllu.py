"""Files of tagged sentences, CoNLL-U or word TAB tag: reading them, and writing them again with other tags.

The first line with a word determines the format:

- CoNLL-U, ten columns between TABs. Only words are tagged; ranges (``1-2``), empty nodes (``3.1``) and comments are
  copied. Source: https://universaldependencies.org/format.html
- ``WORD TAB TAG`` lines, or words alone, one on each line; a line that begins with ``# `` is a comment.

A blank line ends a sentence. A word may contain spaces, also NBSP: only TABs separate columns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike

from regard.data.lines import name_of, quoted, read_lines
from regard.errors import ArgumentError, DataError

__all__ = ["Sentence", "check_column", "read"]

_ID, _FORM, _UPOS, _XPOS, _FEATS = 0, 1, 3, 4, 5
_COLUMNS = 10
_NOTHING = "_"
_IDENTIFIER = re.compile(r"(0|[1-9][0-9]*)(?:[.-][1-9][0-9]*)?")
_FEATURE = re.compile(r"[A-Z0-9][A-Za-z0-9]*(\[[a-z0-9]+\])?")


@dataclass(frozen=True)
class Sentence:
    """The lines of a sentence, with comments before it and the blank line that ends it, and its words.

    ``words[i]`` comes from ``lines[places[i]]``; the first line has the number ``number`` in the file ``name``. Lines
    after the last sentence of a file, comments or further blank lines, make a sentence without words.
    """

    words: tuple[str, ...]
    lines: tuple[str, ...]
    places: tuple[int, ...]
    name: str
    number: int

    def tags(self, column: str) -> tuple[str, ...]:
        """Return the tags of the words: ``"upos"``, ``"xpos"``, or the value of a feature, ``"_"`` if a word has none.

        In lines of WORD TAB TAG there is only one column, whatever its name. Raises `DataError` for a word without a
        tag.
        """
        return tuple(self._tag(place, column) for place in self.places)

    def _tag(self, place: int, column: str) -> str:
        cells = self.lines[place].split("\t")
        tag = _tag(cells, column) if len(cells) == _COLUMNS else "".join(cells[1:])
        if tag:
            return sys.intern(tag)
        raise DataError(
            f"expected a tag for each word ({column} of CoNLL-U, or WORD TAB TAG), found none in "
            f"{quoted(self.lines[place])}; add one",
            file=self.name,
            line=self.number + place,
        )

    def tagged(self, tags: Sequence[str], column: str) -> Iterator[str]:
        """Yield the lines with these tags in place of their own, or added to words without one; the rest is unchanged.

        A feature is inserted in the order of FEATS: sorted, ignoring case; ``"_"`` removes it. Raises `ArgumentError`
        unless there is one tag for each word.
        """
        if len(tags) != len(self.words):
            raise ArgumentError(f"expected a tag for each of {len(self.words)} words, got {len(tags)}")
        tag_at = dict(zip(self.places, tags, strict=True))
        for place, line in enumerate(self.lines):
            yield _replace(line, tag_at[place], column) if place in tag_at else line


def check_column(column: str) -> None:
    """Check that a column is upos, xpos, or a valid name of a feature; `ArgumentError` otherwise.

    >>> check_column("Number[psor]")
    """
    if column not in ("upos", "xpos") and not _FEATURE.fullmatch(column):
        raise ArgumentError(f"expected a column: upos, xpos, or the name of a feature such as Number; got {column!r}")


def read(path: str | PathLike[str]) -> Iterator[Sentence]:
    """Yield the sentences of a file, plain or gzip, or of standard input (``"-"``).

    Each line of the file belongs to a sentence; line ends and a byte order mark are removed. Raises `DataError` with
    file and line for a line in another format.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "words.txt")
    >>> _ = path.write_text("a\\tDET\\ndog\\tNOUN\\n")
    >>> (sentence,) = read(path)
    >>> sentence.words, sentence.tags("upos"), list(sentence.tagged(["X", "NOUN"], "upos"))
    (('a', 'dog'), ('DET', 'NOUN'), ['a\\tX', 'dog\\tNOUN'])
    """
    name = name_of(path)
    numbered = enumerate(read_lines(path), start=1)
    head: list[tuple[int, str]] = []  # up to the line that determines the format
    for number, line in numbered:
        head.append((number, line))
        if line.strip(" ") and not line.startswith("#"):
            break
    conllu = bool(head) and head[-1][1].count("\t") == _COLUMNS - 1
    block: list[tuple[int, str]] = []
    for number, line in chain(head, numbered):
        block.append((number, line))
        if not line.strip(" "):
            yield _sentence(block, name, conllu)
            block = []
    if block:
        yield _sentence(block, name, conllu)


def _sentence(block: list[tuple[int, str]], name: str, conllu: bool) -> Sentence:
    words, places = [], []
    number_of_word = 1
    for place, (number, line) in enumerate(block):
        if not line.strip(" ") or line.startswith("#" if conllu else "# "):
            continue
        fault = _fault(line, number_of_word) if conllu else _simple_fault(line)
        if fault:
            expected, found, remedy = fault
            message = f"expected {expected}, found {found} in {quoted(line)}; {remedy}"
            raise DataError(message, file=name, line=number)
        cells = line.split("\t")
        if not conllu or cells[_ID].isdecimal():
            words.append(sys.intern(cells[_FORM if conllu else 0]))
            places.append(place)
            number_of_word += 1
    return Sentence(tuple(words), tuple(line for _, line in block), tuple(places), name, block[0][0])


def _fault(line: str, number: int) -> tuple[str, str, str] | None:
    """Return what was expected of a line of CoNLL-U, what was found, and what to do; ``None`` for a correct line.

    ``number`` is that of the next word.
    """
    cells = line.split("\t")
    if len(cells) != _COLUMNS:
        return f"{_COLUMNS} columns between TABs", str(len(cells)), "separate columns by TABs, not by spaces"
    if not _IDENTIFIER.fullmatch(cells[_ID]):
        return "an ID such as 3, 3-4 or 3.1", repr(cells[_ID]), "correct it"
    if cells[_ID].isdecimal() and cells[_ID] != str(number):
        return f"word {number}", cells[_ID], "number the words from 1, with a blank line between sentences"
    if not cells[_FORM]:
        return "a word in column 2", "none", "fill it in"
    return None


def _simple_fault(line: str) -> tuple[str, str, str] | None:
    word, _, rest = line.partition("\t")
    if not word.strip(" "):
        return "WORD TAB TAG", "no word", "fill it in"
    if "\t" in rest:
        return "WORD TAB TAG", f"{line.count(chr(9))} TABs", "keep two columns"
    return None


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
    """Return FEATS with another value of one feature; the others keep their order.

    >>> _put("Case=Nom|Person=3", "Number", "Sing"), _put("Number=Sing", "Number", "_")
    ('Case=Nom|Number=Sing|Person=3', '_')
    """
    feature = f"{name}={value}"
    others = [] if features == _NOTHING else features.split("|")
    place = next((i for i, other in enumerate(others) if other.startswith(f"{name}=")), None)
    if place is None:
        # In the order that the validator of Universal Dependencies checks
        place = next((i for i, other in enumerate(others) if other.lower() > feature.lower()), len(others))
    else:
        del others[place]
    if value != _NOTHING:
        others.insert(place, feature)
    return "|".join(others) or _NOTHING
