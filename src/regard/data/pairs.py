"""Pairs of texts, read from a file and split into units."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from typing import NamedTuple

import numpy as np

from regard._wording import counted_noun
from regard.data.lines import is_blank, name_of, quoted, read_lines
from regard.data.pair_columns import DEFAULT_COLUMNS, UnicodeForm, feature_units, normalize
from regard.data.pair_rows import PairRows, read_pair_rows
from regard.data.storage import store
from regard.data.tokenizer import SeparatorTokenizer, Tokenizer, guess_tokenizer
from regard.data.vocabulary import Vocabulary
from regard.errors import ArgumentError, DataError

__all__ = [
    "Pair",
    "Pairs",
    "learn_tokenizers",
    "read_pairs",
    "read_sources",
    "source_text",
    "split_into_units",
    "split_source",
    "vocabularies",
]


class Pair(NamedTuple):
    """One source and its target, in units."""

    source: tuple[str, ...]
    target: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """The pairs of one file or of a part of one, how they were read and split, and notes for the user."""

    examples: Sequence[Pair]
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    name: str
    notes: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    unicode_form: UnicodeForm = "none"

    def __len__(self) -> int:
        return len(self.examples)


def read_pairs(
    path: str | PathLike[str],
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    *,
    columns: Sequence[str] | None = None,
    unicode_form: UnicodeForm = "none",
    max_length: int = 200,
) -> Pairs:
    """Read a file of pairs and split it into units, as `read_pair_rows` and `split_into_units` do.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "words.tsv")
    >>> _ = path.write_text("cat\\tK AE T\\ndog\\tD AO G\\n")
    >>> read_pairs(path).examples[0]
    Pair(source=('c', 'a', 't'), target=('K', 'AE', 'T'))
    """
    rows = read_pair_rows(path, columns=columns, unicode_form=unicode_form)
    return split_into_units(rows, source_tokenizer, target_tokenizer, max_length=max_length)


def learn_tokenizers(
    rows: PairRows, source: str | None, target: str | None, *, size: int, shared: bool = False
) -> tuple[Tokenizer | None, Tokenizer | None]:
    """Return the tokenizers of both sides by their names; ``"subword"`` is learned from its side.

    ``size`` is the number of subwords; with ``shared`` they are learned from both sides together.
    """
    names = (source, target)
    sides = ((row.source for row in rows.rows), (row.target for row in rows.rows))
    if "subword" not in names:
        return _named(source), _named(target)
    from regard.data.subwords import SubwordTokenizer

    if shared and names == ("subword", "subword"):
        both = SubwordTokenizer.from_texts(chain(*sides), size)
        return both, both
    first, second = (
        SubwordTokenizer.from_texts(side, size) if name == "subword" else _named(name)
        for name, side in zip(names, sides, strict=True)
    )
    return first, second


def _named(name: str | None) -> SeparatorTokenizer | None:
    return None if name is None else SeparatorTokenizer(name)


def split_into_units(
    rows: PairRows,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    *,
    max_length: int = 200,
) -> Pairs:
    """Split rows into units; a tokenizer that is ``None`` is guessed, and a note reports the guess.

    Features become units of the source, before the others. Pairs with more than ``max_length`` units on a side are
    left out; duplicates, and sources with several targets, stay. The notes count all of these.

    Errors: `DataError` with file, line and remedy for a side that consists of separators only, and when no pair is
    left.
    """
    if max_length < 1:
        raise ArgumentError(f"expected max_length of at least 1, got {max_length}")
    guessed = list(rows.guessed)
    if source_tokenizer is None:
        source_tokenizer = guess_tokenizer(row.source for row in rows.rows)
        guessed.append(_describe("source", source_tokenizer))
    if target_tokenizer is None:
        target_tokenizer = guess_tokenizer(row.target for row in rows.rows)
        guessed.append(_describe("target", target_tokenizer))
    left_out: list[int] = []
    examples = store(_split(rows, source_tokenizer, target_tokenizer, max_length, left_out))
    if not examples:
        raise DataError(
            f"expected pairs of at most {counted_noun(max_length, 'unit')} per side, "
            f"found only {counted_noun(len(left_out), 'longer pair')}; raise --max-length, or shorten the texts",
            file=rows.name,
            line=left_out[0],
        )
    notes = [_summary(rows.name, examples)]
    if guessed:
        notes.append(f"{rows.name}: {'; '.join(guessed)} (guessed)")
    if left_out:
        notes.append(
            f"{rows.name}: {counted_noun(len(left_out), 'pair')} of more than {counted_noun(max_length, 'unit')} "
            f"left out (first: line {left_out[0]}); --max-length raises the limit"
        )
    notes += rows.notes
    return Pairs(examples, source_tokenizer, target_tokenizer, rows.name, notes, rows.columns, rows.unicode_form)


def _describe(side: str, tokenizer: SeparatorTokenizer) -> str:
    return f"{side}: {tokenizer}{', such as words or phones' if tokenizer.name == 'words' else ''}"


def _split(
    rows: PairRows, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, max_length: int, left_out: list[int]
) -> Iterator[Pair]:
    """Yield the pairs; line numbers of those that are too long, and so left out, are appended to ``left_out``."""
    # Interned, equal units are one object: a large file takes a fraction of the memory.
    for number, source_side, features, target_side in rows.rows:
        source = tuple(map(sys.intern, source_tokenizer.split(source_side)))
        target = tuple(map(sys.intern, target_tokenizer.split(target_side)))
        if not source or not target:
            raise DataError(
                f"expected text on both sides, found only separators in the {'target' if source else 'source'}; "
                f"fill it in or delete the line",
                file=rows.name,
                line=number,
            )
        source = (*map(sys.intern, feature_units(features)), *source)
        if len(source) > max_length or len(target) > max_length:
            left_out.append(number)
        else:
            yield Pair(source, target)


def _summary(name: str, examples: Sequence[Pair]) -> str:
    # By their hashes, which take a tenth of the memory of the pairs themselves
    hashes = np.fromiter((hash(side) for pair in examples for side in (pair, pair.source)), np.int64)
    distinct, firsts = np.unique(hashes[::2], return_index=True)
    _, targets = np.unique(hashes[1::2][firsts], return_counts=True)
    several = int((targets > 1).sum())
    found = []
    if len(distinct) < len(examples):
        found.append(counted_noun(len(examples) - len(distinct), "duplicate"))
    if several:
        found.append(f"{counted_noun(several, 'source')} with more than one target")
    return f"{name}: {counted_noun(len(examples), 'pair')}" + ("; " + ", ".join(found) if found else "")


def vocabularies(pairs: Pairs, *, shared: bool = False) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabularies of both sides: all units of the pairs, and all that the tokenizers have learned.

    With ``shared`` both are one vocabulary of both sides together.
    """
    source = {unit for pair in pairs.examples for unit in pair.source}.union(pairs.source_tokenizer.units)
    target = {unit for pair in pairs.examples for unit in pair.target}.union(pairs.target_tokenizer.units)
    if shared:
        both = Vocabulary.from_units(source | target)
        return both, both
    return Vocabulary.from_units(source), Vocabulary.from_units(target)


