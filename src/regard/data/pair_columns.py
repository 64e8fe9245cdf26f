"""Columns of files of pairs: their names, their features, and the Unicode form of their text.

Source and target are texts. Features, if a file has them, select one of several targets: in inflection, the form of
a lemma (``V;PST``, ``pos=N,case=DAT``). Each feature is one unit, placed before the units of the source; it
begins with a TAB, so that no unit of a text equals it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from regard.errors import ArgumentError

__all__ = [
    "DEFAULT_COLUMNS",
    "UnicodeForm",
    "check_columns",
    "compose",
    "feature_units",
    "guess_columns",
    "normalize",
]

UnicodeForm = Literal["none", "nfc", "nfd"]

DEFAULT_COLUMNS = ("source", "target")
_SEPARATORS = re.compile(r"[,;|]")
_MARKS = re.compile(r"[,;|=]")


def normalize(text: str, form: UnicodeForm) -> str:
    """Return a text in a Unicode normalization form: ``"nfc"`` composed, ``"nfd"`` decomposed, ``"none"`` unchanged.

    Source: Unicode Standard Annex 15, "Unicode Normalization Forms".

    >>> [len(normalize("한", form)) for form in ("none", "nfc", "nfd")]
    [1, 1, 3]
    """
    if form not in ("none", "nfc", "nfd"):
        raise ArgumentError(f"expected a Unicode form 'none', 'nfc' or 'nfd', got {form!r}")
    return text if form == "none" else unicodedata.normalize("NFD" if form == "nfd" else "NFC", text)


def compose(text: str, form: UnicodeForm) -> str:
    """Return an answer as people write it: composed, if the model was trained on decomposed text.

    >>> compose(normalize("한é", "nfd"), "nfd")
    '한é'
    """
    return unicodedata.normalize("NFC", text) if form == "nfd" else text


def feature_units(features: str) -> list[str]:
    """Return features as units: ``,`` ``;`` or ``|`` ends a feature, and ``key=a+b`` is two values of one key.

    >>> feature_units("V;PST"), feature_units("pos=N,case=IN+ESS")
    (['\\tV', '\\tPST'], ['\\tpos=N', '\\tcase=IN', '\\tcase=ESS'])
    """
    units = []
    for feature in _SEPARATORS.split(features):
        key, sign, values = feature.rpartition("=")
        units += [f"\t{key.strip()}{sign}{value.strip()}" for value in values.split("+") if value.strip()]
    return units


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns as a tuple, if they describe pairs.

    These are source and target, once each, features, at most once, and ``_`` for any other column; `ArgumentError` for
    other names.

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
    """Return the names of two columns, or of three if exactly one looks like features; ``None`` in doubt.

    A column of features has ``,`` ``;`` ``|`` or ``=`` in most rows, and its features recur: on average each occurs
    twice or more. Of the other two columns the source comes first.

    >>> guess_columns([["go", "V;PST", "went"], ["see", "V;PST", "saw"], ["go", "V;PRS", "go"]])
    ('source', 'features', 'target')
    """
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        return None
    if len(rows[0]) == 2:
        return DEFAULT_COLUMNS
    features = [i for i, column in enumerate(zip(*rows, strict=True)) if _are_features(column)]
    if len(rows[0]) != 3 or len(features) != 1:
        return None
    names = list(DEFAULT_COLUMNS)
    names.insert(features[0], "features")
    return tuple(names)


def _are_features(column: Sequence[str]) -> bool:
    units = [unit for cell in column for unit in feature_units(cell)]
    marked = sum(_MARKS.search(cell) is not None for cell in column)
    return 2 * marked > len(column) and 2 * len(set(units)) <= len(units)
