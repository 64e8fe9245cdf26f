"""A guess at the task of a file, from its first lines."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from os import PathLike

from regard.data.labelled_texts import is_json
from regard.data.lines import read_lines

__all__ = ["guess_task"]

_LINES = 2000
_CONLLU = re.compile(r"\d+\t(?:[^\t]*\t){8}[^\t]*")


def guess_task(path: str | PathLike[str], columns: str | None = None) -> tuple[str, str]:
    """Return ``(task, reason)``, guessed from the names of the columns, or from the first 2,000 lines.

    Classification: JSON lines, or two columns of which one repeats a few values beside texts of several words.
    Tagging: ten columns of which the first is a number, as in CoNLL-U, or two columns of single words in groups between
    blank lines. All else is seq2seq, without a reason, as is standard input, which can be read only once.
    """
    names = set() if columns is None else set(columns.split(","))
    if "label" in names:
        return "classify", "--columns names a label"
    if names or str(path) == "-":
        return "seq2seq", ""
    lines = list(islice(read_lines(path), _LINES))
    filled = [line for line in lines if line.strip()]
    if filled and is_json(filled[0]):
        return "classify", "JSON lines"
    if any(_CONLLU.fullmatch(line) for line in filled[:100]):
        return "tag", "CoNLL-U"
    rows = [tuple(line.split("\t")) for line in filled]
    if not rows or any(len(row) != 2 for row in rows):
        return "seq2seq", ""
    if _tagged(lines, rows):
        return "tag", "word TAB tag, blank lines between sentences"
    if any(_labels([row[i] for row in rows], [row[1 - i] for row in rows]) for i in (0, 1)):
        return "classify", "one column repeats a few labels"
    return "seq2seq", ""


def _tagged(lines: list[str], rows: list[tuple[str, ...]]) -> bool:
    """Return True if rows come in groups of several, with fewer tags than words."""
    gaps = len(lines) - len(rows)
    tags, words = (len({row[i] for row in rows}) for i in (1, 0))
    single = not any(" " in part.strip() for row in rows for part in row)
    return single and gaps > 0 and len(rows) >= 2 * gaps and tags < words


def _labels(values: list[str], texts: list[str]) -> bool:
    """Return True if a few values are repeated, beside texts most of which have several words."""
    counts = Counter(values)
    several = sum(" " in text.strip() for text in texts)
    often = sum(n for n in counts.values() if n > 1)
    few = 2 <= len(counts) <= max(2, len(values) // 10) and len(counts) < len(set(texts))
    return few and often > 0.9 * len(values) and 2 * several > len(texts)
