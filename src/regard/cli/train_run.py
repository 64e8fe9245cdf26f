"""What `regard train` does once its options are clear: a run is begun or resumed, trained, scored and shown."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Exit

from regard._wording import counted_noun
from regard.cli.signals import INTERRUPTED, Interrupted
from regard.cli.tasks import TASKS
from regard.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.data.splits import Split
    from regard.tasks.run import Run
    from regard.training.settings import TrainingSettings

__all__ = ["begin", "resume"]

_LARGE = 2**28  # bytes; as units and ids a text takes some twenty times as many in memory
_FACTS = ("data", "dev", "test", "stress", "fingerprint")  # what a run remembers of its data
_Parts = tuple["Split", "Split | None", "Split | None"]
_Splits = tuple["Split", "Split", "Split | None"]


def begin(task: str, options: dict[str, Any], recipe: TrainingSettings, console: Console) -> None:
    """Make a run for the data, and train it."""
    from regard.training.processes import from_rank_zero
    from regard.training.trainer import record_provenance

    facts = {name: options[name] for name in ("data", "dev", "test", "stress")}
    directory = from_rank_zero(lambda: _new(options["out"] or _free(Path("runs") / _stem(facts["data"]))))
    with _examples_stored(options["on_disk"], facts["data"], directory, console):
        parts = _parts(facts, lambda path: TASKS[task].read(path, options))
        run = TASKS[task].new(parts[0], options)  # which knows nothing of what is set apart
        splits = _splits(run, parts, facts, console)
        located = {name: _absolute(facts[name]) for name in ("data", "dev", "test")}
        record_provenance(run, splits[0].examples, recipe, {**facts, **located, "on_disk": options["on_disk"]})
        from_rank_zero(lambda: run.create(directory))
        _fit(run, splits, recipe, directory, console, again=False)


def _new(directory: Path) -> Path:
    """``directory``, if there is no run in it."""
    if (directory / "config.json").exists():
        resumable = (directory / "resume.ckpt").exists()
        remedy = f"go on with it: {_resuming(directory)}" if resumable else "delete it first"
        raise RunError(f"{directory}: there is a run already; choose another --out, or {remedy}")
    return directory


def resume(directory: Path, console: Console) -> None:
    """Go on with a run that was interrupted."""
    from regard.tasks.registry import open_run
    from regard.training.settings import TrainingSettings
    from regard.training.trainer import are_examples_of

    run = open_run(directory, trained=False)
    if not (directory / "resume.ckpt").exists():
        raise RunError(
            f"{directory}: nothing to resume: training came to its end, or was stopped in its first epoch; train again"
        )
    try:
        facts, recipe = {name: run.training[name] for name in _FACTS}, TrainingSettings(**run.training["recipe"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{directory}: config.json does not tell how it was trained (no {error}); train anew") from error
    with _examples_stored(run.training.get("on_disk", False), facts["data"], directory, console):
        splits = _splits(run, _parts(facts, run.read), facts, console)
        if not are_examples_of(run, splits[0].examples):
            raise RunError(
                f"{directory}: the training data are not those that training began with; restore them, or train anew"
            )
        _fit(run, splits, recipe, directory, console, again=True)


@contextmanager
def _examples_stored(on_disk: bool, data: str | None, directory: Path, console: Console) -> Iterator[None]:
    """Within, store examples in memory, or, if there are many, in a folder of the run directory."""
    large = data is not None and os.path.isfile(data) and os.path.getsize(data) > _LARGE
    if not on_disk and not large:
        yield
        return
    from regard.data.on_disk import disk_store
    from regard.training.processes import rank

    console.print(f"examples are kept in {directory} while it trains{'' if on_disk else f': {data} is large'}")
    try:
        with disk_store(directory / f"examples-{rank()}"):
            yield
    finally:
        if directory.exists() and not any(directory.iterdir()):  # the data had a fault: there is no run
            directory.rmdir()


def _parts(facts: dict[str, Any], read: Callable[[str], Split]) -> _Parts:
    """Training, dev and test examples, as far as these come with the data to train on."""
    from regard.data import cmudict
    from regard.data.splits import split_off

    if facts["data"] is None:
        return cmudict.load(stress=facts["stress"])
    train = read(facts["data"])
    return (train, None, None) if facts["dev"] else (*split_off(train), None)


def _splits(run: Run, parts: _Parts, facts: dict[str, Any], console: Console) -> _Splits:
    """The same with what is in files of its own; what is to be said of all is said."""
    train, dev, test = parts
    splits = train, dev or run.read(facts["dev"]), run.read(facts["test"]) if facts["test"] else test
    for split in splits:
        for note in split.notes if split else ():
            console.print(note)
    return splits


def _fit(
    run: Run, splits: _Splits, recipe: TrainingSettings, directory: Path, console: Console, *, again: bool
) -> None:
    from regard.training.processes import rank
    from regard.training.trainer import fit

    train, dev, test = splits
    for note in (note for split in (dev, test) if split for note in run.unseen(split)):
        console.print(note)
    length = f"{recipe.minutes:g} min" if recipe.epochs is None else counted_noun(recipe.epochs, "epoch")
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    task = TASKS[run.task]
    console.print(
        f"training for {length}: {counted_noun(len(train.examples), task.EXAMPLE)}, "
        f"{parameters / 1e6:.2f} M parameters, {task.about(run)}"
    )
    try:
        outcome = fit(run, train.examples, dev.examples, recipe, directory, console=console, resume=again)
    except KeyboardInterrupt:  # a second signal
        raise Interrupted from None
    console.print(f"best model in {directory}: dev {outcome.dev}")
    if outcome.signal is not None:
        remedy = f"; go on with: {_resuming(directory)}" if (directory / "resume.ckpt").exists() else ""
        console.print(f"stopped on request after {outcome.seconds:.0f} s; the best model so far is kept{remedy}")
        raise Exit(INTERRUPTED)
    if rank() > 0:  # of several processes one reports
        return
    _report(run, outcome.dev.as_dict(), test, directory, console)
    task.show(run, _handful((test or dev).examples), directory, console)
    name = shlex.quote(str(directory))
    console.print(f'next: regard look {name} "..."   regard predict {name} FILE   regard evaluate {name} FILE')


def _report(run: Run, dev: dict[str, object], test: Split | None, directory: Path, console: Console) -> None:
    """Score the test set, once, and keep all scores."""
    from regard._files import write_atomically

    scores = {"dev": dev}
    if test is not None:
        result = run.test(test.examples)
        console.print(f"test ({test.name}{TASKS[run.task].HOW_SCORED}): {result}")
        scores["test"] = result.as_dict()
    text = json.dumps(scores, indent=2) + "\n"
    write_atomically(directory / "scores.json", lambda path: path.write_text(text, encoding="utf-8"))


def _handful(examples: Sequence[Any], count: int = 6) -> list[Any]:
    """A few examples, spread over the set, neither the shortest nor the longest; all of a set that has but a few."""
    ranked = sorted(examples, key=lambda example: len(example[0]))
    if len(ranked) <= count:
        return ranked
    middle = ranked[len(ranked) // 2 : max(len(ranked) // 2 + 1, len(ranked) * 19 // 20)]
    return middle[:: max(1, len(middle) // count)][:count]


def _free(path: Path) -> Path:
    """``path``, or the first of path-2, path-3, ... that does not exist yet."""
    number = 1
    while (candidate := path if number == 1 else path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return candidate


def _resuming(directory: Path) -> str:
    return f"regard train --resume {shlex.quote(str(directory))}"


def _stem(data: str | None) -> str:
    """What a run on this file is called."""
    return "english" if data is None else Path(data).name.lstrip("-.").split(".")[0] or "data"


def _absolute(path: str | None) -> str | None:
    """``path`` as it reads from any folder, so that training can be resumed from another; - is standard input."""
    return path if path is None or path == "-" else os.path.abspath(path)
