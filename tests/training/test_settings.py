"""Settings of training, their defaults by task, the learning rate they give, and what `regard.training` exports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import regard.training
from regard.errors import ArgumentError
from regard.training import TrainingSettings, learning_rate


def test_the_learning_rate_climbs_and_falls() -> None:
    plan = TrainingSettings(epochs=1, learning_rate=3.0, warmup=4)
    assert [learning_rate(step, 0.0, plan) for step in range(6)] == pytest.approx([0.75, 1.5, 2.25, 3.0, 3.0, 3.0])
    falls = [learning_rate(100, progress / 10, plan) for progress in range(11)]
    assert falls == sorted(falls, reverse=True)
    assert (falls[5], falls[10], learning_rate(100, 1.7, plan)) == pytest.approx((3 * 0.51, 0.06, 0.06))
    assert learning_rate(0, 0.0, TrainingSettings(epochs=1, learning_rate=5.0, warmup=0)) == pytest.approx(5.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"minutes": 1.0, "epochs": 1},
        {"epochs": 0},
        {"minutes": -1.0},
        {"epochs": 1, "learning_rate": 0.0},
        {"epochs": 1, "batch_tokens": 0},
        {"epochs": 1, "clip": 0.0},
        {"epochs": 1, "evaluations": 0},
        {"epochs": 1, "patience": 0},
        {"epochs": 1, "warmup": -1},
        {"epochs": 1, "weight_decay": -0.1},
        {"epochs": 1, "label_smoothing": 1.0},
        {"epochs": 1, "average": 1.0},
    ],
)
def test_wrong_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="expected") as caught:
        TrainingSettings(**options)
    assert len(str(caught.value).splitlines()) == 1


def test_what_training_exports() -> None:
    names = ["Outcome", "TrainingModule", "TrainingSettings", "fit", "learning_rate", "record_provenance"]
    assert regard.training.__all__ == dir(regard.training) == names
    assert all(getattr(regard.training, name).__name__ == name for name in names)


def test_settings_need_no_torch() -> None:
    code = "import sys, regard.training.settings; print({'torch', 'lightning'} & set(sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "set()\n"


@pytest.mark.parametrize(
    ("task", "model", "differing"),
    [
        ("seq2seq", "recurrent", {"minutes": 2.0}),
        ("seq2seq", "transformer", {"minutes": 2.0, "warmup": 300}),
        ("tag", "recurrent", {"epochs": 10, "batch_tokens": 500}),
        ("classify", "none", {"epochs": 8, "batch_tokens": 600, "label_smoothing": 0.1, "warmup": 100}),
    ],
)
def test_settings_that_suit_a_task(task: str, model: str, differing: dict[str, float]) -> None:
    assert TrainingSettings.for_task(task, model) == TrainingSettings(**differing)
    differing = {name: value for name, value in differing.items() if name not in ("minutes", "epochs")}
    chosen = {"epochs": 3, "seed": 5}
    assert TrainingSettings.for_task(task, model, **chosen) == TrainingSettings(**differing, **chosen)


def test_a_task_that_is_none_has_no_settings() -> None:
    with pytest.raises(ArgumentError, match="task: expected one of 'seq2seq', 'tag', 'classify', got 'parse'"):
        TrainingSettings.for_task("parse")
