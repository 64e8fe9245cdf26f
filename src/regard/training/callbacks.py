"""Training callbacks: measure progress, keep the best model, save the state to resume from, stop on signals."""

from __future__ import annotations

import csv
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import rich.progress
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from regard._files import disk_errors, write_atomically
from regard.tasks.metrics import Scores
from regard.training import processes

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

__all__ = ["KeepBest", "Progress", "ProgressBar", "SaveState", "StopOnSignal"]


class Progress(Callback):
    """A measure of the progress of training, in minutes or updates; a resumed training continues the count."""

    state_key = "Pace"  # in the states of interrupted runs, as in the other callbacks

    def __init__(self, minutes: float | None, updates: int) -> None:
        self._seconds = None if minutes is None else 60 * minutes
        self._updates = updates
        self._done = 0
        self._before = 0.0
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + (0.0 if self._started is None else time.monotonic() - self._started)

    def fraction(self) -> float:
        """Return the progress of training, from 0 to 1."""
        return min(1.0, self._done / self._updates if self._seconds is None else self.seconds / self._seconds)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self._done = trainer.global_step
        if self._seconds is not None and self.seconds >= self._seconds:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before, self._done = state_dict["seconds"], state_dict["done"]


class StopOnSignal(Callback):
    """A stop after the current update, on SIGINT or SIGTERM, or at the request of another callback.

    It comes after the other callbacks that stop training, and stops all processes if one of them stops.
    """

    signal: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # By now Lightning has installed a handler that ends the process on SIGTERM without a message
        self._install()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        number, should_stop = processes.all_max(self.signal or 0, trainer.should_stop)
        self.signal = int(number) or None
        trainer.should_stop = bool(should_stop or number)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within the context, the first SIGINT or SIGTERM stops training after an update, a second one at once."""
        before = self._install()
        try:
            yield
        except SystemExit:  # raised by Lightning after an interrupt
            raise KeyboardInterrupt from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _install(self) -> dict[int, Any]:
        return {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


class KeepBest(Callback):
    """A choice of the best model: score the averaged weights at intervals, save the best, stop without improvement.

    The better of two models has the higher ``sort_key`` of its scores. With several processes, only number 0 does this.
    """

    state_key = "Best"

    def __init__(
        self,
        evaluate: Callable[[], Scores],
        keep: Callable[[], None],
        progress: Progress,
        stop: StopOnSignal,
        log: Path,
        *,
        evaluations: int,
        patience: int,
        report: Callable[[str], None],
    ) -> None:
        self.scores: Scores | None = None
        self._evaluate, self._keep, self._progress, self._stop = evaluate, keep, progress, stop
        self._log, self._report = log, report
        self._evaluations, self._patience = evaluations, patience
        self._due, self._worse = 1, 0
        self._epoch, self._loss, self._tokens, self._since = 0, 0.0, 0, 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._epoch = trainer.current_epoch + 1
        self._loss += 0.02 * (outputs["mean"] - self._loss) if self._loss else outputs["mean"]
        self._tokens += outputs["targets"]
        ends = trainer.should_stop or self._stop.signal is not None
        if trainer.is_global_zero and self._progress.fraction() * self._evaluations >= self._due and not ends:
            self.measure(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and self._tokens and (self.scores is None or self._stop.signal is None):
            self.measure(trainer)

    def measure(self, trainer: Trainer) -> None:
        """Score the current averaged weights, and save them if they are the best so far."""
        speed = self._tokens / max(1e-9, self._progress.seconds - self._since)
        scores = self._evaluate()
        better = self.scores is None or scores.sort_key > self.scores.sort_key
        if better:
            self.scores, self._worse = scores, 0
            self._keep()
        else:
            self._worse += 1
            trainer.should_stop |= self._worse >= self._patience
        row = {
            "epoch": self._epoch,
            "update": trainer.global_step,
            "minutes": round(self._progress.seconds / 60, 3),
            "loss": round(self._loss, 4),
            "tokens_per_second": round(speed),
            **{f"dev_{name}": value for name, value in {**scores.values, "count": scores.count}.items()},
        }
        self._write(row)
        self._report(
            f"{100 * self._progress.fraction():3.0f} %  epoch {self._epoch}  loss {self._loss:.3f}  "
            f"dev {scores}{'  best' if better else ''}"
        )
        self._due = int(self._progress.fraction() * self._evaluations) + 1
        self._tokens, self._since = 0, self._progress.seconds

    def status(self) -> str:
        """Return one short line for a progress bar."""
        best = "" if self.scores is None else f"  best dev {str(self.scores).split(',')[0]}"
        return f"epoch {self._epoch}  loss {self._loss:.3f}{best}"

    def _write(self, row: dict[str, Any]) -> None:
        new = not self._log.exists()
        with disk_errors(self._log), self._log.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, row)
            if new:
                writer.writeheader()
            writer.writerow(row)

    def state_dict(self) -> dict[str, Any]:
        scores = None if self.scores is None else asdict(self.scores)
        return {"scores": scores, "due": self._due, "worse": self._worse, "loss": self._loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        scores = state_dict["scores"]
        if scores is not None and "rank" in scores:  # written by an earlier version
            scores["sort_key"] = scores.pop("rank")
        self.scores = None if scores is None else Scores(**scores)
        self._due, self._worse, self._loss = state_dict["due"], state_dict["worse"], state_dict["loss"]


class SaveState(Callback):
    """A file, written after every whole epoch, from which training resumes as if it had never stopped."""

    state_key = "Resume"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._generator: Tensor | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._generator is not None:
            torch.set_rng_state(self._generator)
            self._generator = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return
        if trainer.is_global_zero:
            write_atomically(self._path, trainer.save_checkpoint)
        else:  # joins the collective calls and writes nothing
            trainer.save_checkpoint(self._path)

    def state_dict(self) -> dict[str, Any]:
        return {"generators": processes.all_gather(torch.get_rng_state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._generator = state_dict["generators"][processes.rank()]


class ProgressBar(Callback):
    """A bar for the whole training, with the loss and the best score so far."""

    def __init__(self, console: Console, progress: Progress, best: KeepBest) -> None:
        self._progress, self._best = progress, best
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.percentage:3.0f} %"),
            rich.progress.TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=1.0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        self._bar.update(self._task, completed=self._progress.fraction(), description=self._best.status())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._bar.stop()  # restores the cursor of the terminal

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._bar.stop()
