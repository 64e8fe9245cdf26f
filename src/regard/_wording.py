"""Wording that messages share; light, as the command line imports it at its start."""

from __future__ import annotations

__all__ = ["counted_noun"]


def counted_noun(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural if it is not 1.

    >>> counted_noun(1, "line"), counted_noun(1234, "line")
    ('1 line', '1,234 lines')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
