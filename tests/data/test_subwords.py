"""Pieces of words: what is split is joined again, and equal texts give equal pieces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard._symbols import UNK
from regard.data import SubwordTokenizer, Vocabulary
from regard.errors import ArgumentError, RunError

TEXTS = ["low lower lowest", "newer wider new, newest!", "Ça va? ça va.", "猫 犬", "e\u0301te\u0301 \u2581x"]
line = st.text(
    st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]) | st.sampled_from("  \u2581\u0301")
)
SUBWORDS = SubwordTokenizer.from_texts(TEXTS, 45)


@given(line)
def test_what_is_split_is_joined_again_whatever_it_holds(text: str) -> None:
    units = SUBWORDS.split(text)
    assert SUBWORDS.join(units) == text
    assert all(units)


@given(st.lists(line, min_size=1), st.integers(0, 40))
def test_texts_to_learn_from_are_made_of_units(texts: list[str], merges: int) -> None:
    characters = set("".join(texts)) | {" "}
    subwords = SubwordTokenizer.from_texts(texts, len(characters) + merges)
    assert len(subwords.units) <= len(characters) + merges
    assert characters - {" "} <= set(subwords.units)
    for text in texts:
        assert set(subwords.split(text)) <= set(subwords.units)
        assert subwords.join(subwords.split(text)) == text


@given(line)
def test_an_unseen_character_is_unknown_by_itself(text: str) -> None:
    vocabulary = Vocabulary.from_units(SUBWORDS.units)
    units = SUBWORDS.split(text)
    unknown = [unit for unit, i in zip(units, vocabulary.encode(units), strict=True) if i == UNK]
    assert unknown == [character for character in text if character not in SUBWORDS.units]


def test_no_unit_crosses_from_a_word_to_another_or_to_punctuation() -> None:
    subwords = SubwordTokenizer.from_texts(["the end, the end, the end."] * 7, 99)
    assert subwords.split("the end, the end.") == [" the", " end", ",", " the", " end", "."]
    assert subwords.split("the  end") == [" the", " ", " end"]


def test_a_word_is_the_same_wherever_it_stands() -> None:
    subwords = SubwordTokenizer.from_texts(["end end end"], 9)
    assert subwords.split("end end") == [" end", " end"]
    assert subwords.split("") == []
    assert subwords.join([]) == ""


def test_frequent_words_stay_whole_and_rare_ones_fall_apart() -> None:
    subwords = SubwordTokenizer.from_texts(["often often often often seldom"], 20)
    assert subwords.split("often") == [" often"]
    assert len(subwords.split("seldom")) > 1


@given(st.randoms())
def test_the_order_of_the_texts_has_no_say(random) -> None:
    random.shuffle(again := list(TEXTS))
    assert SubwordTokenizer.from_texts(again, 45).to_json() == SUBWORDS.to_json()


@pytest.mark.parametrize("environment", [{"PYTHONHASHSEED": "1"}, {"RAYON_NUM_THREADS": "3", "LC_ALL": "C"}])
def test_equal_texts_give_equal_files(environment: dict[str, str]) -> None:
    texts = [f"w{n * n % 97}o{n % 7} r{n % 11}d{n % 5}." for n in range(300)]
    code = (
        "import json, sys\nfrom regard.data.subwords import SubwordTokenizer\n"
        "sys.stdout.buffer.write(SubwordTokenizer.from_texts(json.load(sys.stdin), 150).to_json().encode())"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts).encode(),
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert child.stdout.decode("utf-8") == SubwordTokenizer.from_texts(texts, 150).to_json()


@given(line)
def test_json_keeps_all(text: str) -> None:
    again = SubwordTokenizer.from_json(SUBWORDS.to_json())
    assert again == SUBWORDS
    assert hash(again) == hash(SUBWORDS)
    assert again.units == SUBWORDS.units
    assert again.split(text) == SUBWORDS.split(text)


def test_others_are_not_equal() -> None:
    assert SubwordTokenizer.from_texts(TEXTS, 44) != SUBWORDS
    assert SUBWORDS != "subword"


def test_room_for_the_characters_is_needed() -> None:
    with pytest.raises(
        ArgumentError,
        match="expected at least 4 subwords, one for each character of the texts, got 3; raise the number",
    ):
        SubwordTokenizer.from_texts(["abc"], 3)
    assert SubwordTokenizer.from_texts(["abc"], 4).units == (" ", "a", "b", "c")
    with pytest.raises(ArgumentError, match="at least 1, got -3"):
        SubwordTokenizer.from_texts(["abcd"], -3)


def unknown_of_their_own(text: str) -> str:
    content = json.loads(text)
    content["model"]["unk_token"] = None
    return json.dumps(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "{}",
        lambda text: "[1]",
        lambda text: text[:-9],
        lambda text: text.replace('"BPE"', '"BLT"'),
        lambda text: '{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}',
        unknown_of_their_own,
    ],
)
def test_a_damaged_file_is_said(damage: Callable[[str], str]) -> None:
    with pytest.raises(RunError, match=r"subwords .*restore the file, or train again") as caught:
        SubwordTokenizer.from_json(damage(SUBWORDS.to_json()))
    assert "\n" not in str(caught.value)
