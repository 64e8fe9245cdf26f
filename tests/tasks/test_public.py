"""Public names of `regard.data` and `regard.tasks`, and the imports that they cause."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import regard.data
import regard.tasks

DATA = [
    "LabelledText", "LabelledTexts", "Pair", "Pairs", "SeparatorTokenizer", "SubwordTokenizer", "TaggedSentence",
    "TaggedSentences", "TokenBudgetSampler", "Tokenizer", "Vocabulary", "disk_store", "guess_task", "pad",
    "read_labelled", "read_pairs", "read_tagged", "split_off",
]  # fmt: skip
TASKS = [
    "Answer", "Classification", "ClassifyRun", "Prediction", "Run", "Scores", "Search", "Seq2SeqRun", "TagRun",
    "edit_distance", "export_run", "open_run", "score_labels", "score_tags", "score_texts", "score_units",
]  # fmt: skip
HEAVY = ["datasets", "lightning", "matplotlib", "onnxruntime", "rich", "sacrebleu", "tokenizers", "torch", "typer"]


@pytest.mark.parametrize(("module", "names"), [(regard.data, DATA), (regard.tasks, TASKS)])
def test_the_public_names_are_these(module: ModuleType, names: list[str]) -> None:
    assert module.__all__ == dir(module) == names
    assert all(getattr(module, name).__name__ == name for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'flash'"):
        module.flash  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "loaded"),
    [
        ("from regard.data import read_pairs, read_tagged, read_labelled, guess_task, Vocabulary", ""),
        ("from regard.tasks import Scores, score_units", ""),
        ("from regard.tasks import Run, Seq2SeqRun, TagRun, ClassifyRun, open_run", "torch"),
    ],
)
def test_nothing_heavy_comes_along(statement: str, loaded: str) -> None:
    code = f"import sys; {statement}; print(*(name for name in {HEAVY} if name in sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
        == loaded
    )
