"""Outputs against references: values by hand, by definition, and as the libraries of the field have them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard.tasks import Scores, edit_distance, score_labels, score_tags, score_texts, score_units

short = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)
labels = st.lists(st.sampled_from("abcde"), min_size=1, max_size=13)


def by_definition(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The recursion of the definition, without any table to get wrong."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


def f1_by_definition(outputs: list[str], references: list[str]) -> float:
    """From precision and recall, over the labels that are given or due."""
    pairs = list(zip(outputs, references, strict=True))
    found = []
    for label in {*outputs, *references}:
        right = sum(a == b == label for a, b in pairs)
        precision = right / max(1, outputs.count(label))
        recall = right / max(1, references.count(label))
        found.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return sum(found) / len(found)


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


def test_units_by_hand() -> None:
    scores = score_units([list("abc"), list("ab"), [], list("xyz")], [list("abc"), list("abc"), ["a"], ["y"]], "CER")
    assert scores.values == {"exact": 0.25, "wer_percent": 75.0, "error_rate": (0 + 1 + 1 + 2) / (3 + 3 + 1 + 1)}
    assert scores.sort_key == (-3, -4)
    assert scores.as_dict() == {"exact": 0.25, "wer_percent": 75.0, "error_rate": 0.5, "count": 4}
    assert str(scores) == "exact 25.00 %, WER 75.00 %, CER 50.00 % (4 pairs)"


def test_order_and_kind_of_sequence_do_not_matter() -> None:
    assert score_units([("a", "b")], [["a", "b"]]).values["exact"] == 1.0
    assert str(score_units([("a", "b")], [["b", "a"]])) == "exact 0.00 %, WER 100.00 %, PER 100.00 % (1 pair)"


def test_outputs_where_nothing_was_right_to_say() -> None:
    assert score_units([["a"]], [[]]).values["error_rate"] == 1.0
    assert score_units([[]], [[]]).values["error_rate"] == 0.0


def test_with_equally_many_wrong_the_fewer_edits_sort_higher() -> None:
    references = ["abc", "abc", "abc"]
    one, near, far = (score_units(outputs, references) for outputs in (
        ["abc", "xyz", "abc"], ["abc", "abx", "abx"], ["abc", "xyz", "abx"]
    ))  # fmt: skip
    assert one.sort_key > near.sort_key > far.sort_key


def test_tags_by_hand() -> None:
    scores = score_tags([["N", "V", "N"], ["V"], []], [["N", "V", "V"], ["V"], []])
    assert scores.values["accuracy"] == 3 / 4
    assert scores.values["sentence_accuracy"] == 2 / 3
    assert scores.values["macro_f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert str(scores) == "accuracy 75.00 %, whole sentences 66.67 %, macro F1 73.33 % (3 sentences)"


def test_labels_by_hand() -> None:
    scores = score_labels(["yes", "no", "no"], ["yes", "yes", "never seen"])
    assert scores.values["accuracy"] == 1 / 3
    assert scores.values["macro_f1"] == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert scores.as_dict()["count"] == 3
    assert score_labels(["a"], ["a"]).values == {"accuracy": 1.0, "macro_f1": 1.0}


@given(st.data())
def test_f1_is_the_one_of_the_definition(data: st.DataObject) -> None:
    references = data.draw(labels)
    outputs = data.draw(st.lists(st.sampled_from("abcde"), min_size=len(references), max_size=len(references)))
    scores = score_labels(outputs, references)
    assert scores.values["macro_f1"] == pytest.approx(f1_by_definition(outputs, references), abs=1e-6)
    # One sentence of tags and many texts of labels are the same words
    assert score_tags([outputs], [references]).values["macro_f1"] == scores.values["macro_f1"]
    assert score_tags([[o] for o in outputs], [[r] for r in references]).sort_key[0] == scores.sort_key[0]


def test_texts_are_scored_as_sacrebleu_scores_them() -> None:
    import sacrebleu

    outputs = ["The cat sat on the mat, at last.", "A dog.", "Straße und Wege"]
    references = ["The cat sat on the mat at last.", "A dog.", "Straßen und Wege!"]
    scores = score_texts(outputs, references)
    assert scores.values["bleu"] == sacrebleu.corpus_bleu(outputs, [references]).score
    assert scores.values["chrf"] == sacrebleu.corpus_chrf(outputs, [references]).score
    assert scores.values["exact"] == 1 / 3
    assert scores.sort_key == (scores.values["bleu"], scores.values["chrf"])
    assert f"BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}" in scores.signature
    assert "chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no" in scores.signature
    assert scores.as_dict()["signature"] == scores.signature


SCORED: dict[str, tuple[Callable[..., Scores], Callable[[str], Any]]] = {
    "units": (score_units, list),
    "texts": (score_texts, str),
    "tags": (score_tags, str.split),
    "labels": (score_labels, lambda text: text.split()[0]),
}


@pytest.fixture(params=SCORED)
def scored(request: pytest.FixtureRequest) -> Callable[..., Scores]:
    """Each function of scores on the same made-up sentences, of which two in three are right."""
    function, form = SCORED[request.param]
    random_ = random.Random(7)
    references = [" ".join(random_.choice(["ab", "bcd", "ce"]) for _ in range(5)) for _ in range(97)]
    outputs = [text if random_.random() < 2 / 3 else "ce ab " + text[6:] for text in references]
    outputs = [
        output if len(output.split()) == 5 else reference for output, reference in zip(outputs, references, strict=True)
    ]

    def score(**options: Any) -> Scores:
        return function([form(text) for text in outputs], [form(text) for text in references], **options)

    return score


def test_intervals_lie_around_every_value_and_are_the_same_each_time(scored: Callable[..., Scores]) -> None:
    scores = scored(confidence=True)
    assert scores.intervals.keys() == scores.values.keys()
    for name, (low, high) in scores.intervals.items():
        assert low < scores.values[name] < high
    assert scored(confidence=True) == scores
    assert not scored().intervals


def test_scores_come_back_from_json_and_from_a_checkpoint(scored: Callable[..., Scores], tmp_path: Any) -> None:
    scores = scored(confidence=True)
    for value in (*scores.values.values(), *scores.sort_key):
        assert type(value) is float
    assert json.loads(json.dumps(scores.as_dict()))["count"] == 97
    torch.save(vars(scores), tmp_path / "scores")
    assert Scores(**torch.load(tmp_path / "scores", weights_only=True)) == scores


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Of models that are right in 70 % of cases, 95 % of the intervals hold 70 %."""
    random_, covered, trials = random.Random(3), 0, 150
    for _ in range(trials):
        outputs = ["a" if random_.random() < 0.7 else "b" for _ in range(101)]
        low, high = score_units(outputs, ["a"] * 101, confidence=True).intervals["exact"]
        covered += low <= 0.7 <= high
    assert 0.88 <= covered / trials <= 1


