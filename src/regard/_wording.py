"""Words that notes to the user share; light, as the command line takes them at its start."""

from __future__ import annotations

__all__ = ["count"]


def count(n: int, thing: str) -> str:
    """Number and noun.

    >>> count(1, "line"), count(1234, "line")
    ('1 line', '1,234 lines')
    """
    return f"{n:,} {thing}{'' if n == 1 else 's'}"
