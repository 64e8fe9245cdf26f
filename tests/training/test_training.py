"""Training: the loss, the schedule and the average by their formulas, and a run that learns, is stopped, or fails."""

from __future__ import annotations

import io
import math
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from regard import _files as files
from regard._symbols import BOS, EOS, PAD
from regard.data import SeparatorTokenizer, TokenBudgetSampler, Vocabulary
from regard.errors import RegardError, RunError
from regard.models import RecurrentConfig, RecurrentSeq2Seq
from regard.tasks import Seq2SeqRun
from regard.tasks.seq2seq import Batch
from regard.training import TrainingModule, callbacks, fit, learning_rate
from regard.training.callbacks import Progress
from small_runs import at_update, backwards, full_disk, new_run, no_space, rows, short_training, silent, train

BATCH = Batch(
    torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([3, 2]), torch.tensor([[BOS, 4, 5, 6, EOS], [BOS, 7, EOS, 0, 0]])
)


def module(**options: object) -> TrainingModule:
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(RecurrentConfig(9, 9, 4, 6, dropout=0.0))
    letters = Vocabulary.from_units("abcde")
    run = Seq2SeqRun(model, letters, letters, SeparatorTokenizer("chars"), SeparatorTokenizer("chars"), 20, 1.0)
    return TrainingModule(run, short_training(**options), lambda: 0.5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_its_formula_and_padding_has_no_part(smoothing: float) -> None:
    training = module(label_smoothing=smoothing)
    log_p = training.model(BATCH.source, BATCH.source_lengths, BATCH.target[:, :-1]).log_softmax(-1)
    losses = []
    for row, wanted in enumerate(BATCH.target[:, 1:].tolist()):
        for step, symbol in enumerate(wanted):
            if symbol != PAD:
                p = log_p[row, step]
                losses.append(-(1 - smoothing) * p[symbol] - smoothing * p.mean())
    assert len(losses) == 4 + 2
    torch.testing.assert_close(training.training_step(BATCH, 0)["loss"], torch.stack(losses).mean())


def test_the_average_remembers_more_the_longer_it_runs() -> None:
    training = module(average=0.3)
    output = training.model.output
    optimizer = torch.optim.SGD(training.model.parameters(), lr=1.0)
    weights = [torch.randn_like(output.weight) for _ in range(5)]
    expected = weights[0]
    for count, weight in enumerate(weights):
        output.weight.grad = output.weight.detach() - weight  # the step leads to ``weight``
        training.optimizer_step(0, 0, optimizer)
        decay = min(0.3, (1 + count) / (10 + count))
        expected = weight if count == 0 else decay * expected + (1 - decay) * weight
        torch.testing.assert_close(training.average.module.output.weight, expected)


def test_only_matrices_decay() -> None:
    training = module(weight_decay=0.5)
    groups = training.configure_optimizers().param_groups
    assert {group["weight_decay"] for group in groups} == {0.5, 0.0}
    for group in groups:
        assert all((p.dim() > 1) == (group["weight_decay"] > 0) for p in group["params"])
    assert {p for group in groups for p in group["params"]} == set(training.model.parameters())


def test_it_learns_to_spell_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    at_update(monkeypatch, None, lambda self: rates.append(self.trainer.optimizers[0].param_groups[1]["lr"]))
    console = Console(file=io.StringIO(), width=200)
    plan, pairs = short_training(epochs=50, evaluations=5, patience=9), backwards()
    run, outcome = train(tmp_path, plan, pairs, console=console, embed_dim=16, hidden_dim=32)
    assert outcome.signal is None
    assert outcome.dev.values["error_rate"] < 0.05
    assert not run.model.training
    assert run.score(pairs.examples).values["error_rate"] < 0.05
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "source.vocabulary.json",
        "target.vocabulary.json",
        "model.safetensors",
        "log.csv",
    }
    updates = len(rates)
    assert rates == pytest.approx([learning_rate(n, n / updates, plan) for n in range(updates)])
    log = rows(tmp_path)
    assert [int(row["epoch"]) for row in log] == [10, 20, 30, 40, 50]
    assert int(log[-1]["update"]) == updates
    assert float(log[-1]["loss"]) < 0.5 * float(log[0]["loss"])
    said = console.file.getvalue()
    assert said.count("dev exact") == 5
    assert "100 %  epoch 50  loss" in said


