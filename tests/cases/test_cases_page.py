"""Case V2: long texts, subwords however they are marked, all scripts, a token that stands twice."""

from __future__ import annotations

from pathlib import Path

import pytest

import record_by_hand as by_hand
from pages import VISIBLE, Open, choose, listed, tab, units

pytest_plugins = ["browser_fixtures"]

# Pieces of a text as tokenizers cut it, a space before those that begin a word.
PIECES = [" un", "believ", "able", ",", " 注", "意", " سلام", " नम", "स्", "ते", " 👩‍👩‍👧", " the", " the"]


def of_bytes(piece: str) -> str:
    """A piece in the letters of byte-level BPE: bytes that can be seen are themselves, the others follow U+0100."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(0x100) if byte not in seen]
    return "".join(chr(byte if byte in seen else 0x100 + unseen.index(byte)) for byte in piece.encode())


MARKED = {
    "##": ["[CLS]", *(piece.strip() if piece[0] in " ," else f"##{piece}" for piece in PIECES), "[SEP]"],
    "▁": ["<s>", *(piece.replace(" ", "▁") for piece in PIECES), "</s>"],
    "Ġ": ["<|begin|>", *map(of_bytes, PIECES), "<|end|>"],
}


@pytest.mark.parametrize("mark", MARKED)
def test_v2_subwords_are_merged_whatever_marks_them(mark: str, opened: Open, tmp_path: Path) -> None:
    tokens = MARKED[mark]
    page = opened(by_hand.model(len(tokens)).report(tmp_path / "out.html", tokens=tokens))
    words = units(page).all_inner_texts()
    assert words[1:] == ["unbelievable", ",", "注", "意", "سلام", "नमस्ते", "👩‍👩‍👧", "the", "the", tokens[-1]]
    choose(page, "Tokens")
    assert units(page).count() == len(tokens)


def test_v2_the_same_token_twice_is_two(opened: Open, tmp_path: Path) -> None:
    record = by_hand.model(5)
    page = opened(record.report(tmp_path / "out.html", tokens=["the", "cat", "the", "the", "cat"]))
    units(page).nth(4).click()
    assert sorted(listed(page, "Attends to")) == [0, 1, 2, 3, 4]
    tab(page, "Matrix")
    page.locator(".field" + VISIBLE).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator(".cell" + VISIBLE).inner_text().startswith("the 2 → the 2")


def test_v2_a_text_of_2048_tokens(opened: Open, tmp_path: Path) -> None:
    path = by_hand.long(12, 12, 2048).report(tmp_path / "out.html")
    assert path.stat().st_size < 5_000_000
    page = opened(path)
    for place in (2047, 1000, 3):
        units(page).nth(place).click()
        assert listed(page, "Attends to")
    page.keyboard.press("End")
    last = page.locator(".unit[aria-selected=true]")
    box, view = last.bounding_box(), page.locator(".scroll" + VISIBLE).first.bounding_box()
    assert view["y"] <= box["y"] <= view["y"] + view["height"]


HOSTILE = [
    "</script><img src=x onerror=document.title='broken'>",
    "<b>bold</b>",
    "\u202edrow",
    "\x00",
    "&amp;",
    "${title}",
]


def test_v2_tokens_are_shown_as_text(opened: Open, tmp_path: Path) -> None:
    page = opened(by_hand.model(len(HOSTILE)).report(tmp_path / "out.html", tokens=HOSTILE, title="<i>$title</i>"))
    assert page.title() == "<i>$title</i>"
    assert page.locator("img, b, i").count() == 0
    shown = units(page).all_inner_texts()
    assert shown[0] == HOSTILE[0]
    assert shown[1:] == ["<b>bold</b>", "U+202Edrow", "U+0000", "&amp;", "${title}"]
    units(page).nth(0).click()
    for name in ("Matrix", "Step by step"):
        tab(page, name)
    assert page.title() == "<i>$title</i>"


@pytest.mark.parametrize(("tokens", "direction"), [(["שלום", "לך", "עולם", "גדול"], "rtl"), (["注意力机制"], "ltr")])
def test_v2_a_text_runs_in_its_own_direction(tokens: list[str], direction: str, opened: Open, tmp_path: Path) -> None:
    tokens = tokens if len(tokens) > 1 else list(tokens[0])
    page = opened(by_hand.model(len(tokens)).report(tmp_path / "out.html", tokens=tokens))
    boxes = [unit.bounding_box()["x"] for unit in units(page).all()]
    assert boxes == sorted(boxes, reverse=direction == "rtl")
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowLeft" if direction == "rtl" else "ArrowRight")
    assert page.locator(".unit[aria-selected=true]").inner_text() == tokens[1]
