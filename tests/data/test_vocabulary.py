"""The map between units and ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard._symbols import BOS, EOS, PAD, SPECIALS, UNK
from regard.data import Vocabulary
from regard.errors import ArgumentError, RunError

units = st.lists(st.text(max_size=3) | st.sampled_from(SPECIALS))


@given(units)
def test_decode_gives_back_what_encode_took(seen: list[str]) -> None:
    vocabulary = Vocabulary.from_units(seen)
    ids = vocabulary.encode(seen)
    assert vocabulary.decode(ids) == seen
    assert vocabulary.decode([BOS, *ids, EOS, PAD, PAD]) == seen
    assert all(len(SPECIALS) <= i < len(vocabulary) for i in ids)


@given(units, st.randoms())
def test_ids_depend_on_the_set_of_units_alone(seen: list[str], random) -> None:
    again = seen + seen[: len(seen) // 2]
    random.shuffle(again)
    assert Vocabulary.from_units(again) == Vocabulary.from_units(seen)
    assert Vocabulary.from_units(again).to_json() == Vocabulary.from_units(seen).to_json()


@given(units)
def test_json_keeps_every_id(seen: list[str]) -> None:
    vocabulary = Vocabulary.from_units(seen)
    read = Vocabulary.from_json(vocabulary.to_json())
    assert read == vocabulary
    assert read.encode(seen) == vocabulary.encode(seen)


@given(units, units)
def test_unseen_counts_what_becomes_unk(seen: list[str], text: list[str]) -> None:
    vocabulary = Vocabulary.from_units(seen)
    assert (
        len(vocabulary.unseen_units(text))
        == vocabulary.encode(text).count(UNK)
        == sum(unit not in seen for unit in text)
    )


def test_the_symbols_of_the_model_cannot_be_written_in_data() -> None:
    vocabulary = Vocabulary.from_units(["<pad>", "<eos>", "a"])
    assert vocabulary.encode(["<pad>", "<eos>", "<bos>"]) == [5, 4, UNK]
    assert len(vocabulary) == 7


def test_decode_stops_at_eos_and_passes_over_pad_and_bos() -> None:
    vocabulary = Vocabulary.from_units("ab")
    assert vocabulary.decode([BOS, 4, PAD, UNK, 5, EOS, 4]) == ["a", "<unk>", "b"]
    assert vocabulary.decode([]) == vocabulary.decode([EOS, 4]) == []


@pytest.mark.parametrize("wrong", [-1, 6])
def test_an_id_outside_is_refused(wrong: int) -> None:
    with pytest.raises(ArgumentError, match=f"from 0 to 5, got {wrong}"):
        Vocabulary.from_units("ab").decode([4, wrong])


@pytest.mark.parametrize("wrong", [("b", "a"), ("a", "a")])
def test_units_out_of_order_are_refused(wrong: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError, match="sorted and distinct"):
        Vocabulary(wrong)


@pytest.mark.parametrize(
    "text", ["", "[", "[" * 100_000, "{}", "null", "[1]", '["b", "a"]', '["a", "a"]', '["a", null]', '"ab"']
)
def test_a_damaged_vocabulary_is_said(text: str) -> None:
    with pytest.raises(RunError, match="restore the file, or train again") as caught:
        Vocabulary.from_json(text)
    assert "\n" not in str(caught.value)