def split_source(
    line: str,
    tokenizer: Tokenizer,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    unicode_form: UnicodeForm = "none",
    *,
    name: str | None = None,
    number: int | None = None,
) -> list[str]:
    """Return the units of a line to answer: a source, or SOURCE TAB FEATURES if ``columns`` have features.

    A blank line has no units. Raises `DataError` for a line without the features that it needs.

    >>> split_source("go\\tV;PST", SeparatorTokenizer("chars"), ("source", "target", "features"))
    ['\\tV', '\\tPST', 'g', 'o']
    """
    line = normalize(line, unicode_form)
    if "features" not in columns:
        return tokenizer.split(line)
    if is_blank(line):
        return []
    source, _, features = line.partition("\t")
    units = feature_units(features)
    if not source.strip() or not units or "\t" in features:
        fault = f"{counted_noun(line.count(chr(9)), 'TAB')} in {quoted(line)}"
        raise DataError(
            f"expected SOURCE TAB FEATURES, because the model was trained with features, found {fault}; give both",
            file=name,
            line=number,
        )
    return [*units, *tokenizer.split(source)]


def read_sources(
    path: str | PathLike[str],
    tokenizer: Tokenizer,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    unicode_form: UnicodeForm = "none",
) -> Iterator[list[str]]:
    """Yield the units of each line of a file to answer, as `split_source` does; none for a blank line."""
    name = name_of(path)
    for number, line in enumerate(read_lines(path), start=1):
        yield split_source(line, tokenizer, columns, unicode_form, name=name, number=number)


def source_text(units: Sequence[str], tokenizer: Tokenizer) -> str:
    """Return the text of a source's units; features, if there are any, follow it: SOURCE TAB FEATURES.

    >>> source_text(["\\tV", "\\tPST", "g", "o"], SeparatorTokenizer("chars"))
    'go\\tV;PST'
    """
    features = ";".join(unit[1:] for unit in units if unit.startswith("\t"))
    text = tokenizer.join(unit for unit in units if not unit.startswith("\t"))
    return f"{text}\t{features}" if features else text
