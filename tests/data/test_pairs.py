"""Pairs from files: what is read, what is said, what is refused."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Pair, Pairs, SeparatorTokenizer, Tokenizer, Vocabulary, read_pairs, split_off
from regard.data.lines import read_lines
from regard.data.pair_columns import compose
from regard.data.pair_rows import read_pair_rows
from regard.data.pairs import learn_tokenizers, read_sources, source_text, split_into_units, split_source, vocabularies
from regard.data.tokenizer import guess_tokenizer
from regard.errors import ArgumentError, DataError
from regard.tasks import Seq2SeqRun

CHARS, WORDS = SeparatorTokenizer("chars"), SeparatorTokenizer("words")
SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the benchmark data is not at {SHARED}")

# Anything that one line can hold: all but TAB and line ends, with the odd ones often.
odd = st.sampled_from("\"'\u2028\u2029\u0085\v\f\x1c\x00\ufeff\u00a0\u3000 ")
text = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]) | odd, min_size=1)
pair = st.tuples(text, text).filter(lambda sides: all(side.strip() for side in sides))


@pytest.fixture
def write(tmp_path: Path):
    def write(content: str | bytes, name: str = "data.tsv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def run_with(source: Vocabulary, target: Vocabulary, tokenizer: Tokenizer = CHARS) -> Seq2SeqRun:
    return Seq2SeqRun(None, source, target, tokenizer, tokenizer, 9, 1.0)


def texts(pairs: Pairs) -> list[tuple[str, str]]:
    return [(pairs.source_tokenizer.join(e.source), pairs.target_tokenizer.join(e.target)) for e in pairs.examples]


# Units


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
        "7 source units that training never saw, read as unknown: ' ', c, d, e, f, ...",
        "2 target units that training never saw, counted as errors: C, '\\u200b'",
    ]
    assert run.unseen_notes([Pair(("a",), ("A",))]) == []


# What is refused

REFUSED = {
    "empty": (b"", "", "found an empty file; check the path"),
    "blank": (b"\n \n", "", "found nothing but 2 blank lines; check the path"),
    "no TAB": (b"a\tA\nb B\n", ":2", "found no TAB in 'b B'; put one TAB"),
    "two TABs": (b"a\tA\nb\tB\tB\n", ":2", "found 2 TABs in 'b\\tB\\tB'; keep two columns"),
    "no source": (b"a\tA\n\tB\n", ":2", "found an empty source in '\\tB'; fill it in or delete the line"),
    "no target": (b"a\t \n", ":1", "found an empty target in 'a\\t '; fill it in or delete the line"),
    "only a TAB": (b"\n\t\n", ":2", "found an empty source in '\\t'"),
    "CR alone": (b"a\tA\rb\tB\r", ":1", "found lines that end in CR alone"),
    "CP1252": ("a\tA\nb\té\n".encode("cp1252"), ":2", "byte 0xe9 at offset 2 of the line; convert the file"),
    "after a BOM": (b"\xef\xbb\xbfa\xff\tA\n", ":1", "byte 0xff at offset 4 of the line; convert the file"),
    "cut in a character": ("a\té".encode()[:-1], ":1", "byte 0xc3 at offset 2 of the line"),
    "a surrogate": (b"a\t\xed\xa0\x80\n", ":1", "byte 0xed at offset 2 of the line"),
    "UTF-16": ("a\tA\n".encode("utf-16"), ":1", "found UTF-16; convert the file: iconv -f UTF-16 -t UTF-8"),
    "gzip, cut": (gzip.compress(b"a\tA\n" * 9)[:-9], ":0", "found damage"),
    "gzip, flipped": (gzip.compress(b"a\tA\n", mtime=0)[:-5] + b"\0\0\0\0\0", "", "found damage"),
    "gzip, header only": (b"\x1f\x8b", ":0", "found damage"),
    "too long": (b"a" * 201 + b"\tA\n", ":1", "at most 200 units a side, found none (1 longer); raise --max-length"),
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


# Standard input


def test_lines_of_standard_input_come_as_they_are_written() -> None:
    code = "from regard.data.lines import read_lines\nfor line in read_lines('-'): print(repr(line), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        for line in ("猫\r\n", "\n", "no end"):
            child.stdin.write(line.encode())
            child.stdin.flush()
            if line.endswith("\n"):  # The answer comes before the next line, or the end of the input, is known.
                assert child.stdout.readline().decode().strip() == repr(line.rstrip("\r\n"))
        rest, errors = child.communicate(timeout=20)
    assert (rest.decode().strip(), errors) == ("'no end'", b"")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a\nb\xe9\n", "<stdin>:2: expected UTF-8, found byte 0xe9"),
        (gzip.compress(b"a", mtime=0), "gzip data; unpack it"),
    ],
)
def test_faults_of_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "in").write_bytes(raw)
    with (tmp_path / "in").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(DataError, match=message):
            list(read_lines("-"))
        assert not stream.buffer.closed


def test_an_empty_file_has_no_lines(write) -> None:
    assert list(read_lines(write(b""))) == []


# Splitting off

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
    said = "data.tsv: 5 of 50 examples held out to choose the best model (no --dev)"
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


# Columns and features

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
        ("a", "found no TAB in 'a'; put one TAB (spaces do not count) between all of them"),
        ("a\tN;PL\tx\ty", "found 3 TABs in"),
        ("a\t\tx", "found an empty features in"),
        ("a\tV\t ", "found an empty target in"),
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


# Normal forms


@given(st.lists(pair, min_size=1), st.sampled_from(["nfc", "nfd"]))
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
        "1 source unit that training never saw, read as unknown: !",
        "1 target unit that training never saw, counted as errors: ?",
    ]
