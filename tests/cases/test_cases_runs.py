"""Faults that people reported of other libraries' checkpoints and resumed runs, by the ids of the list of cases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from regard.data import SeparatorTokenizer, TokenBudgetSampler, read_pairs
from regard.tasks import Seq2SeqRun
from regard.training import fit
from small_runs import at_update, backwards, new_run, rows, short_training, silent

either_kind = pytest.mark.parametrize("kind", ["recurrent", "transformer"])

RESUME = """
import sys
from regard.cli import main
for run in sys.argv[1:]:
    try:
        main(["train", "--resume", run])
    except SystemExit as leaving:
        if leaving.code:
            raise
"""


@pytest.mark.parametrize("options", [{"encoder_layers": 2}, {"kind": "transformer", "positions": "t5"}])
def test_t2_two_epochs_equal_one_then_a_new_process_and_one_more(
    options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{''.join(a)}\t{''.join(b)}\n" for a, b in backwards(30).examples), encoding="utf-8")
    pairs = read_pairs(data, SeparatorTokenizer("chars"), SeparatorTokenizer("chars"))
    # Scored once, at the end, so that the weights kept are the last ones
    plan = short_training(epochs=2, evaluations=1, batch_tokens=60, warmup=5)
    facts = {"data": str(data), "dev": str(data), "test": None, "stress": False}
    sampler = TokenBudgetSampler(
        [len(e.source) for e in pairs.examples], [len(e.target) + 2 for e in pairs.examples], tokens=60
    )
    assert len(sampler) > 5

    def start(name: str) -> Path:
        run = new_run(tmp_path / name, pairs, plan, facts, dropout=0.3, **options)
        fit(run, pairs.examples, pairs.examples, plan, tmp_path / name, console=silent())
        return tmp_path / name

    whole, stopped = start("whole"), []
    for name, update in (("after_an_epoch", len(sampler) - 1), ("amid_an_epoch", len(sampler) + 3)):
        with monkeypatch.context() as patch:
            at_update(patch, update, lambda _: os.kill(os.getpid(), signal.SIGTERM))
            stopped.append(start(name))
        assert (stopped[-1] / "resume.ckpt").exists()
        assert int(rows(stopped[-1])[-1]["update"]) == update + 1
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", RESUME, *map(str, stopped)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"},
        capture_output=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr.decode()
    timing = ("minutes", "tokens_per_second")
    for directory in stopped:
        assert (directory / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        last, expected = rows(directory)[-1], rows(whole)[-1]
        assert {k: v for k, v in last.items() if k not in timing} == {
            k: v for k, v in expected.items() if k not in timing
        }
        assert not (directory / "resume.ckpt").exists()


def saved_names(directory: Path) -> list[str]:
    with safe_open(directory / "model.safetensors", "pt") as weights:
        return sorted(weights.keys())


@either_kind
def test_c1_a_checkpoint_holds_the_parameters_and_nothing_else(kind: str, tmp_path: Path) -> None:
    run = new_run(tmp_path, backwards(), short_training(), kind=kind)
    run.save_weights(tmp_path)
    assert saved_names(tmp_path) == sorted(name for name, _ in run.model.named_parameters())


@either_kind
@pytest.mark.parametrize("wrapper", ["compiled", "a part compiled", "parallel", "parallel and compiled"])
def test_c1_a_wrapped_model_is_loaded_plain(wrapper: str, kind: str, tmp_path: Path) -> None:
    run = new_run(tmp_path, backwards(), short_training(), kind=kind)
    lines = ["abc", "fed", "ccab"]
    run.model.eval()
    expected = list(run.predict(lines))
    wrapped = run.model
    if wrapper == "a part compiled":
        wrapped.encoder = torch.compile(wrapped.encoder, backend="eager")
    if "parallel" in wrapper:
        wrapped = torch.nn.DataParallel(wrapped)
    if wrapper.endswith("compiled") and not wrapper.startswith("a part"):
        wrapped = torch.compile(wrapped, backend="eager")
    replace(run, model=wrapped).save_weights(tmp_path)
    assert not any("module" in name or "orig" in name for name in saved_names(tmp_path))
    assert list(Seq2SeqRun.load(tmp_path).predict(lines)) == expected
