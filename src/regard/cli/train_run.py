"""A run of `regard train`: started or resumed, trained, scored, and shown."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Exit

from regard._wording import counted_noun
from regard.cli.signals import INTERRUPTED, Interrupted
from regard.cli.tasks import TASK_MODULES
from regard.cli.train_plan import LARGE_DATA, DataSources
from regard.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.cli.train_plan import TrainPlan
    from regard.data.splits import Split
    from regard.tasks.run import Run
    from regard.training import TrainingSettings

__all__ = ["resume", "start"]

_Parts = tuple["Split", "Split | None", "Split | None"]
_Splits = tuple["Split", "Split", "Split | None"]


def start(plan: TrainPlan, console: Console) -> None:
    """Create a run for the data, and train it."""
    from regard.training.processes import from_rank_zero
    from regard.training.trainer import record_provenance

    task, sources = TASK_MODULES[plan.task], plan.sources
    directory = from_rank_zero(lambda: _vacant(plan.out or _numbered(Path("runs") / _run_name(sources.data))))
    with _examples_stored(sources, directory, console):
        parts = _parts(sources, partial(task.read, **plan.reading))
        run = task.new(parts[0], plan)  # its vocabularies are those of the training examples alone
        splits = _splits(run, parts, sources, console)
        record_provenance(run, splits[0].examples, plan.settings, asdict(_absolute(sources)))
        from_rank_zero(lambda: run.create(directory))
        _fit(run, splits, plan.settings, directory, console, resuming=False)


def resume(directory: Path, console: Console) -> None:
    """Continue a run that was interrupted."""
    from regard.tasks.registry import open_run
    from regard.training import TrainingSettings
    from regard.training.trainer import are_examples_of

    run = open_run(directory, trained=False)
    if not (directory / "resume.ckpt").exists():
        raise RunError(
            f"{directory}: expected an interrupted training, found nothing to resume: it has finished, "
            "or was stopped in its first epoch; start a new run"
        )
    try:
        settings, _ = TrainingSettings(**run.training["recipe"]), run.training["fingerprint"]
        paths = {name: run.training[name] for name in ("data", "dev", "test", "stress")}
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{directory}: config.json lacks the settings of the training ({error}); start a new run"
        ) from error
    sources = DataSources(**paths, on_disk=run.training.get("on_disk", False))
    with _examples_stored(sources, directory, console):
        splits = _splits(run, _parts(sources, run.read), sources, console)
        if not are_examples_of(run, splits[0].examples):
            raise RunError(
                f"{directory}: expected the same training data as at the start, found others; "
                "restore them, or start a new run"
            )
        _fit(run, splits, settings, directory, console, resuming=True)


@contextmanager
def _examples_stored(sources: DataSources, directory: Path, console: Console) -> Iterator[None]:
    """Within, store examples in memory, or, if there are many, in a folder of the run directory."""
    data = sources.data
    large = data is not None and os.path.isfile(data) and os.path.getsize(data) > LARGE_DATA
    if not sources.on_disk and not large:
        yield
        return
    from regard.data.on_disk import disk_store
    from regard.training.processes import rank

    why = "" if sources.on_disk else f": {data} is large"
    console.print(f"examples are stored in {directory} during training{why}")
    try:
        with disk_store(directory / f"examples-{rank()}"):
            yield
    finally:
        if directory.exists() and not any(directory.iterdir()):  # the data were faulty: there is no run
            directory.rmdir()


def _parts(sources: DataSources, read: Callable[[str], Split]) -> _Parts:
    """Return training examples, and dev and test examples if they come with the training data."""
    from regard.data import cmudict
    from regard.data.splits import split_off

    if sources.data is None:
        return cmudict.load(stress=sources.stress)
    train = read(sources.data)
    return (train, None, None) if sources.dev else (*split_off(train), None)


def _splits(run: Run, parts: _Parts, sources: DataSources, console: Console) -> _Splits:
    """Return all examples, also those from separate files, and print the notes on them."""
    train, dev, test = parts
    splits = train, dev or run.read(str(sources.dev)), run.read(sources.test) if sources.test else test
    for split in splits:
        for note in split.notes if split else ():
            console.print(note)
    return splits


def _fit(
    run: Run, splits: _Splits, settings: TrainingSettings, directory: Path, console: Console, *, resuming: bool
) -> None:
    from regard.training.processes import rank
    from regard.training.trainer import fit

    train, dev, test = splits
    for split in filter(None, (dev, test)):
        for note in run.unseen_notes(split.examples):
            console.print(f"{split.name}: {note}")
    length = f"{settings.minutes:g} min" if settings.epochs is None else counted_noun(settings.epochs, "epoch")
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    task = TASK_MODULES[run.task]
    console.print(
        f"training for {length}: {counted_noun(len(train.examples), task.EXAMPLE_NOUN)}, "
        f"{parameters / 1e6:.2f} M parameters, {task.describe(run)}"
    )
    try:
        outcome = fit(run, train.examples, dev.examples, settings, directory, console=console, resume=resuming)
    except KeyboardInterrupt:  # a second signal
        raise Interrupted from None
    console.print(f"best model in {directory}: dev {outcome.dev}")
    if outcome.signal is not None:
        remedy = f"; continue with: {_resume_command(directory)}" if (directory / "resume.ckpt").exists() else ""
        console.print(f"stopped on request after {outcome.seconds:.0f} s; the best model so far is saved{remedy}")
        raise Exit(INTERRUPTED)
    if rank() > 0:  # of several processes one reports
        return
    _report(run, outcome.dev.as_dict(), test, directory, console)
    task.show_examples(run, _handful((test or dev).examples), directory, console)
    name = shlex.quote(str(directory))
    console.print(f'next: regard look {name} "..."   regard predict {name} FILE   regard evaluate {name} FILE')


def _report(run: Run, dev: dict[str, object], test: Split | None, directory: Path, console: Console) -> None:
    """Score the test set, once, and write all scores."""
    from regard._files import write_atomically

    scores = {"dev": dev}
    if test is not None:
        result = run.test(test.examples)
        console.print(f"test ({test.name}{TASK_MODULES[run.task].SCORING_NOTE}): {result}")
        scores["test"] = result.as_dict()
    text = json.dumps(scores, indent=2) + "\n"
    write_atomically(directory / "scores.json", lambda path: path.write_text(text, encoding="utf-8"))


def _handful(examples: Sequence[Any], count: int = 6) -> list[Any]:
    """Return a few examples of medium and greater length, without the longest, or all if there are only a few."""
    ranked = sorted(examples, key=lambda example: len(example[0]))
    if len(ranked) <= count:
        return ranked
    middle = ranked[len(ranked) // 2 : max(len(ranked) // 2 + 1, len(ranked) * 19 // 20)]
    return middle[:: max(1, len(middle) // count)][:count]


def _vacant(directory: Path) -> Path:
    """Return ``directory``, or raise `RunError` if it contains a run."""
    if (directory / "config.json").exists():
        resumable = (directory / "resume.ckpt").exists()
        remedy = f"continue it: {_resume_command(directory)}" if resumable else "delete the run first"
        raise RunError(f"{directory}: expected a new directory, found a run; choose another --out, or {remedy}")
    return directory


def _numbered(path: Path) -> Path:
    """Return ``path``, or the first of path-2, path-3, ... that does not exist yet."""
    number = 1
    while (candidate := path if number == 1 else path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return candidate


def _run_name(data: str | None) -> str:
    """Return the name of a run that is trained on this file."""
    return "english" if data is None else Path(data).name.lstrip("-.").split(".")[0] or "data"


def _resume_command(directory: Path) -> str:
    return f"regard train --resume {shlex.quote(str(directory))}"


def _absolute(sources: DataSources) -> DataSources:
    """Return the sources with absolute paths, so that training can be resumed from another folder."""

    def absolute(path: str | None) -> str | None:
        return path if path in (None, "-") else os.path.abspath(path)

    return replace(sources, data=absolute(sources.data), dev=absolute(sources.dev), test=absolute(sources.test))
