"""`regard evaluate`: the table of scores."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from regard.cli.evaluate import score_table
from regard.tasks import Scores, score_labels, score_tags, score_texts, score_units

WORDS = ["ab", "cd", "ef", "ab"], ["ab", "cd", "gh", "ef"]
SCORED: dict[str, Callable[..., Scores]] = {
    "units": lambda **asked: score_units(*WORDS, **asked),
    "tags": lambda **asked: score_tags(*WORDS, **asked),
    "labels": lambda **asked: score_labels(*WORDS, **asked),
    "texts": lambda **asked: score_texts(["a cat sat on it", "no"] * 3, ["a cat sat on mats", "no"] * 3, **asked),
}


@pytest.mark.parametrize("confidence", [False, True])
@pytest.mark.parametrize("kind", SCORED)
def test_the_table_has_a_row_for_each_value(kind: str, confidence: bool) -> None:
    scores = SCORED[kind](confidence=confidence)
    console = Console(width=100, file=io.StringIO())
    console.print(score_table(scores))
    printed = console.file.getvalue()
    for label in scores.labels.values():
        assert any(line.split()[: len(label.split())] == label.split() for line in printed.splitlines())
    assert printed.count(" to ") == confidence * len(scores.values)