def test_intervals_of_sentences_draw_sentences_whole() -> None:
    """Nine words that stand or fall together tell less than nine alone."""
    right = [True, False] * 19
    alone = score_labels(["a" if r else "b" for r in right for _ in range(9)], ["a"] * 342, confidence=True)
    whole = score_tags([["a" if r else "b"] * 9 for r in right], [["a"] * 9] * 38, confidence=True)
    assert whole.values["accuracy"] == alone.values["accuracy"] == 0.5

    def width(scores: Scores) -> float:
        low, high = scores.intervals["accuracy"]
        return high - low

    assert width(whole) == pytest.approx(3 * width(alone), rel=0.15)


@pytest.mark.parametrize("function", [function for function, _ in SCORED.values()])
@pytest.mark.parametrize(("outputs", "references"), [([], []), (["a"], []), (["a"], ["a", "b"])])
def test_numbers_that_differ_are_refused(
    function: Callable[..., Scores], outputs: list[str], references: list[str]
) -> None:
    with pytest.raises(ArgumentError, match=f"got {len(outputs)} and {len(references)}"):
        function(outputs, references)


def test_tags_for_other_words_are_refused() -> None:
    with pytest.raises(ArgumentError, match="sentence 1: expected one tag for each of its 2 words, got 1"):
        score_tags([["a"], ["a"]], [["a"], ["a", "b"]])
    with pytest.raises(ArgumentError, match="at least one word"):
        score_tags([[]], [[]])
