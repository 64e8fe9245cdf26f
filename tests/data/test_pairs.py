"""Pairs from files: what is read, what is said, what is refused."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Pair, Pairs, SeparatorTokenizer, Tokenizer, Vocabulary, read_pairs, split_off
from regard.data.lines import read_lines
from regard.data.pair_rows import read_pair_rows
from regard.data.pairs import learn_tokenizers, split_into_units, vocabularies
from regard.errors import ArgumentError, DataError
from regard.tasks import Seq2SeqRun

CHARS, WORDS = SeparatorTokenizer("chars"), SeparatorTokenizer("words")
SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the benchmark data is not at {SHARED}")

# Anything that one line can hold: all but TAB and line ends, with the odd ones often.
odd = st.sampled_from("\"'\u2028\u2029\u0085\v\f\x1c\x00\ufeff\u00a0\u3000 ")
text = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]) | odd, min_size=1)
pair = st.tuples(text, text).filter(lambda sides: all(side.strip() for side in sides))


def run_with(source: Vocabulary, target: Vocabulary, tokenizer: Tokenizer = CHARS) -> Seq2SeqRun:
    return Seq2SeqRun(None, source, target, tokenizer, tokenizer, 9, 1.0)


def texts(pairs: Pairs) -> list[tuple[str, str]]:
    return [(pairs.source_tokenizer.join(e.source), pairs.target_tokenizer.join(e.target)) for e in pairs.examples]


# Files that are right


@given(
    pairs=st.lists(pair, min_size=1),
    end=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(),
    zipped=st.booleans(),
    closed=st.booleans(),
)
def test_what_is_written_is_read(tmp_path_factory, pairs, end: str, bom: bool, zipped: bool, closed: bool) -> None:
    content = end.join(f"{source}\t{target}" for source, target in pairs) + (end if closed else "")
    if not bom and content.startswith("\ufeff"):
        content = "x" + content
        pairs = [("x" + pairs[0][0], pairs[0][1]), *pairs[1:]]
    raw = (b"\xef\xbb\xbf" if bom else b"") + content.encode()
    path = tmp_path_factory.getbasetemp() / "written.tsv"
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    assert texts(read_pairs(path, CHARS, CHARS)) == pairs


@pytest.mark.parametrize("name", ["data.tsv", "data.tsv.gz"])
@pytest.mark.parametrize("zipped", [False, True])
def test_gzip_is_known_by_its_content(write, name: str, zipped: bool) -> None:
    raw = b"ab\tA B\ncd\tC D\n"
    path = write(gzip.compress(raw[:7]) + gzip.compress(raw[7:]) if zipped else raw, name)
    assert texts(read_pairs(path, CHARS, WORDS)) == [("ab", "A B"), ("cd", "C D")]


def test_a_lone_quote_is_a_unit(write) -> None:
    pairs = read_pairs(write('"a\tA\nb\t\'B"\n'), CHARS, CHARS)
    assert pairs.examples == [Pair(('"', "a"), ("A",)), Pair(("b",), ("'", "B", '"'))]


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\x1e"])
def test_only_line_feeds_end_lines(write, inside: str) -> None:
    path = write(f"a{inside}b\tA\nc\tC\n")
    assert texts(read_pairs(path, CHARS, CHARS)) == [(f"a{inside}b", "A"), ("c", "C")]
    assert list(read_lines(path)) == [f"a{inside}b\tA", "c\tC"]


def test_a_bom_goes_from_the_first_line_only(write) -> None:
    path = write("\ufeffa\tA\n\ufeffb\tB\n")
    assert texts(read_pairs(path, CHARS, CHARS)) == [("a", "A"), ("\ufeffb", "B")]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    raw = gzip.compress(b"a\tA\nb\tB\n", mtime=0)
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'wb').write(bytes.fromhex({raw.hex()!r}))"])
    assert len(read_pairs(pipe)) == 2
    assert writer.wait(10) == 0


def test_equal_units_are_one_object(write) -> None:
    first, second = read_pairs(write("猫犬\tねこ いぬ\n猫\tねこ\n"), CHARS, WORDS).examples
    assert first.source[0] is second.source[0]
    assert first.target[0] is second.target[0]


# What is said


def notes_of(path: Path, **options: object) -> list[str]:
    return [note.removeprefix(f"{path}: ") for note in read_pairs(path, CHARS, WORDS, **options).notes]


def test_a_plain_file_needs_one_line(write) -> None:
    assert notes_of(write("a\tA\nb\tB\n")) == ["2 pairs"]
    assert notes_of(write("a\tA\n")) == ["1 pair"]
    assert notes_of(write("".join(f"{n}\tA\n" for n in range(1234)))) == ["1,234 pairs"]


def test_duplicates_and_contradictions_are_kept_and_counted(write) -> None:
    path = write("a\tA\na\tA\na\tB\nb\tB\nb\tB\nc\tC\n")
    assert notes_of(path) == ["6 pairs; 2 duplicates, 1 source with more than one target"]
    assert len(read_pairs(path)) == 6


def test_blank_lines_are_skipped_and_counted(write) -> None:
    path = write("\n\r\na\tA\n  \nb\tB\n\n")
    assert notes_of(path) == ["2 pairs", "4 blank lines skipped"]
    assert list(read_lines(path)) == ["", "", "a\tA", "  ", "b\tB", ""]


def test_long_lines_are_left_out_and_counted(write) -> None:
    path = write(f"a\tA\n{'b' * 100_000}\tB\nc\t{'C ' * 201}\nd\tD\n{'e' * 200}\tE\n")
    assert notes_of(path) == [
        "3 pairs",
        "2 pairs of more than 200 units left out (first: line 2); --max-length raises the limit",
    ]
    assert notes_of(path, max_length=100_000) == ["5 pairs"]


def test_a_guess_is_said(write) -> None:
    path = write("cat\tK AE T\ndog\tD AO G\n")
    guessed = read_pairs(path)
    assert (guessed.source_tokenizer, guessed.target_tokenizer) == (CHARS, WORDS)
    assert guessed.notes[1:] == [
        f"{path}: source: characters; target: units separated by spaces, such as words or phones (guessed)"
    ]
    assert read_pairs(path, CHARS).notes[1:] == [
        f"{path}: target: units separated by spaces, such as words or phones (guessed)"
    ]
    assert read_pairs(path, CHARS, WORDS).notes[1:] == []


def test_units_that_training_never_saw_are_named() -> None:
    run = run_with(Vocabulary.from_units("ab"), Vocabulary.from_units("AB"))
    assert run.unseen_notes([Pair(tuple("acdefgh"), ("A", "\u200b")), Pair(("c", " "), ("C",))]) == [
        "7 source units that did not occur in training, read as unknown: ' ', c, d, e, f, ...",
        "2 target units that did not occur in training, counted as errors: C, '\\u200b'",
    ]
    assert run.unseen_notes([Pair(("a",), ("A",))]) == []


# What is refused


REFUSED = {
    "empty": (b"", "", "found an empty file; check the path"),
    "blank": (b"\n \n", "", "found nothing but 2 blank lines; check the path"),
    "no TAB": (b"a\tA\nb B\n", ":2", "found no TAB in 'b B'; separate columns by one TAB"),
    "two TABs": (b"a\tA\nb\tB\tB\n", ":2", "found 2 TABs in 'b\\tB\\tB'; keep two columns"),
    "no source": (b"a\tA\n\tB\n", ":2", "found an empty source column in '\\tB'; fill it in or delete the line"),
    "no target": (b"a\t \n", ":1", "found an empty target column in 'a\\t '; fill it in or delete the line"),
    "only a TAB": (b"\n\t\n", ":2", "found an empty source column in '\\t'"),
    "CR alone": (b"a\tA\rb\tB\r", ":1", "found lines that end in CR alone"),
    "CP1252": ("a\tA\nb\té\n".encode("cp1252"), ":2", "byte 0xe9 at offset 2 of the line; convert the file"),
    "after a BOM": (b"\xef\xbb\xbfa\xff\tA\n", ":1", "byte 0xff at offset 4 of the line; convert the file"),
    "cut in a character": ("a\té".encode()[:-1], ":1", "byte 0xc3 at offset 2 of the line"),
    "a surrogate": (b"a\t\xed\xa0\x80\n", ":1", "byte 0xed at offset 2 of the line"),
    "UTF-16": ("a\tA\n".encode("utf-16"), ":1", "found UTF-16; convert the file: iconv -f UTF-16 -t UTF-8"),
    "gzip, cut": (gzip.compress(b"a\tA\n" * 9)[:-9], ":0", "found damage"),
    "gzip, flipped": (gzip.compress(b"a\tA\n", mtime=0)[:-5] + b"\0\0\0\0\0", "", "found damage"),
    "gzip, header only": (b"\x1f\x8b", ":0", "found damage"),
    "too long": (b"a" * 201 + b"\tA\n", ":1", "at most 200 units per side, found only 1 longer pair; raise"),
    "long, without TAB": (b"a" * 100_000, ":1", f"found no TAB in '{'a' * 37}...'"),
    "only separators": (b"a\t||\n", ":1", "found only separators in the target; fill it in or delete the line"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_fault_is_said_in_one_line_with_place_and_remedy(write, kind: str) -> None:
    content, line, message = REFUSED[kind]
    path = write(content)
    with pytest.raises(DataError) as caught:
        read_pairs(path, CHARS, SeparatorTokenizer("|"))
    said = str(caught.value)
    assert said.startswith(f"{path}{line}")
    assert message in said
    assert "expected" in said
    assert "\n" not in said
    assert len(said) < len(str(path)) + 200


def test_a_path_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.tsv: cannot be read \(No such file or directory\); check the path"):
        read_pairs(tmp_path / "none.tsv")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\); check the path"):
        read_pairs(tmp_path)


def test_a_file_name_that_is_not_utf8_can_be_printed(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tsv")
    Path(path).write_bytes(b"a\tA\n")
    for note in read_pairs(path).notes:
        note.encode("utf-8")


def test_max_length_is_checked(write) -> None:
    with pytest.raises(ArgumentError, match="at least 1, got 0"):
        read_pairs(write("a\tA\n"), max_length=0)


# Real data


@needs_shared
@pytest.mark.parametrize(
    ("file", "count", "source"),
    [
        ("medium/hun_train.tsv.gz", 8000, "chars"),
        ("medium/vie_hanoi_train.tsv.gz", 8000, "chars"),
        ("medium/jpn_hira_dev.tsv.gz", 1000, "chars"),
        ("low/khm_test.tsv.gz", 100, "chars"),
    ],
)
def test_pronunciation_data_is_read_as_it_is_meant(file: str, count: int, source: str) -> None:
    pairs = read_pairs(SHARED / "sigmorphon2021_g2p" / file)
    assert len(pairs) == count
    assert (pairs.source_tokenizer.name, pairs.target_tokenizer.name) == (source, "words")
    with gzip.open(SHARED / "sigmorphon2021_g2p" / file, "rt", encoding="utf-8", newline="\n") as lines:
        assert [f"{source}\t{target}\n" for source, target in texts(pairs)] == list(lines)


@needs_shared
@pytest.mark.parametrize(
    ("language", "pairs", "features"), [("hungarian", 16_219, 38), ("maltese", 18_975, 44), ("turkish", 12_336, 31)]
)
def test_features_of_inflection_are_found(language: str, pairs: int, features: int) -> None:
    found = read_pairs(SHARED / "sigmorphon2016" / f"{language}-task1-train.gz")
    assert found.columns == ("source", "features", "target")
    assert len(found) == pairs
    source, target = vocabularies(found)
    assert sum(unit.startswith("\t") for unit in source.units) == features
    assert not any(unit.startswith("\t") for unit in target.units)


def test_a_hundred_thousand_pairs_take_a_moment(write) -> None:
    path = write("".join(f"w{n}ord\tW {n} AO R D\n" for n in range(100_000)))
    start = time.process_time()
    split_off(read_pairs(path))
    assert time.process_time() - start < 5  # About one second; anything quadratic would take minutes.


# Subwords


def test_subwords_are_learnt_from_the_texts_of_their_side(write) -> None:
    found = read_pair_rows(write("ab ab ab\txy xy\nab\txy xy\n"))
    source, target = learn_tokenizers(found, "subword", "subword", size=9)
    assert (source.units, target.units) == ((" ", " a", " ab", "a", "b"), (" ", " x", " xy", "x", "y"))
    one, other = learn_tokenizers(found, "subword", "subword", size=9, shared=True)
    assert one is other
    assert one.units == (" ", " a", " ab", " x", " xy", "a", "b", "x", "y")
    assert learn_tokenizers(found, "chars", "subword", size=9) == (CHARS, target)
    assert learn_tokenizers(found, None, "words", size=9) == (None, WORDS)


def test_a_vocabulary_has_all_that_subwords_can_be_cut_into(write) -> None:
    found = read_pair_rows(write("ab\tV;X\txy\n" * 3), columns=("source", "features", "target"))
    units = learn_tokenizers(found, "subword", "subword", size=5)
    pairs = split_into_units(found, *units)
    assert pairs.examples[0] == Pair(("\tV", "\tX", " ab"), (" xy",))
    source, target = vocabularies(pairs)
    assert (source.units, target.units) == (("\tV", "\tX", *units[0].units), units[1].units)
    one, other = vocabularies(pairs, shared=True)
    assert one is other
    assert set(one.units) == {*source.units, *target.units}
    plain = read_pairs(write("ab\tc\n"), CHARS, CHARS)
    assert [vocabulary.units for vocabulary in vocabularies(plain)] == [("a", "b"), ("c",)]


def test_pairs_in_subwords_say_what_was_never_seen(write) -> None:
    found = read_pair_rows(write("ab ab\tab\n"))
    units, _ = learn_tokenizers(found, "subword", "subword", size=9, shared=True)
    vocabulary, _ = vocabularies(split_into_units(found, units, units), shared=True)
    run = run_with(vocabulary, vocabulary, units)
    assert run.unseen_notes(read_pairs(write("ab!\ta?\n"), units, units).examples) == [
        "1 source unit that did not occur in training, read as unknown: !",
        "1 target unit that did not occur in training, counted as errors: ?",
    ]