@pytest.mark.parametrize("positions", ["sinusoidal", "t5"])
def test_a_transformer_learns_it_as_well(positions: str, tmp_path: Path) -> None:
    pairs = backwards()
    options = {"kind": "transformer", "positions": positions, "dim": 32, "dropout": 0.0}
    run, outcome = train(tmp_path, short_training(epochs=40, evaluations=2, learning_rate=5e-3), pairs, **options)
    assert outcome.dev.values["error_rate"] < 0.1
    loaded, kept = (one.score(pairs.examples).values["error_rate"] for one in (Seq2SeqRun.load(tmp_path), run))
    assert loaded == kept < 0.1


def test_the_average_is_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TrainingModule] = []
    at_update(monkeypatch, 1, seen.append)
    run, _ = train(tmp_path, short_training(epochs=1, evaluations=1))
    average = seen[0].average
    assert int(average.n_averaged) > 2
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, average.module.state_dict()[name])
        assert torch.equal(tensor, run.model.state_dict()[name])


def test_the_best_is_kept_and_no_progress_ends_it(tmp_path: Path) -> None:
    plan = short_training(epochs=30, evaluations=30, patience=3, learning_rate=1e-30)
    _, outcome = train(tmp_path, plan)
    log = rows(tmp_path)
    assert [int(row["epoch"]) for row in log] == [1, 2, 3, 4]  # the first is best, then three without a better one
    assert outcome.signal is None
    assert not (tmp_path / "resume.ckpt").exists()
    with pytest.raises(RunError, match=r"resume\.ckpt"):
        fit(
            Seq2SeqRun.load(tmp_path),
            backwards().examples,
            backwards().examples,
            plan,
            tmp_path,
            console=silent(),
            resume=True,
        )


def test_every_epoch_is_shuffled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []
    monkeypatch.setattr(TokenBudgetSampler, "set_epoch", lambda _, epoch: epochs.append(epoch))
    train(tmp_path, short_training(epochs=3))
    assert sorted(set(epochs)) == [0, 1, 2]
    assert epochs == sorted(epochs)


def test_minutes_end_it(tmp_path: Path) -> None:
    _, outcome = train(tmp_path, short_training(epochs=None, minutes=0.01, evaluations=3))
    assert 0.6 <= outcome.seconds < 6
    assert float(rows(tmp_path)[-1]["minutes"]) >= 0.01


def test_time_counts_on_over_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: clock[0])
    first = Progress(minutes=1.0, updates=0)
    first.on_train_start(None, None)
    clock[0] += 15
    assert (first.seconds, first.fraction()) == (15, 0.25)
    second = Progress(minutes=1.0, updates=0)
    second.load_state_dict(first.state_dict())
    clock[0] += 1000
    second.on_train_start(None, None)
    clock[0] += 30
    assert (second.seconds, second.fraction()) == (45, 0.75)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_best_so_far_is_kept(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    at_update(monkeypatch, 7, lambda _: os.kill(os.getpid(), number))
    run, outcome = train(tmp_path, short_training(epochs=100, evaluations=100))
    assert outcome.signal == number
    assert [row["update"] for row in rows(tmp_path)] == ["5"]  # the update under way was finished, no score after it
    assert (tmp_path / "resume.ckpt").exists()
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, run.model.state_dict()[name])
    assert signal.getsignal(number) == before


def test_a_run_stopped_in_its_last_update_is_resumed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, pairs = short_training(epochs=2, evaluations=2), backwards()
    run = new_run(tmp_path, pairs, plan)
    updates = 2 * len(
        TokenBudgetSampler([len(a) for a, _ in pairs.examples], [len(b) + 2 for _, b in pairs.examples], tokens=50)
    )
    with monkeypatch.context() as patch:
        at_update(patch, updates - 1, lambda _: os.kill(os.getpid(), signal.SIGINT))
        stopped = fit(run, pairs.examples, pairs.examples, plan, tmp_path, console=silent())
    assert stopped.signal == signal.SIGINT
    ended = fit(
        Seq2SeqRun.load(tmp_path), pairs.examples, pairs.examples, plan, tmp_path, console=silent(), resume=True
    )
    assert (ended.dev, ended.signal) == (stopped.dev, None)
    assert not (tmp_path / "resume.ckpt").exists()


