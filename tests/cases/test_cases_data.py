"""Cases from public bug reports that data files bring, by id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard._symbols import UNK
from regard.data import Pair, SeparatorTokenizer, Vocabulary, read_pairs
from regard.data.pairs import read_sources
from regard.errors import DataError
from regard.tasks import Seq2SeqRun, score_units

CHARS, WORDS = SeparatorTokenizer("chars"), SeparatorTokenizer("words")

# What a run derives from its data: vocabulary, ids, parts and batches, as JSON in ASCII.
DERIVED = """
import json, sys
from regard.data import TokenBudgetSampler, read_pairs, split_off
from regard.tasks import Seq2SeqRun
pairs = read_pairs(sys.argv[1])
train, dev = split_off(pairs, seed=3)
run = Seq2SeqRun.new(train, embed_dim=2, hidden_dim=2)
ids = run.encode(train.examples)
sampler = TokenBudgetSampler([len(e.source) for e in ids], [len(e.target) for e in ids], tokens=40, seed=3)
print(json.dumps([pairs.notes, dev.examples, run.source.to_json(), run.target.to_json(), ids, list(sampler)]))
"""


# The same of columns with features, in a normal form and in subwords, and of lines that ask for answers.
DERIVED_WITH_FEATURES = """
import json, sys
from regard.data.pairs import learn_tokenizers, read_sources, split_into_units, vocabularies
from regard.data.pair_rows import read_pair_rows
rows = read_pair_rows(sys.argv[1], unicode_form="nfd")
tokenizers = learn_tokenizers(rows, "subword", "subword", size=60, shared=True)
pairs = split_into_units(rows, *tokenizers)
sources = list(read_sources(sys.argv[2], tokenizers[0], pairs.columns, "nfd"))
files = [tokenizers[0].to_json(), *(vocabulary.to_json() for vocabulary in vocabularies(pairs, shared=True))]
print(json.dumps([pairs.columns, pairs.examples, sources, files]))
"""


def derived(*paths: Path, code: str = DERIVED, **environment: str) -> list[object]:
    child = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
        check=True,
    )
    return json.loads(child.stdout)


def test_x2_bom_and_crlf_are_gone_whatever_the_locale(tmp_path: Path) -> None:
    plain, windows = tmp_path / "plain.tsv", tmp_path / "windows.tsv"
    lines = [f"slovo{n}é猫\ts l o v o {n} ə\n" for n in range(40)]
    plain.write_bytes("".join(lines).encode("utf-8"))
    windows.write_bytes("".join(lines).replace("\n", "\r\n").encode("utf-8-sig"))
    with_c = derived(windows, LC_ALL="C", LANG="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    with_utf8 = derived(plain, LC_ALL="C.UTF-8", PYTHONUTF8="1")
    assert with_c[1:] == with_utf8[1:]
    assert not {"\ufeff", "\r"} & set(json.dumps(with_c, ensure_ascii=False))


def test_x2_a_cp1252_byte_is_placed_and_the_remedy_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.tsv"
    path.write_bytes("a\tA\ncafé\tK\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"latin.tsv:2: .*byte 0xe9 at offset 3 of the line.*iconv -f CP1252 -t UTF-8"):
        read_pairs(path, CHARS, CHARS)
    repaired = tmp_path / "repaired.tsv"
    repaired.write_bytes(
        subprocess.run(["iconv", "-f", "CP1252", "-t", "UTF-8", path], capture_output=True, check=True).stdout
    )
    assert read_pairs(repaired, CHARS, CHARS).examples[1].source == tuple("café")


def test_x2_features_and_subwords_are_the_same_from_windows_and_in_any_locale(tmp_path: Path) -> None:
    rows = [f"slová{n}é한\tpos={'NV'[n % 2]};num={n % 3}\tsl{n}ové ə.\n" for n in range(40)]
    asked = [row.rsplit("\t", 1)[0] + "\n" for row in rows[:3]]
    for name, encoding, end in (("plain", "utf-8", "\n"), ("windows", "utf-8-sig", "\r\n")):
        for kind, lines in (("rows", rows), ("asked", asked)):
            (tmp_path / f"{name}.{kind}").write_bytes("".join(lines).replace("\n", end).encode(encoding))
    with_c, with_utf8 = (
        derived(tmp_path / f"{name}.rows", tmp_path / f"{name}.asked", code=DERIVED_WITH_FEATURES, **environment)
        for name, environment in (
            ("windows", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "1"}),
            ("plain", {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "20"}),
        )
    )
    assert with_c == with_utf8
    columns, examples, sources, _ = with_c
    assert columns == ["source", "features", "target"]
    assert sources == [source for source, _ in examples[:3]]
    assert not {"\ufeff", "\r"} & set(json.dumps(with_c, ensure_ascii=False))


@pytest.mark.parametrize("form", ["none", "nfd"])
def test_x2_a_cp1252_byte_is_placed_in_columns_and_in_lines_that_ask(tmp_path: Path, form: str) -> None:
    path = tmp_path / "latin.tsv"
    path.write_bytes("a\tN;PL\tb\ncafé\tN;PL\tK\n".encode("cp1252"))
    where = r"latin.tsv:2: .*byte 0xe9 at offset 3 of the line.*iconv -f CP1252 -t UTF-8"
    with pytest.raises(DataError, match=where):
        read_pairs(path, CHARS, CHARS, columns=("source", "features", "target"), unicode_form=form)
    path.write_bytes("a\tN;PL\ncafé\tN;PL\n".encode("cp1252"))
    with pytest.raises(DataError, match=where):
        list(read_sources(path, CHARS, ("source", "features", "target"), form))


def test_x4_a_label_seen_only_in_dev_counts_as_an_error_with_one_warning() -> None:
    words, labels = Vocabulary.from_units(["a", "dog", "runs"]), Vocabulary.from_units(["DET", "NOUN"])
    run = Seq2SeqRun(None, words, labels, WORDS, WORDS, 9, 1.0)
    dev = [Pair(("a", "dog"), ("DET", "NOUN")), Pair(("a", "dog"), ("DET", "PROPN"))] * 2
    assert [example.target[-1] for example in run.encode(dev)] == [5, UNK, 5, UNK]
    assert run.unseen_notes(dev) == ["1 target unit that did not occur in training, counted as errors: PROPN"]
    # No output of a model decodes to the label, so each of them is an error.
    best = [labels.decode(example.target) for example in run.encode(dev)]
    assert score_units(best, [example.target for example in dev]).values["exact"] == 0.5


def test_x4_ids_parts_and_batches_are_the_same_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("".join(f"w{n}{chr(97 + n % 26)}\tW {n % 7} {n % 11}\n" for n in range(300)), encoding="utf-8")
    assert derived(path, PYTHONHASHSEED="1") == derived(path, PYTHONHASHSEED="20")
