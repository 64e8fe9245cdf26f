"""Exact match and edits against references."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard.training.metrics import Scores, edit_distance, score

short = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


def by_definition(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The recursion of the definition, without any table to get wrong."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


@given(short, short)
def test_edit_distance_is_the_one_of_the_definition(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    assert edit_distance(a, b) == by_definition(a, b)


def test_edit_distance_counts_units_not_characters() -> None:
    assert edit_distance(["AE1", "T"], ["AH0", "T"]) == 1
    assert edit_distance([], ["AE1", "T"]) == edit_distance(["AE1", "T"], []) == 2


def test_edit_distance_is_exact_for_a_long_shifted_text() -> None:
    # A search in a band of 25 around the diagonal finds 150.
    text = [chr(0x4E00 + i) for i in range(150)]
    assert edit_distance(text, [*text[35:], *"x" * 35]) == 70


def test_scores_by_hand() -> None:
    scores = score([list("abc"), list("ab"), [], list("xyz")], [list("abc"), list("abc"), ["a"], ["y"]])
    assert scores == Scores(count=4, correct=1, edits=0 + 1 + 1 + 2, units=3 + 3 + 1 + 1)
    assert (scores.exact, scores.wer_percent, scores.error_rate) == (0.25, 75.0, 0.5)
    assert scores.as_dict() == {"exact": 0.25, "wer_percent": 75.0, "error_rate": 0.5, "count": 4}
    assert scores.text("CER") == "exact 25.00 %, WER 75.00 %, CER 50.00 % (4 pairs)"


def test_order_and_kind_of_sequence_do_not_matter() -> None:
    assert score([("a", "b")], [["a", "b"]]).exact == 1.0
    assert str(score([("a", "b")], [["b", "a"]])) == "exact 0.00 %, WER 100.00 %, PER 100.00 % (1 pair)"


def test_outputs_where_nothing_was_right_to_say() -> None:
    assert score([["a"]], [[]]).error_rate == 1.0
    assert score([[]], [[]]).error_rate == 0.0


@pytest.mark.parametrize(("outputs", "references"), [([], []), ([["a"]], []), ([["a"]], [["a"], ["b"]])])
def test_numbers_that_differ_are_refused(outputs: list[list[str]], references: list[list[str]]) -> None:
    with pytest.raises(ArgumentError, match=f"got {len(outputs)} and {len(references)}"):
        score(outputs, references)
