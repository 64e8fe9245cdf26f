"""Examples held out from the training data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Pair, Pairs, SeparatorTokenizer, split_off
from regard.errors import ArgumentError, DataError

CHARS, WORDS = SeparatorTokenizer("chars"), SeparatorTokenizer("words")


examples = st.lists(
    st.builds(Pair, st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), st.just(("A",))), min_size=1
)
some = examples.filter(lambda drawn: len({example.source for example in drawn}) > 1)


def of(drawn: list[Pair]) -> Pairs:
    return Pairs(drawn, CHARS, WORDS, "data.tsv", ["data.tsv: read"])


@given(some, st.floats(0.01, 0.99), st.integers(1, 9), st.integers(0, 99), st.randoms())
def test_split_off_parts_the_sources(drawn: list[Pair], fraction: float, at_most: int, seed: int, random) -> None:
    train, dev = split_off(of(drawn), fraction=fraction, at_most=at_most, seed=seed)
    assert sorted(train.examples + dev.examples) == sorted(drawn)
    assert train.examples
    assert 1 <= len({example.source for example in dev.examples}) <= at_most
    assert not {example.source for example in train.examples} & {example.source for example in dev.examples}
    random.shuffle(again := list(drawn))
    assert sorted(split_off(of(again), fraction=fraction, at_most=at_most, seed=seed)[1].examples) == sorted(
        dev.examples
    )


def test_split_off_says_what_it_did_and_follows_the_seed() -> None:
    pairs = of([Pair((str(n),), ("A",)) for n in range(50)])
    train, dev = split_off(pairs)
    assert (len(train), len(dev)) == (45, 5)
    said = "data.tsv: 5 of 50 examples held out to select the best model (no --dev)"
    assert (train.notes, dev.notes) == (["data.tsv: read", said], [])
    assert pairs.notes == ["data.tsv: read"]
    assert split_off(pairs, seed=1)[1].examples != dev.examples


def test_split_off_leaves_a_source_to_train_on() -> None:
    train, dev = split_off(of([Pair(("a",), ("A",)), Pair(("b",), ("B",))]), fraction=0.99)
    assert (len(train), len(dev)) == (1, 1)


@pytest.mark.parametrize("count", [1, 3])
def test_one_source_cannot_be_split(count: int) -> None:
    with pytest.raises(DataError, match=r"^data.tsv: expected at least two different inputs.*found 1; .*--dev$"):
        split_off(of([Pair(("a",), (str(n),)) for n in range(count)]))


@pytest.mark.parametrize("options", [{"fraction": 0.0}, {"fraction": 1.0}, {"at_most": 0}])
def test_split_off_checks_its_options(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="fraction between 0 and 1"):
        split_off(of([Pair(("a",), ("A",)), Pair(("b",), ("B",))]), **options)
