"""Where examples are stored: whoever reads or encodes them takes the store in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data import read_labelled, read_pairs, read_tagged, split_off
from regard.data.storage import store, stored_by


def test_readers_and_splits_use_the_store(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("a b\tX\n\nc\tY\n\nd e\tX\n", encoding="utf-8")
    for read in (read_pairs, read_tagged, lambda path: read_labelled(path, ("text", "label"))):
        data = read(path)
        assert isinstance(data.examples, list)
        with stored_by(tuple):
            stored = read(path)
            train, dev = split_off(stored)
        assert stored.examples == tuple(data.examples)
        assert isinstance(train.examples, tuple)
        assert isinstance(dev.examples, list)  # few, and read over and over


def test_a_store_is_used_within_only() -> None:
    with stored_by(tuple):
        with stored_by(sorted):
            assert store("ba") == ["a", "b"]
        assert store("ab") == ("a", "b")
        with pytest.raises(KeyError), stored_by(list):
            raise KeyError
        assert store("ab") == ("a", "b")
    assert store("ab") == ["a", "b"]
