"""CoNLL-U and WORD TAB TAG lines: what is read, what is written back, and errors with their places; conllu checks."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path

import conllu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.conllu import Sentence, check_column, read
from regard.errors import ArgumentError, DataError

TEXT = """\
# newdoc id = weblog-1
# text = Vámonos al mar .
1-2	Vámonos	_	_	_	_	_	_	_	_
1	Vamos	ir	VERB	V	Mood=Imp|Number=Plur|Person=1	0	root	0:root	_
2	nos	nosotros	PRON	P	Case=Dat|PronType=Prs	1	obj	1:obj	_
3-4	al	_	_	_	_	_	_	_	SpaceAfter=No
3	a	a	ADP	E	_	5	case	5:case	_
4	el	el	DET	R	Definite=Def|PronType=Art	5	det	5:det	_
5	mar	mar	NOUN	S	Number=Sing	1	obl	1:obl	_
5.1	vamos	ir	VERB	V	Number=Plur	_	_	1:conj	CopyOf=1
6	.	.	PUNCT	F	_	1	punct	1:punct	_

# text = 10 000
1	10\u00a0000	10\u00a0000	NUM	N	NumType=Card	0	root	0:root	_

"""


GOOD = "1\tw\tl\tU\tX\t_\t0\troot\t_\t_"


def write(folder: Path, text: str, name: str = "file.conllu") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


def lines(sentences: list[Sentence]) -> list[str]:
    return [line for sentence in sentences for line in sentence.lines]


def test_words_and_tags_are_those_that_conllu_finds(tmp_path: Path) -> None:
    sentences = list(read(write(tmp_path, TEXT)))
    oracle = [[token for token in sentence if isinstance(token["id"], int)] for sentence in conllu.parse(TEXT)]
    assert [list(sentence.words) for sentence in sentences] == [[token["form"] for token in s] for s in oracle]
    for column in ("upos", "xpos"):
        expected = [tuple(token[column] for token in sentence) for sentence in oracle]
        assert [sentence.tags(column) for sentence in sentences] == expected
    for feature in ("Number", "Case", "Num", "Plur"):
        expected = [tuple((token["feats"] or {}).get(feature, "_") for token in sentence) for sentence in oracle]
        assert [sentence.tags(feature) for sentence in sentences] == expected


def test_all_lines_are_kept_in_their_order(tmp_path: Path) -> None:
    for text in (TEXT, TEXT + "\n\n# end\n", "\n \n" + TEXT.rstrip("\n"), "# a\n\n# b\n", ""):
        sentences = list(read(write(tmp_path, text)))
        assert lines(sentences) == text.removesuffix("\n").split("\n") * bool(text)
        for sentence in sentences:
            assert tuple(sentence.tagged(sentence.tags("upos"), "upos")) == sentence.lines
            assert tuple(sentence.tagged(sentence.tags("Number"), "Number")) == sentence.lines


def test_the_number_of_a_sentence_is_that_of_its_first_line(tmp_path: Path) -> None:
    assert [sentence.number for sentence in read(write(tmp_path, TEXT))] == [1, 13]


@pytest.mark.parametrize(("column", "place"), [("upos", 3), ("xpos", 4)])
def test_one_column_alone_is_written(tmp_path: Path, column: str, place: int) -> None:
    for sentence in read(write(tmp_path, TEXT)):
        tags = [f"T{i}" for i in range(len(sentence.words))]
        written = [line.split("\t") for line in sentence.tagged(tags, column)]
        assert [cells[place] for cells in written if cells[0].isdecimal()] == tags
        for cells, line in zip(written, sentence.lines, strict=True):
            before = line.split("\t")
            assert [*cells[:place], *cells[place + 1 :]] == [*before[:place], *before[place + 1 :]]
            assert cells[0].isdecimal() or cells == before


@pytest.mark.parametrize(
    ("before", "name", "value", "after"),
    [
        ("_", "Number", "Sing", "Number=Sing"),
        ("Number=Plur", "Number", "Sing", "Number=Sing"),
        ("Number=Plur", "Number", "_", "_"),
        ("Case=Nom|Number=Plur|Person=3", "Number", "_", "Case=Nom|Person=3"),
        ("Case=Nom|Person=3", "Number", "Sing", "Case=Nom|Number=Sing|Person=3"),
        ("Case=Nom|Person=3", "Abbr", "Yes", "Abbr=Yes|Case=Nom|Person=3"),
        ("Case=Nom|Person=3", "Voice", "Act", "Case=Nom|Person=3|Voice=Act"),
        ("AdpType=Prep|Foreign=Yes", "Adp", "1", "Adp=1|AdpType=Prep|Foreign=Yes"),
        ("Number[psor]=Plur|Person=1", "Number", "Sing", "Number=Sing|Number[psor]=Plur|Person=1"),
        ("Number=Sing|Person=1", "Number[psor]", "Plur", "Number=Sing|Number[psor]=Plur|Person=1"),
        ("NumType=Card", "NUM", "A", "NUM=A|NumType=Card"),
        ("NumType=Card", "NZ", "1", "NumType=Card|NZ=1"),
        ("", "Number", "_", ""),
        # An order that is not the standard's is left as it is
        ("Person=3|Case=Nom", "Number", "_", "Person=3|Case=Nom"),
        ("Person=3|Case=Nom", "Case", "Acc", "Person=3|Case=Acc"),
        ("Case=Acc,Nom|X", "Case", "Dat", "Case=Dat|X"),
    ],
)
def test_a_feature_is_put_at_its_place_in_the_order(
    tmp_path: Path, before: str, name: str, value: str, after: str
) -> None:
    row = "1\tw\tl\tU\tX\t{}\t0\troot\t_\t_"
    (sentence,) = read(write(tmp_path, row.format(before) + "\n"))
    assert list(sentence.tagged([value], name)) == [row.format(after)]


FEATURES = st.dictionaries(
    st.sampled_from(["Case", "Number", "Number[psor]", "NumType", "Abbr", "Person", "VerbForm"]),
    st.sampled_from(["A", "Sing", "1"]),
)


@given(FEATURES, st.sampled_from(["Case", "Number", "Number[psor]", "NumForm", "Voice"]), st.sampled_from("A_1"))
def test_of_sorted_features_come_sorted_features(features: dict[str, str], name: str, value: str) -> None:
    def cell(features: dict[str, str]) -> str:
        return "|".join(sorted((f"{k}={v}" for k, v in features.items()), key=str.lower)) or "_"

    row = f"1\tw\tl\tU\tX\t{cell(features)}\t0\troot\t_\t_"
    sentence = Sentence(("w",), (row,), (0,), "", 1)
    (written,) = sentence.tagged([value], name)
    after = {k: v for k, v in {**features, name: value}.items() if v != "_"}
    assert written.split("\t")[5] == cell(after)
    assert Sentence(("w",), (written,), (0,), "", 1).tags(name) == (value,)


def test_simple_lines(tmp_path: Path) -> None:
    text = "# text = # a b\n#\tSYM\na\u00a0b\tX Y\n\nNew York\tPROPN\n# end\n"
    first, second = read(write(tmp_path, text))
    assert (first.words, second.words) == (("#", "a\u00a0b"), ("New York",))
    assert first.tags("upos") == first.tags("Number") == ("SYM", "X Y")
    assert [*first.tagged(["A", "B"], "upos"), *second.tagged(["C"], "upos")] == [
        "# text = # a b",
        "#\tA",
        "a\u00a0b\tB",
        "",
        "New York\tC",
        "# end",
    ]


def test_bare_words_get_their_tags_behind_a_tab(tmp_path: Path) -> None:
    path = write(tmp_path, "the\ndog\n\nruns")
    assert [list(s.tagged(["T"] * len(s.words), "upos")) for s in read(path)] == [["the\tT", "dog\tT", ""], ["runs\tT"]]
    with pytest.raises(
        DataError, match=r"file.conllu:1: expected a tag for each word .*, found none in 'the'; add one"
    ):
        next(read(path)).tags("upos")


def test_a_line_of_spaces_ends_a_sentence_too(tmp_path: Path) -> None:
    assert [sentence.words for sentence in read(write(tmp_path, "a\n  \nb\n"))] == [("a",), ("b",)]
    assert [sentence.words for sentence in read(write(tmp_path, f"{GOOD}\n \n{GOOD}\n"))] == [("w",), ("w",)]


def test_gzip_and_a_sentence_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(TEXT.encode() * 3000))
    tracemalloc.start()
    words = sum(len(sentence.words) for sentence in read(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert words == 3000 * 7
    assert peak < 500_000


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (f"{GOOD}\n2\tw\tl\n", 2, "expected 10 columns between TABs, found 3 in '2\\tw\\tl'; separate columns by TABs"),
        (
            f"{GOOD}\n2 w l U X _ 0 root _ _\n",
            2,
            "expected 10 columns between TABs, found 1 in '2 w l U X _ 0 root _ _'; separate columns by TABs",
        ),
        (f"{GOOD}\n{GOOD[1:]}\n", 2, "expected an ID such as 3, 3-4 or 3.1, found ''"),
        (f"# c\n\n{GOOD}\n{GOOD}\n", 4, "expected word 2, found 1 in '1"),
        (f"{GOOD}\n3{GOOD[1:]}\n", 2, "expected word 2, found 3"),
        (f"{GOOD}\n\n2{GOOD[1:]}\n", 3, "expected word 1, found 2"),
        (f"{GOOD}\n02{GOOD[1:]}\n", 2, "expected an ID such as 3, 3-4 or 3.1, found '02'"),
        (f"{GOOD}\n2\t\tl\tU\tX\t_\t0\troot\t_\t_\n", 2, "expected a word in column 2, found none in '2"),
        ("a\tDET\n\tNOUN\n", 2, "expected WORD TAB TAG, found no word in '\\tNOUN'; fill it in"),
        ("a\tDET\nb\tNOUN\t1\n", 2, "expected WORD TAB TAG, found 2 TABs in 'b\\tNOUN\\t1'; keep two columns"),
    ],
)
def test_a_faulty_line_is_named_with_its_place(tmp_path: Path, text: str, place: int, message: str) -> None:
    with pytest.raises(DataError) as caught:
        list(read(write(tmp_path, text)))
    assert f"file.conllu:{place}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"), [("a\tDET\n\nb\n", 3), ("a\tDET\nb\t\n", 2), (f"\n{GOOD.replace('U', '')}", 2)]
)
def test_a_missing_tag_is_named_with_its_place(tmp_path: Path, text: str, place: int) -> None:
    sentences = list(read(write(tmp_path, text)))
    with pytest.raises(DataError, match=f"file.conllu:{place}: expected a tag for each word"):
        [sentence.tags("upos") for sentence in sentences]


def test_columns() -> None:
    for column in ("upos", "xpos", "Number", "Number[psor]", "VerbForm"):
        check_column(column)
    for column in ("deprel", "", "Number=Sing", "UPOS ", "Nüm"):
        with pytest.raises(ArgumentError, match="expected a column: upos, xpos, or the name of a feature"):
            check_column(column)


def test_as_many_tags_as_words(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected a tag for each of 1 words, got 2"):
        list(next(read(write(tmp_path, GOOD))).tagged(["A", "B"], "upos"))


def test_drawn_files_are_written_back_as_conllu_writes_them(tmp_path: Path) -> None:
    drawn = random.Random(5)
    for _ in range(20):
        text = ""
        for _ in range(drawn.randint(1, 4)):
            text += "".join(f"# {name} = {drawn.random()}\n" for name in ("sent_id", "text")[: drawn.randint(0, 2)])
            for i in range(1, drawn.randint(2, 7)):
                text += f"{i}-{i + 1}\tab\t_\t_\t_\t_\t_\t_\t_\t_\n" * drawn.randint(0, 1)
                feats = drawn.choice(["_", "Case=Nom", "Case=Nom|Number=Sing"])
                text += f"{i}\tw{i}\tl\tU\tX\t{feats}\t0\troot\t_\t_\n"
            text += "\n"
        written = "".join(
            f"{line}\n" for s in read(write(tmp_path, text)) for line in s.tagged(["New"] * len(s.words), "upos")
        )
        sentences = conllu.parse(text)
        for token in (token for sentence in sentences for token in sentence if isinstance(token["id"], int)):
            token["upos"] = "New"
        assert written == "".join(sentence.serialize() for sentence in sentences)
