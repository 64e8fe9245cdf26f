"""Columns of files of pairs, their features, and Unicode forms."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Pair, Pairs, SeparatorTokenizer, read_pairs
from regard.data.pair_columns import compose
from regard.data.pairs import read_sources, source_text, split_source
from regard.errors import ArgumentError, DataError

CHARS, WORDS = SeparatorTokenizer("chars"), SeparatorTokenizer("words")


def texts(pairs: Pairs) -> list[tuple[str, str]]:
    return [(pairs.source_tokenizer.join(e.source), pairs.target_tokenizer.join(e.target)) for e in pairs.examples]


odd = st.sampled_from("\"'\u2028\u2029\u0085\v\f\x1c\x00\ufeff\u00a0\u3000 ")
side = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]) | odd, min_size=1).filter(
    str.strip
)
INFLECTED = "go\tV;PST\twent\nsee\tV;PST\tsaw\ngo\tV;PRS\tgoes\n"


def test_features_are_units_before_the_source_that_no_text_can_spell(write) -> None:
    pairs = read_pairs(write(INFLECTED), CHARS, CHARS)
    assert pairs.columns == ("source", "features", "target")
    assert pairs.examples[0] == Pair(("\tV", "\tPST", "g", "o"), tuple("went"))
    (summary, guessed) = pairs.notes
    assert summary.endswith(": 3 pairs")
    assert guessed == f"{pairs.name}: columns: SOURCE TAB FEATURES TAB TARGET (guessed)"


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (("source", "features", "target"), "go\tV;PST\twent"),
        (("source", "target", "features"), "go\twent\tV;PST"),
        (("features", "source", "target"), "V;PST\tgo\twent"),
        (("_", "target", "source", "_", "features"), "1\twent\tgo\t\tV;PST"),
    ],
)
def test_columns_may_stand_in_any_order(write, columns: tuple[str, ...], line: str) -> None:
    path = write("\ufeff" + "\r\n".join([line] * 3))
    pairs = read_pairs(path, CHARS, CHARS, columns=columns)
    assert set(pairs.examples) == {Pair(("\tV", "\tPST", "g", "o"), tuple("went"))}
    assert pairs.notes == [f"{path}: 3 pairs; 2 duplicates"]
    if len(columns) == 3:
        assert read_pairs(path, CHARS, CHARS).columns == columns


def test_ignored_columns_may_be_empty_and_features_are_not_needed(write) -> None:
    pairs = read_pairs(write("go\t\twent\nsee\tx\tsaw\n"), CHARS, CHARS, columns=("source", "_", "target"))
    assert texts(pairs) == [("go", "went"), ("see", "saw")]
    assert pairs.columns == ("source", "_", "target")


cell = st.text(st.characters(exclude_characters="\t\n\r,;|=+", exclude_categories=["Cs"]), min_size=1).filter(str.strip)
feature = st.tuples(st.sampled_from(["", "pos=", "case="]), st.lists(cell, min_size=1, max_size=2))


@given(cell, st.lists(feature, min_size=1), st.sampled_from([";", ",", " | "]))
def test_sources_with_features_can_be_written_back(source: str, features, between: str) -> None:
    line = f"{source}\t{between.join(key + '+'.join(values) for key, values in features)}"
    units = split_source(line, CHARS, ("source", "features", "target"))
    wanted = [f"{key}{value.strip()}" for key, values in features for value in values]
    assert units == [*(f"\t{one}" for one in wanted), *source]
    assert source_text(units, CHARS) == f"{source}\t{';'.join(wanted)}"
    assert split_source(source_text(units, CHARS), CHARS, ("source", "target", "features")) == units


def test_sources_without_features_are_what_they_were() -> None:
    assert split_source("a\tb", CHARS) == ["a", "\t", "b"]
    assert split_source("", CHARS) == []
    assert source_text(["a", "b"], WORDS) == "a b"


@pytest.mark.parametrize("line", ["go", "go\t", "\tV", "go\t;,|", "go\tV\tPST"])
def test_a_line_without_features_gets_no_answer_from_a_model_with_them(write, line: str) -> None:
    path = write(f"see\tV;PST\n\n  \n{line}\n")
    found = read_sources(path, CHARS, ("source", "features", "target"))
    assert [next(found) for _ in range(3)] == [["\tV", "\tPST", *"see"], [], []]
    with pytest.raises(DataError, match=r"data\.tsv:4: expected SOURCE TAB FEATURES, .*; give both") as caught:
        next(found)
    assert repr(line) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "go\twent\tgone\nsee\tsaw\tseen\n" * 9,  # nothing like features
        "Go.\tVa !\tCC-BY 2.0 #1\nRun!\tCours !\tCC-BY 2.0 #2\n" * 9,
        "a;b\tV;PST\tx\n" * 9,  # two columns that could be
        "a\tV;PST\tx\n",  # too little to tell
        "a\tb\tV;PST\tx\n" * 9,  # one column too many
        "the end\tnear, or far\tx\nend, the\tclose, yes, so\ty\n",  # commas of sentences, which do not recur
    ],
)
def test_columns_in_doubt_are_asked_for(write, content: str) -> None:
    with pytest.raises(DataError, match=r":1: expected SOURCE TAB TARGET, found [23] TABs .*--columns source,target,_"):
        read_pairs(write(content), CHARS, CHARS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\tN;PL", "found 1 TAB in 'a\\tN;PL'; correct or delete"),
        ("a", "found no TAB in 'a'; separate columns by one TAB, not by spaces"),
        ("a\tN;PL\tx\ty", "found 3 TABs in"),
        ("a\t\tx", "found an empty features column in"),
        ("a\tV\t ", "found an empty target column in"),
        ("a\tN\tx\rb\tN\ty", "found lines that end in CR alone"),
    ],
)
def test_a_line_with_other_columns_is_placed(write, line: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_pairs(write(INFLECTED + line + "\n"), CHARS, CHARS)
    said = str(caught.value)
    assert "data.tsv:4: expected SOURCE TAB FEATURES TAB TARGET, " in said
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "columns", [(), ("source",), ("source", "source", "target"), ("source", "target", "label"), ("target", "features")]
)
def test_columns_that_make_no_pairs_are_refused(write, columns: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError, match="columns: expected source and target once each"):
        read_pairs(write(INFLECTED), columns=columns)


# Unicode forms


@given(st.lists(st.tuples(side, side), min_size=1), st.sampled_from(["nfc", "nfd"]))
def test_both_sides_are_read_in_the_normal_form(tmp_path_factory, drawn, normal: str) -> None:
    path = tmp_path_factory.getbasetemp() / "normal.tsv"
    path.write_bytes("".join(f"x{source}\tx{target}\n" for source, target in drawn).encode())
    pairs = read_pairs(path, CHARS, CHARS, unicode_form=normal)
    form = normal.upper()
    assert texts(pairs) == [
        (unicodedata.normalize(form, "x" + source), unicodedata.normalize(form, "x" + target))
        for source, target in drawn
    ]
    assert pairs.unicode_form == normal


def test_decomposed_answers_are_composed_again(write) -> None:
    path = write("한글\tha n\u0303\n")
    decomposed = read_pairs(path, CHARS, WORDS, unicode_form="nfd")
    assert decomposed.examples == [Pair(tuple("\u1112\u1161\u11ab\u1100\u1173\u11af"), ("ha", "n\u0303"))]
    assert compose("".join(decomposed.examples[0].source), "nfd") == "한글"
    assert compose("n\u0303", "none") == "n\u0303"
    assert split_source("한", CHARS, unicode_form="nfd") == ["\u1112", "\u1161", "\u11ab"]
    with pytest.raises(ArgumentError, match="expected a Unicode form 'none', 'nfc' or 'nfd', got 'nfkc'"):
        read_pairs(path, unicode_form="nfkc")
