"""Prediction of large files: lines are read as they are needed, answered in order, and let go."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.data.pairs import read_sources
from regard.models.search import Hypothesis
from regard.tasks import seq2seq, windows
from regard.tasks.windows import in_length_batches
from small_runs import backwards, new_run, short_training

LINES = 50_000


@given(st.lists(st.text("ab", max_size=5), max_size=40), st.integers(1, 7), st.integers(1, 30))
def test_every_input_has_its_output_in_a_batch_of_its_length(texts: list[str], window: int, budget: int) -> None:
    batches: list[list[str]] = []

    def answer(batch: list[str]) -> Iterator[str]:
        batches.append(batch)
        return (text[::-1] for text in batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "_WINDOW", window)
        outputs = list(in_length_batches(texts, len, lambda length: budget // length, answer, ""))
    assert outputs == [text[::-1] for text in texts]
    for batch in batches:
        assert all(batch)
        assert len(batch) * max(map(len, batch)) <= max(budget, max(map(len, batch)))


def test_a_large_file_streams_in_order_and_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50,000 lines, as many as a window are held at once: an answer comes before the rest has been read."""

    def echo(model: Any, source: Tensor, lengths: Tensor, **how: Any) -> list[list[Hypothesis]]:
        rows = zip(source.tolist(), lengths.tolist(), strict=True)
        return [[Hypothesis(tuple(ids[:n]), 0.0, 0.0, True)] for ids, n in rows]

    def lines() -> Iterator[list[str]]:
        for units in read_sources(tmp_path / "lines.gz", run.source_tokenizer):
            read.append(1)
            yield units

    drawn = random.Random(0)
    wanted = ["".join(drawn.choices("abcdef", k=drawn.choice([0, 1, 2, 30]))) for _ in range(LINES)]
    with gzip.open(tmp_path / "lines.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in wanted)
    run, read = new_run(tmp_path / "run", backwards(), short_training()), []
    run.max_length = 30
    monkeypatch.setattr(seq2seq, "beam_search", echo)
    tracemalloc.start()
    try:
        for number, answer in enumerate(run.predict_units(lines())):
            assert "".join(unit for p in answer.predictions for unit in p.units) == wanted[number]
            assert len(read) <= number + 2048
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert number + 1 == len(read) == LINES
    assert most < 12e6  # a window's lines, answers and ids; all of them at once take 60 MB