def test_a_signal_in_the_first_update_leaves_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_update(monkeypatch, 0, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    _, outcome = train(tmp_path, short_training(epochs=100))
    assert outcome.signal == signal.SIGTERM
    assert [row["update"] for row in rows(tmp_path)] == ["1"]
    assert not (tmp_path / "resume.ckpt").exists()
    Seq2SeqRun.load(tmp_path)


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_interrupts_at_once(
    numbers: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def twice(_: TrainingModule) -> None:
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        raise AssertionError("still here")

    at_update(monkeypatch, 7, twice)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, short_training(epochs=100, evaluations=100))
    Seq2SeqRun.load(tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_loss_that_is_no_number_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(training: TrainingModule) -> None:
        torch.nn.init.constant_(training.model.output.bias, math.nan)

    at_update(monkeypatch, 7, spoil)
    with pytest.raises(RegardError, match=r"a finite loss, got nan at update 7; lower --lr") as caught:
        train(tmp_path, short_training(epochs=100, evaluations=100))
    assert len(str(caught.value).splitlines()) == 1
    assert all(tensor.isfinite().all() for tensor in Seq2SeqRun.load(tmp_path).model.state_dict().values())


def test_far_too_high_a_rate_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(RegardError, match="lower --lr"):
        train(tmp_path, short_training(epochs=9, evaluations=1, learning_rate=1e30, warmup=0))


def test_a_failure_gives_the_terminal_its_cursor_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(training: TrainingModule) -> None:
        torch.nn.init.constant_(training.model.output.bias, math.nan)

    at_update(monkeypatch, 2, spoil)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(RegardError):
        train(tmp_path, short_training(), console=terminal)
    shown = terminal.file.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_a_bar_shows_how_far_it_is(tmp_path: Path) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    train(tmp_path, short_training(), console=terminal)
    assert "epoch 2  loss" in terminal.file.getvalue()
    assert "best dev exact" in terminal.file.getvalue()


def test_write_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, lambda temporary: temporary.write_text("old"))
    with full_disk(10), pytest.raises(RunError, match=r"cannot write .*file \(File too large\); free some space"):
        files.write_atomically(path, lambda temporary: temporary.write_text("new" * 10000))
    monkeypatch.setattr(files.os, "replace", no_space)
    with pytest.raises(RunError, match=r"cannot write .*file \(No space left on device\); .* --out"):
        files.write_atomically(path, lambda temporary: temporary.write_text("new"))
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, _interrupt)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _interrupt(temporary: Path) -> None:
    temporary.write_text("half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("file", ["model.safetensors", "resume.ckpt"])
def test_a_disk_that_fills_up_leaves_the_former_model(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, kept = os.replace, []

    def second_fails(source: Path, target: Path) -> None:
        if Path(target).name == file:
            kept.append(target)
            if len(kept) > 1:
                no_space()
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", second_fails)
    with pytest.raises(RunError, match=rf"cannot write .*{file} \(No space left on device\)"):
        train(tmp_path, short_training(epochs=9, evaluations=9))
    Seq2SeqRun.load(tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_a_disk_that_is_full_is_said_by_the_system_itself(tmp_path: Path) -> None:
    plan, pairs = short_training(), backwards()
    run = new_run(tmp_path, pairs, plan)
    run.save_weights(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    torch.nn.init.zeros_(run.model.output.weight)
    with full_disk(4096), pytest.raises(RunError, match=r"cannot write .*model\.safetensors \(File too large\)"):
        run.save_weights(tmp_path)
    with full_disk(4096), pytest.raises(RunError, match=r"cannot write .*(safetensors|ckpt) \(File too large\)"):
        fit(run, pairs.examples, pairs.examples, plan, tmp_path, console=silent())
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_log_that_cannot_be_written_is_an_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "log.csv").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*log\.csv \(Is a directory\)"):
        train(tmp_path, short_training())


def test_a_folder_that_cannot_be_made_is_an_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(RunError, match=r"cannot write .*taken.*; .*choose another folder with --out"):
            new_run(path, backwards(), short_training())


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_a_damaged_state_of_training_is_said(content: bytes | None, tmp_path: Path) -> None:
    plan, pairs, state = short_training(epochs=1), backwards(), tmp_path / "resume.ckpt"
    run = new_run(tmp_path, pairs, plan)
    if content is None:
        torch.save({"weights": torch.ones(1000)}, state)
        content = state.read_bytes()[:2000]
    state.write_bytes(content)
    with pytest.raises(RunError, match=r"resume\.ckpt: the saved state of training is damaged") as caught:
        fit(run, pairs.examples, pairs.examples, plan, tmp_path, console=silent(), resume=True)
    assert len(str(caught.value).splitlines()) == 1
