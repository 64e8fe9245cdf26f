"""Labels of units of text (a letter, a phone, a word) in a picture, and the fonts that have their characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import matplotlib
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font

from regard._symbols import BOS, EOS, SPECIALS

__all__ = ["drawable", "families", "visible"]

LONGEST = 24
"""The most characters of a label; of a longer one, the beginning is shown."""

SIGNS = {"": "∅", SPECIALS[BOS]: "⇤", SPECIALS[EOS]: "⏎"}
SPACES = {" ": "␣", "\N{IDEOGRAPHIC SPACE}": "␣", "\N{NO-BREAK SPACE}": "⍽", "\t": "⇥", "\n": "↵"}
DOTTED_CIRCLE = "◌"

FIRST_FAMILY = "DejaVu Sans"  # comes with matplotlib: Latin, IPA, Greek, Cyrillic, Armenian, Georgian, Hebrew, Arabic
CJK_PACKAGE, CJK_FILE = "notojp_matplotlib", "fonts/NotoSansCJKjp-Regular.otf"


def visible(unit: str) -> str:
    """Return the unit as a label on one line: a sign for a space, a circle under a lone mark, an arrow for the end.

    A character that no font can draw is replaced by its code point, ``U+0378``.

    >>> visible("two words"), visible(""), visible("<eos>"), visible("t͡ʃ")
    ('two␣words', '∅', '⏎', 't͡ʃ')
    >>> visible("\\u0301"), visible("\\u200f"), visible("a\\u0378")
    ('◌́', 'U+200F', 'aU+0378')
    """
    if unit in SIGNS:
        return SIGNS[unit]
    text = "".join(SPACES.get(char, char) for char in unit)
    if unicodedata.category(text[0]).startswith("M"):
        text = DOTTED_CIRCLE + text
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    return drawable(text)


def drawable(text: str) -> str:
    """Replace every character that no font can draw, or that is invisible, by its code point.

    >>> drawable("in Ordnung"), drawable("bell\\a")
    ('in Ordnung', 'bellU+0007')
    """
    joined = any(unicodedata.category(char)[0] in "LM" for char in text)
    return "".join(char if _is_drawable(char, joined) else f"U+{ord(char):04X}" for char in text)


def families(texts: Iterable[str]) -> list[str]:
    """Return the font families, the usual one first, that together have all characters of the texts.

    >>> families(["attention"])
    ['DejaVu Sans']
    """
    found = {_family(char) for text in texts for char in set(text)} - {FIRST_FAMILY, None}
    return [FIRST_FAMILY, *sorted(family for family in found if family is not None)]


def _is_drawable(char: str, joined: bool) -> bool:
    if char in "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}":
        return joined  # within a word they shape their neighbours; alone they are invisible
    is_visible = char == " " or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp")
    return is_visible and _family(char) is not None


@cache
def _family(char: str) -> str | None:
    """Return the first family that has a glyph for the character."""
    return next((family for family in _all_families() if ord(char) in _characters(family)), None)


def _all_families() -> Iterator[str]:
    """Yield DejaVu Sans, the CJK font of the extra `look`, then installed upright families, sans serif first."""
    yield FIRST_FAMILY
    if (cjk := _cjk_family()) is not None:
        yield cjk
    yield from _installed_families()


@cache
def _cjk_family() -> str | None:
    spec = find_spec(CJK_PACKAGE)  # found, not imported: importing it would change matplotlib's settings
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / CJK_FILE
    if not file.exists():
        return None
    fontManager.addfont(file)
    return FT2Font(file).family_name


@cache
def _installed_families() -> tuple[str, ...]:
    own = str(matplotlib.get_data_path())  # matplotlib's own others are for formulas, or draw a box for any character
    names = {
        font.name
        for font in fontManager.ttflist
        if font.style == "normal"
        and font.weight in (400, "normal", "regular")
        and not font.fname.startswith(own)
        and "lastresort" not in font.name.lower().replace(" ", "")
    }
    return tuple(sorted(names, key=lambda name: ("sans" not in name.lower(), name)))


@cache
def _characters(family: str) -> frozenset[int]:
    """Return the code points for which the family's regular font has a glyph."""
    try:
        return frozenset(FT2Font(findfont(FontProperties(family=[family]), fallback_to_default=False)).get_charmap())
    except (OSError, RuntimeError, ValueError):
        return frozenset()  # a font file that is broken or gone: the next family is tried
