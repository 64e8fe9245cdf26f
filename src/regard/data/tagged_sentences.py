"""Tagged sentences, read from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import NamedTuple

from regard._wording import counted_noun
from regard.data import conllu
from regard.data.lines import name_of
from regard.data.storage import store
from regard.errors import DataError

__all__ = ["TaggedSentence", "TaggedSentences", "read_tagged"]


class TaggedSentence(NamedTuple):
    """One sentence: its words, and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class TaggedSentences:
    """The sentences of one file or of a part of one, and notes for the user."""

    examples: Sequence[TaggedSentence]
    name: str
    notes: list[str] = field(default_factory=list)


def read_tagged(path: str | PathLike[str], column: str = "upos") -> TaggedSentences:
    """Read the tagged sentences of a file in one of the formats of `regard.data.conllu`, without its other columns.

    Errors: `DataError` with file and line for a word without a tag, and for a file without words, or without a tag in
    the column; `ArgumentError` for an invalid name of a column.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "words.txt")
    >>> _ = path.write_text("a\\tDET\\ndog\\tNOUN\\n")
    >>> read_tagged(path).examples
    [TaggedSentence(words=('a', 'dog'), tags=('DET', 'NOUN'))]
    """
    conllu.check_column(column)
    name = name_of(path)
    tags: Counter[str] = Counter()

    def tagged() -> Iterator[TaggedSentence]:
        for sentence in conllu.read(path):
            if sentence.words:
                example = TaggedSentence(sentence.words, sentence.tags(column))
                tags.update(example.tags)
                yield example

    examples = store(tagged())
    if not examples:
        raise DataError("expected words, CoNLL-U or WORD TAB TAG, found none; check the path", file=name)
    if tags.keys() == {"_"}:
        raise DataError(
            f"expected tags in the column {column}, found _ for every word; choose another column with --tag", file=name
        )
    sizes = [
        counted_noun(n, noun) for n, noun in ((len(examples), "sentence"), (tags.total(), "word"), (len(tags), "tag"))
    ]
    return TaggedSentences(examples, name, [f"{name}: {', '.join(sizes)} ({column})"])
