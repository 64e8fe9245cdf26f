"""Tokenizers without anything to learn: what they split and join, refuse, and which one is guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import SeparatorTokenizer
from regard.data.tokenizer import guess_tokenizer
from regard.errors import ArgumentError

CHARS, WORDS = SeparatorTokenizer("chars"), SeparatorTokenizer("words")


@given(st.lists(st.characters()))
def test_chars_split_what_they_join(units: list[str]) -> None:
    assert CHARS.split(CHARS.join(units)) == units


@given(st.text())
def test_chars_join_what_they_split(line: str) -> None:
    assert CHARS.join(CHARS.split(line)) == line


@given(st.data(), st.sampled_from(["words", "|", " ", "##", "-+-", "é", "x"]))
def test_separated_units_split_what_they_join(data: st.DataObject, name: str) -> None:
    units = SeparatorTokenizer(name)
    free = st.text(st.characters(exclude_characters=units.separator), min_size=1)
    wanted = data.draw(st.lists(free))
    assert units.split(units.join(wanted)) == wanted


@pytest.mark.parametrize("name", ["words", "|"])
def test_separators_in_a_row_and_at_the_ends_make_no_units(name: str) -> None:
    units = SeparatorTokenizer(name)
    assert units.split("|a||b|".replace("|", units.separator)) == ["a", "b"]


def test_words_end_at_spaces_alone() -> None:
    assert WORDS.split("a\u00a0b c\u3000d\u2028e") == ["a\u00a0b", "c\u3000d\u2028e"]


@pytest.mark.parametrize("name", ["", "\t", "a\n", "\r", "char", "Words", "characters"])
def test_a_separator_that_cannot_be_meant_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=r"'chars', 'words', 'subword' .* or a separator"):
        SeparatorTokenizer(name)


@pytest.mark.parametrize(
    ("lines", "units"),
    [
        (["K AE T", "D AO G", "OW"], "words"),
        (["cat", "dog", "bird of paradise"], "chars"),
        (["Ada Lovelace", "Alan Turing"], "chars"),
        (["ab", "a b c"], "chars"),
        (["猫", "犬"], "chars"),
        ([], "chars"),
    ],
)
def test_guess(lines: list[str], units: str) -> None:
    assert guess_tokenizer(lines) == SeparatorTokenizer(units)
