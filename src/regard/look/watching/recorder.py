"""What was seen is kept small: of the layers and heads asked for, within a bound, the steps of a generation joined."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.functional.attention import observed
from regard.functional.observe import Observation, Observe, Top, summarise
from regard.look.record import Record
from regard.look.watching.attention_call import CachePosition, Call
from regard.look.watching.generation import Steps

__all__ = ["Recorder"]


class Recorder:
    """Turns calls into the layers of a `WatchRecord`."""

    def __init__(
        self,
        record: Record,
        observe: Observe,
        layers: Sequence[str | int] | None,
        heads: Sequence[int] | None,
        keep: bool,
        memory: int,
    ) -> None:
        self.record = record
        self.observe = observe
        self.patterns = layers
        self.heads = heads
        self.keep = keep
        self.memory = memory
        self.used = 0
        self.stepping = -1  # the pass of which one attention has been found to be a step
        self.names: dict[str, int] = {}  # of all that attends, with the place of its first call
        self.found: list[Steps] = []
        self.latest: dict[tuple[str, tuple[int, ...]], Steps] = {}

    def add(self, name: str, called: Callable[[], Call], place: CachePosition | None, passes: int) -> None:
        """Take in one attention of the module of this name, in the n-th pass of the model."""
        number = self.names.setdefault(name, len(self.names))
        if not self._wants(name, number):
            return
        if self.record.left_out:  # steps that follow one that is missing have nothing to follow
            self.record.left_out += 1
            return
        with _named(name):
            call = called()
            if place is not None:
                call, place = place.fit(call)
        heads = tuple(range(call.shape[1])) if call.numbers is None else call.numbers
        if self.heads is not None:
            chosen = [head for head in self.heads if head in heads or call.numbers is None]
            if max(chosen, default=0) >= call.shape[1] and call.numbers is None:
                raise ArgumentError(f"watch(heads={chosen}): {name} has {call.shape[1]} heads, from 0")
            if not chosen:
                return
            call, heads = call.of_heads([heads.index(head) for head in chosen]), tuple(chosen)
        self.used += _size(self.observe, call, self.keep)
        if self.used > self.memory:
            self.record.left_out = 1
            warnings.warn(
                f"what is watched is larger than watch(memory={self.memory}) bytes: what comes from {name} on is left "
                "out and counted in record.left_out; choose layers=, heads=, or a larger memory=",
                stacklevel=2,
            )
            return
        with _named(name):
            statistics = _look(self.observe, call)
        before = self.latest.get((name, heads))
        if before is not None:
            same_pass = passes in (before.last_pass, self.stepping)
            if before.continues(call, place, same_pass):
                before.add(call, statistics, place)
                before.last_pass = passes
                self.stepping = passes if before.grows else self.stepping
                return
        self.latest[name, heads] = steps = Steps(name, heads, call, statistics, place, keep=self.keep)
        steps.last_pass = passes
        self.found.append(steps)

    def finish(self) -> None:
        """Fill in the layers, and complain about what was asked for and was not there."""
        self.record.layers[:] = [steps.layer() for steps in self.found]

    def check(self, passes: int) -> None:
        """Raise where nothing was seen that was asked for."""
        if not self.names:
            if passes:
                raise UnsupportedError(
                    "no attention was seen: watch sees F.scaled_dot_product_attention, F.multi_head_attention_forward, "
                    "regard.attention and the attention functions of transformers, and the model calls none of these"
                )
            return
        for pattern in self.patterns or ():
            if not any(_matches(pattern, name, number) for name, number in self.names.items()):
                some = ", ".join(list(self.names)[:3])
                raise ArgumentError(
                    f"watch(layers=): {pattern!r} fits none of the {len(self.names)} modules that attended: {some}, …"
                )

    def _wants(self, name: str, number: int) -> bool:
        return self.patterns is None or any(_matches(pattern, name, number) for pattern in self.patterns)


def _matches(pattern: str | int, name: str, number: int) -> bool:
    return pattern == number if isinstance(pattern, int) else fnmatchcase(name, pattern)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors within name the module."""
    try:
        yield
    except RegardError as error:
        raise UnsupportedError(f"{name}: this attention cannot be watched: {error}") from error


def _look(what: Observe, call: Call) -> Observation:
    """What was asked for of a call. Queries that are padding send nothing to what keys receive."""
    if what.received:
        padded = call.padded_queries()
        if padded is not None:
            B, Hq, Tq, _ = call.shape
            what = replace(what, received=(~padded).float().expand(B, Hq, Tq))
    if call.weights is not None:
        return _small(summarise(what, call.weights.detach().float(), None, call.hidden))
    return _small(observed(call.query, call.key, what, score=call.score, mask=call.mask, bias=call.bias))


def _small(statistics: Observation) -> Observation:
    def small(value: Any) -> Any:
        if isinstance(value, Top):
            return Top(small(value.weights), value.keys.to("cpu", torch.int32))
        return value.to("cpu", torch.float32) if isinstance(value, Tensor) else value

    return Observation(**{name: small(value) for name, value in vars(statistics).items()})


def _size(what: Observe, call: Call, keep: bool) -> int:
    """The bytes that the statistics of a call take."""
    B, Hq, Tq, Tk = call.shape
    flags = (what.entropy, what.logsumexp, what.position, what.max, what.distance)
    per_query = sum(map(bool, flags)) + 2 * min(what.top or 0, Tk) + len(what.offsets or ()) + what.weights * Tk
    numbers = B * Hq * (Tq * per_query + Tk * (bool(what.received) + len(what.rows or ())))
    return 4 * (numbers + (call.query.numel() + call.key.numel()) * keep)
