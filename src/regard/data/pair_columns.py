"""What the columns of a file of pairs hold, and what is done to their text before it is cut into units.

Source and target are texts. Features, where a file has them, tell which of several targets is asked for: in inflection
the form of a lemma (``V;PST``, ``pos=N,case=DAT``). Each feature is one unit that no text can spell, as it begins with
a TAB, and stands before the units of the source.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from regard.errors import ArgumentError

__all__ = ["PLAIN", "Normal", "check_columns", "compose", "feature_units", "guess_columns", "normalize"]

Normal = Literal["none", "nfc", "nfd"]

PLAIN = ("source", "target")
_BETWEEN = re.compile(r"[,;|]")
_MARKS = re.compile(r"[,;|=]")


def normalize(text: str, normal: Normal) -> str:
    """The text in a normal form of Unicode: composed (``"nfc"``), decomposed (``"nfd"``), or as it is (``"none"``).

    Source: Unicode Standard Annex 15, "Unicode Normalization Forms".

    >>> [len(normalize("한", normal)) for normal in ("none", "nfc", "nfd")]
    [1, 1, 3]
    """
    if normal not in ("none", "nfc", "nfd"):
        raise ArgumentError(f"normal: expected 'none', 'nfc' or 'nfd', got {normal!r}")
    return text if normal == "none" else unicodedata.normalize("NFD" if normal == "nfd" else "NFC", text)


def compose(text: str, normal: Normal) -> str:
    """An answer as people write it: composed, where ``normalize`` has decomposed what the model learnt from.

    >>> compose(normalize("한é", "nfd"), "nfd")
    '한é'
    """
    return unicodedata.normalize("NFC", text) if normal == "nfd" else text


def feature_units(features: str) -> list[str]:
    """Features, one unit each: they end at ``,`` ``;`` or ``|``, and ``key=a+b`` has two values of one key.

    >>> feature_units("V;PST"), feature_units("pos=N,case=IN+ESS")
    (['\\tV', '\\tPST'], ['\\tpos=N', '\\tcase=IN', '\\tcase=ESS'])
    """
    units = []
    for feature in _BETWEEN.split(features):
        key, sign, values = feature.rpartition("=")
        units += [f"\t{key.strip()}{sign}{value.strip()}" for value in values.split("+") if value.strip()]
    return units


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The names of columns, if they make pairs: source and target once each, features at most once, ``_`` for others.

    >>> check_columns(["source", "target", "features"])
    ('source', 'target', 'features')
    """
    known = all(name in ("source", "target", "features", "_") for name in columns)
    once = columns.count("source") == columns.count("target") == 1 and columns.count("features") <= 1
    if not known or not once:
        raise ArgumentError(
            f"columns: expected source and target once each, features at most once, and _ for others, "
            f"got {','.join(columns)!r}"
        )
    return tuple(columns)


def guess_columns(rows: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    """The names of two columns, or of three if just one looks like features; ``None`` where there is doubt.

    Features have ``,`` ``;`` ``|`` or ``=`` in most rows, and what stands between these recurs: on average each is
    there twice or more. Of the other two columns, source comes first.

    >>> guess_columns([["go", "V;PST", "went"], ["see", "V;PST", "saw"], ["go", "V;PRS", "go"]])
    ('source', 'features', 'target')
    """
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        return None
    if len(rows[0]) == 2:
        return PLAIN
    found = [i for i, column in enumerate(zip(*rows, strict=True)) if _are_features(column)]
    if len(rows[0]) != 3 or len(found) != 1:
        return None
    names = list(PLAIN)
    names.insert(found[0], "features")
    return tuple(names)


def _are_features(column: Sequence[str]) -> bool:
    units = [unit for cell in column for unit in feature_units(cell)]
    marked = sum(_MARKS.search(cell) is not None for cell in column)
    return 2 * marked > len(column) and 2 * len(set(units)) <= len(units)
