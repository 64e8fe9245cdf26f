"""Messages on standard error, beside the output."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from regard._wording import counted_noun, first_few

if TYPE_CHECKING:
    from regard.tasks.seq2seq import Answer

__all__ = ["Tally", "UnseenUnits", "note", "with_progress"]

T = TypeVar("T")


def note(text: str) -> None:
    """Print one line on standard error."""
    print(f"regard: {text}", file=sys.stderr)


def with_progress(items: Iterable[T], noun: str) -> Iterator[T]:
    """Yield the items, and show their count on a terminal, unless the output itself appears on one."""
    if sys.stdout.isatty() or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        begin = time.monotonic()
        for number, item in enumerate(items, 1):
            yield item
            speed = number / max(1e-3, time.monotonic() - begin)
            bar.update(task, description=f"{number:,} {noun}s, {speed:,.0f} per second")


class UnseenUnits:
    """A count of the units of many lines that did not occur in training."""

    def __init__(self) -> None:
        self._units: Counter[str] = Counter()
        self._lines = 0

    def add(self, units: Sequence[str]) -> None:
        """Add the unseen units of one line."""
        self._units.update(units)
        self._lines += bool(units)

    def report(self, effect: str) -> None:
        """Print how many there are, and the most frequent ones; nothing if there are none."""
        if self._units:
            number = f"{counted_noun(self._units.total(), 'unit')} in {counted_noun(self._lines, 'line')}"
            frequent = first_few([unit for unit, _ in self._units.most_common()])
            note(f"{number} that did not occur in training, {effect}: {frequent}")


class Tally:
    """Counts over answers: units that did not occur in training, lines cut short, answers that did not end."""

    def __init__(self) -> None:
        self._unseen = UnseenUnits()
        self._cut = self._endless = 0

    def add(self, answer: Answer) -> None:
        """Count one answer."""
        self._unseen.add(answer.unseen)
        self._cut += answer.cut
        self._endless += bool(answer.predictions) and not answer.predictions[0].finished

    def report(self, max_length: int) -> None:
        """Print a note for each count that is not 0."""
        self._unseen.report("read as unknown")
        if self._cut:
            note(f"{counted_noun(self._cut, 'line')} cut to {max_length} units, the maximum of the model")
        if self._endless:
            note(f"{counted_noun(self._endless, 'answer')} cut off at the maximum length")
