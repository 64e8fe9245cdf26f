"""Wording shared by messages; without heavy imports, as the command line imports it at startup."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted_noun", "first_few"]


def counted_noun(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural if it is not 1.

    >>> counted_noun(1, "line"), counted_noun(1234, "line")
    ('1 line', '1,234 lines')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def first_few(items: Sequence[str], most: int = 5) -> str:
    """Return the first items, separated by commas; an invisible one, or one that contains a comma, is quoted.

    >>> first_few(["a", " ", "b"]), first_few("abc", most=2)
    ("a, ' ', b", 'a, b, ...')
    """
    visible = (item if item.isprintable() and item.strip() and "," not in item else repr(item) for item in items[:most])
    return ", ".join([*visible, *["..."] * (len(items) > most)])
