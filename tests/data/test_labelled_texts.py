"""Files of texts with labels: what is read, what is guessed, what is said, what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import LabelledText, read_labelled
from regard.data.labelled_texts import guess_text_units, read_unlabelled, split_text
from regard.errors import ArgumentError, DataError

FILMS = "good\ta fine film\nbad\ta dull film\ngood\tfine!\nbad\tso dull\n"
FOUND = [
    LabelledText(("a", "fine", "film"), "good"),
    LabelledText(("a", "dull", "film"), "bad"),
    LabelledText(("fine", "!"), "good"),
    LabelledText(("so", "dull"), "bad"),
]
SWAPPED = "".join("\t".join(reversed(line.split("\t"))) + "\n" for line in FILMS.splitlines())
RECORDS = "".join(json.dumps({"text": " ".join(text), "label": label}) + "\n" for text, label in FOUND)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes, name: str = "data.tsv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# Units


@given(st.text())
def test_words_lose_nothing_but_spaces(text: str) -> None:
    units = split_text(text, "words")
    assert "".join(units) == "".join(text.split())
    assert all(units)


@given(st.text())
def test_words_that_are_cut_stay_as_they_are(text: str) -> None:
    units = split_text(text, "words")
    assert split_text(" ".join(units), "words") == units


@given(st.text())
def test_chars_are_the_text_with_single_spaces(text: str) -> None:
    assert "".join(split_text(text, "chars")) == " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("Great!", ["Great", "!"]),
        ("(well,", ["(", "well", ","]),
        ("wo n't , -lrb- 's 3.14 o' a/b", ["wo", "n't", ",", "-lrb-", "'s", "3.14", "o'", "a/b"]),
        ("«très», ¿qué?", ["«", "très", "»,", "¿", "qué", "?"]),
        ("हिन्दी में।", ["हिन्दी", "में", "।"]),
        ("e\u0301te\u0301.", ["e\u0301te\u0301", "."]),
        ("... :-)", ["...", ":-)"]),
        ("a\u00a0b\u3000c", ["a", "b", "c"]),
    ],
)
def test_marks_at_the_ends_of_words_are_units(text: str, units: list[str]) -> None:
    assert split_text(text, "words") == units


@pytest.mark.parametrize(
    ("texts", "units"), [(["a b", "c"], "words"), (["a", "b", "c d"], "chars"), (["猫。"], "chars"), ([], "words")]
)
def test_units_are_guessed_by_spaces(texts: list[str], units: str) -> None:
    assert guess_text_units(texts) == units


# Files that are right


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (FILMS, ("label", "text")),
        (SWAPPED, ("text", "label")),
        (RECORDS, ("text", "label")),
        ("Sentence\tLabel\n" + SWAPPED, ("text", "label")),
        ("label\tidx\ttext\n" + FILMS.replace("\t", "\t7\t"), ("label", "idx", "text")),
    ],
)
def test_columns_are_found(write: Write, content: str, columns: tuple[str, ...], end: str, zipped: bool) -> None:
    raw = content.replace("\n", end).encode()
    read = read_labelled(write(gzip.compress(raw) if zipped else b"\xef\xbb\xbf" + raw))
    assert (read.examples, read.columns, read.units) == (FOUND, columns, "words")
    # What was found serves to read the file again, and others without a first line of names
    assert (
        read_labelled(write(FILMS if columns[0] == "label" == columns[-2] else content), read.columns).examples == FOUND
    )


def test_columns_that_are_named_need_no_guess(write: Write) -> None:
    path = write("1\ta b\tx\n2\tc\ty\n")
    read = read_labelled(path, ["id", "text", "label"])
    assert read.examples == [LabelledText(("a", "b"), "x"), LabelledText(("c",), "y")]
    assert read_labelled(path, ["id", "label", "text"]).examples[0] == LabelledText(("x",), "a b")


def test_keys_of_json_lines_may_have_any_name(write: Write) -> None:
    path = write('{"no": 1, "sentence": "a\\tb", "class": 0}\n{"sentence": "c", "class": true, "text": "x"}\n')
    read = read_labelled(path, ["sentence", "class"])
    assert read.examples == [LabelledText(("a", "b"), "0"), LabelledText(("c",), "true")]
    assert read.columns == ("sentence", "class")
    assert list(read_unlabelled(path, read.columns)) == ["a\tb", "c"]


def test_labels_lose_spaces_around_and_line_ends_within(write: Write) -> None:
    path = write('{"text": "a", "label": " very\\tgood\\n"}\n')
    assert read_labelled(path).examples == [LabelledText(("a",), "very good")]


def test_equal_units_are_one_object(write: Write) -> None:
    first, second, *_ = read_labelled(write(FILMS)).examples
    assert first.text[0] is second.text[0]


def test_texts_without_labels_come_line_by_line(write: Write) -> None:
    columns = ("label", "text")
    assert list(read_unlabelled(write("a film\n\nfine!"), columns)) == ["a film", "", "fine!"]
    assert list(read_unlabelled(write(FILMS), columns)) == ["a fine film", "a dull film", "fine!", "so dull"]
    assert list(read_unlabelled(write("label\ttext\n\nx\ta b\nx\ty\tz\n"), columns)) == ["", "", "a b", "x\ty\tz"]
    assert list(read_unlabelled(write('\n{"text": "a"}\n{"text": "{b"}\n'), columns)) == ["", "a", "{b"]
    assert list(read_unlabelled(write("a\n{b\n"), columns)) == ["a", "{b"]


# What is said


def notes_of(path: Path, **options: object) -> list[str]:
    return [note.removeprefix(f"{path}: ") for note in read_labelled(path, **options).notes]


def test_what_was_found_and_guessed_is_said(write: Write) -> None:
    path = write(FILMS)
    assert notes_of(path) == ["4 texts; 2 labels: bad (2), good (2)", "columns: label, text; units: words (guessed)"]
    assert notes_of(path, columns=["label", "text"], units="words") == ["4 texts; 2 labels: bad (2), good (2)"]


def test_what_is_odd_is_kept_and_counted(write: Write) -> None:
    path = write("\na b\tx\na b\tx\n \na b\ty\nc d e f\tz\nx y z\tz\n")
    assert notes_of(path, columns=["text", "label"], units="words", max_length=3) == [
        "5 texts; 3 labels: x (2), y (1), z (2); 1 duplicate; 1 text with more than one label",
        "1 text of more than 3 units cut (first: line 6); --max-length raises the limit",
        "2 blank lines skipped",
    ]
    assert read_labelled(path, ["text", "label"], max_length=3).examples[3].text == ("c", "d", "e")


def test_of_many_labels_the_first_are_named(write: Write) -> None:
    path = write("".join(f"a b\t{n}\n" for n in range(1200)))
    said = "1,200 labels: 0 (1), 1 (1), 10 (1), 100 (1), 1000 (1), 1001 (1), ..."
    assert notes_of(path, columns=["text", "label"])[0] == f"1,200 texts; {said}; 1 text with more than one label"


# What is refused

REFUSED = {
    "empty": (b"", None, "", "found an empty file; check the path"),
    "blank": (b"\n \n", None, "", "found nothing but 2 blank lines; check the path"),
    "no TAB": (b"a b\tx\nc d x\n", ("text", "label"), ":2", "found no TAB in 'c d x'; separate columns by one TAB"),
    "first line without TAB": (b"a b\nc d\n", None, ":1", "expected TEXT TAB LABEL, found no TAB"),
    "three": (b"1\ta b\tx\n", None, ":1", "found 3 columns in '1\\ta b\\tx'; name all of them"),
    "two of three": (b"1\ta\tx\n2\tb\n", ("id", "text", "label"), ":2", "expected 3 columns between TABs, found 2"),
    "no text": (b"a\tx\n \tx\n", ("text", "label"), ":2", "found an empty text; fill it in"),
    "no label": (b"a\t \n", ("text", "label"), ":1", "found an empty label; fill it in"),
    "CR alone": (b"a\tx\rb\ty\r", None, ":1", "found lines that end in CR alone"),
    "all different": (b"a b\tx\nc d\ty\n", None, "", "found 2 and 2 different values in 2 lines; name the columns"),
    "names that are not there": (b"a\tx\n", ("a", "b"), "", "columns named text and label, got a,b"),
    "header without text": (b"id\tsentence\tlabel\n1\ta\tx\n", None, ":1", "one column named text and one named label"),
    "header alone": (b"text\tlabel\n", None, "", "below the line that names the columns, found none"),
    "CP1252": ("a\té\n".encode("cp1252"), None, ":1", "byte 0xe9 at offset 2 of the line; convert the file"),
    "broken JSON": (b'{"text": "a", "label": "x"}\n{"text"\n', None, ":2", "a JSON object, found '{\"text\"' ("),
    "no object": (b'{"text": "a", "label": "x"}\n[]\n', None, ":2", "a JSON object, found '[]'"),
    "no key": (b'{"text": "a", "class": "x"}\n', None, ":1", "text under the key 'label', found no such key"),
    "null": (b'{"text": "a", "label": null}\n', None, ":1", "text under the key 'label', found null"),
    "list": (b'{"text": ["a"], "label": "x"}\n', None, ":1", "text under the key 'text', found list"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_fault_is_said_in_one_line_with_place_and_remedy(write: Write, kind: str) -> None:
    content, columns, line, message = REFUSED[kind]
    path = write(content)
    with pytest.raises(DataError) as caught:
        read_labelled(path, columns)
    said = str(caught.value)
    assert said.startswith(f"{path}{line}: ")
    assert message in said
    assert "expected" in said
    assert "\n" not in said
    assert len(said) < len(str(path)) + 300


def test_options_are_checked(write: Write) -> None:
    with pytest.raises(ArgumentError, match="at least 1, got 0"):
        read_labelled(write(FILMS), max_length=0)
    with pytest.raises(ArgumentError, match="keys of text and label"):
        read_labelled(write(RECORDS), ["id", "sentence", "class"])
    with pytest.raises(DataError, match=r"data\.tsv:1: expected a JSON object"):
        list(read_unlabelled(write("{\n"), ("text", "label")))


def test_half_of_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "films.jsonl"
    path.write_text(
        '{"text": "\\ud83d\\ude00", "label": "good"}\n{"text": "\\ud83d", "label": "bad"}\n', encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"films.jsonl:2: expected text, found half of a surrogate pair under the key"):
        read_labelled(path)
