"""Runs that train in a second: a small model that learns to spell words backwards."""

from __future__ import annotations

import csv
import errno
import io
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.data import Pair, Pairs, SeparatorTokenizer
from regard.tasks import Seq2SeqRun
from regard.training import Outcome, TrainingModule, TrainingSettings, fit, record_provenance


def backwards(count: int = 20, seed: int = 0, alphabet: str = "abcdef") -> Pairs:
    drawn = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(drawn.choice(alphabet) for _ in range(drawn.randint(2, 6)))] = None
    return Pairs(
        [Pair(tuple(w), tuple(w[::-1])) for w in words],
        SeparatorTokenizer("chars"),
        SeparatorTokenizer("chars"),
        "backwards",
    )


def short_training(**options: Any) -> TrainingSettings:
    """Return settings with five updates an epoch on 20 words."""
    small = {"learning_rate": 1e-2, "warmup": 20, "batch_tokens": 50, "label_smoothing": 0.0, "average": 0.9}
    return TrainingSettings(**{"minutes": None, "epochs": 2, "evaluations": 2, **small, **options})


SMALL: dict[str, dict[str, Any]] = {
    "recurrent": {"embed_dim": 8, "hidden_dim": 16, "dropout": 0.1},
    "transformer": {
        "dim": 16,
        "heads": 2,
        "feedforward": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "dropout": 0.1,
    },
}


def new_run(
    directory: Path,
    pairs: Pairs,
    plan: TrainingSettings,
    data_sources: dict[str, Any] | None = None,
    *,
    kind: str = "recurrent",
    **options: Any,
) -> Seq2SeqRun:
    run = Seq2SeqRun.new(pairs, kind, max_length=20, seed=plan.seed, **{**SMALL[kind], **options})
    record_provenance(run, pairs.examples, plan, data_sources or {})
    run.create(directory)
    return run


def train(
    directory: Path,
    plan: TrainingSettings,
    pairs: Pairs | None = None,
    *,
    console: Console | None = None,
    **options: Any,
) -> tuple[Seq2SeqRun, Outcome]:
    pairs = pairs or backwards()
    run = new_run(directory, pairs, plan, **options)
    return run, fit(run, pairs.examples, pairs.examples, plan, directory, console=console or silent())


def silent() -> Console:
    return Console(file=io.StringIO(), width=200)


def rows(directory: Path) -> list[dict[str, str]]:
    with (directory / "log.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def at_update(monkeypatch: pytest.MonkeyPatch, wanted: int | None, act: Callable[[TrainingModule], object]) -> None:
    """Call ``act`` in the middle of one update, counted from 0, or of every update."""
    whole = TrainingModule.training_step

    def step(self: TrainingModule, batch: Any, index: int) -> Any:
        if wanted in (None, self.global_step):
            act(self)
        return whole(self, batch, index)

    monkeypatch.setattr(TrainingModule, "training_step", step)


@contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """Within, the operating system lets no file grow beyond ``room`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
