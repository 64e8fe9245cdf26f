"""The recorder of a watch: it turns calls of the chosen layers and heads into layers of its record, within a limit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase

import torch

from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.functional.observe import Observation, Observe, request_of, statistics_of_weights
from regard.functional.observed import observed
from regard.look.record import Record
from regard.look.watching.attention_call import AttentionCall, CachePosition
from regard.look.watching.functions import names
from regard.look.watching.generation import JoinedCalls

__all__ = ["Recorder", "naming"]


class Recorder:
    """A builder of the layers of a record, call by call."""

    def __init__(
        self,
        record: Record,
        observe: Observe,
        layers: Sequence[str | int] | None,
        heads: Sequence[int] | None,
        keep_inputs: bool,
        memory: int,
    ) -> None:
        self.record = record
        self.observe = observe
        self.patterns = layers
        self.heads = heads
        self.keep_inputs = keep_inputs
        self.memory = memory
        self.used = 0
        self.stepping = -1  # the pass in which an attention was found to be a step
        self.names: dict[str, int] = {}  # of all modules that attend, in the order of their first calls
        self.found: list[JoinedCalls] = []
        self.latest: dict[tuple[str, tuple[int, ...]], JoinedCalls] = {}

    def wants(self, name: str) -> bool:
        """Return whether to read an attention of the module of this name; count it if it is left out."""
        number = self.names.setdefault(name, len(self.names))
        if self.patterns is not None and not any(_matches(pattern, name, number) for pattern in self.patterns):
            return False
        # Steps after a missing one cannot be joined
        self.record.left_out += self.record.left_out > 0
        return not self.record.left_out

    def add(self, name: str, call: AttentionCall, position: CachePosition | None, passes: int) -> None:
        """Record one attention of the module of this name, in the n-th pass of the model."""
        with naming(name):
            if self.keep_inputs or self.observe.logsumexp:
                call = call.without_weights()
            if position is not None:
                call, position = position.fit(call)
        call, heads = self._chosen(name, call)
        if not heads:
            return
        self.used += _size(self.observe, call, self.keep_inputs)
        if self.used > self.memory:
            self.record.left_out = 1
            warnings.warn(
                f"the record would exceed watch(memory={self.memory}) bytes: the attentions from {name} on are left "
                "out and counted in record.left_out; choose layers=, heads=, or a larger memory=",
                stacklevel=2,
            )
            return
        with naming(name):
            statistics = _statistics(self.observe, call)
        before = self.latest.get((name, heads))
        if before is not None:
            same_pass = passes in (before.last_pass, self.stepping)
            if before.continues(call, position, same_pass):
                before.add(call, statistics, position)
                before.last_pass = passes
                self.stepping = passes if before.grows else self.stepping
                return
        calls = JoinedCalls(name, heads, call, statistics, position, keep_inputs=self.keep_inputs)
        calls.last_pass = passes
        self.latest[name, heads] = calls
        self.found.append(calls)

    def _chosen(self, name: str, call: AttentionCall) -> tuple[AttentionCall, tuple[int, ...]]:
        """Return the call of the chosen heads, and their numbers in the layer."""
        heads = tuple(range(call.shape[1])) if call.heads is None else call.heads
        if self.heads is None:
            return call, heads
        if call.heads is None and max(self.heads, default=0) >= call.shape[1]:
            raise ArgumentError(f"watch(heads={list(self.heads)}): {name} has {call.shape[1]} heads, from 0")
        chosen = tuple(head for head in self.heads if head in heads)
        return call.of_heads([heads.index(head) for head in chosen]) if chosen else call, chosen

    def finish(self) -> None:
        """Fill in the layers of the record."""
        self.record.layers[:] = [calls.layer() for calls in self.found]

    def check(self, passes: int) -> None:
        """Raise if no attention was read, or none of a chosen module."""
        if not self.names:
            if passes:
                raise UnsupportedError(
                    f"no attention was recorded: watch recognises {names()}, and the model calls none of these"
                )
            return
        for pattern in self.patterns or ():
            if not any(_matches(pattern, name, number) for name, number in self.names.items()):
                some = ", ".join(list(self.names)[:3])
                raise ArgumentError(
                    f"watch(layers=): {pattern!r} fits none of the {len(self.names)} modules that attended: {some}, …"
                )


def _matches(pattern: str | int, name: str, number: int) -> bool:
    return pattern == number if isinstance(pattern, int) else fnmatchcase(name, pattern)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the module in errors raised within the context."""
    try:
        yield
    except RegardError as error:
        raise UnsupportedError(f"{name}: this attention cannot be watched: {error}") from error


def _statistics(observe: Observe, call: AttentionCall) -> Observation:
    """Return the statistics of a call. Queries that are padding do not count in the weights that keys receive."""
    if observe.received:
        padded = call.padded_queries()
        if padded is not None:
            B, Hq, Tq, _ = call.shape
            observe = replace(observe, received=(~padded).float().expand(B, Hq, Tq))
    if call.weights is not None:
        found = statistics_of_weights(observe, call.weights.detach().float(), None, call.hidden)
    else:
        found = observed(call.query, call.key, observe, score=call.score, mask=call.mask, bias=call.bias)
    return found.map(lambda tensor: tensor.to("cpu", torch.float32 if tensor.is_floating_point() else torch.int32))


def _size(observe: Observe, call: AttentionCall, keep_inputs: bool) -> int:
    """Return the size in bytes of the statistics and inputs of a call."""
    B, Hq, Tq, Tk = call.shape
    per_head = sum(map(math.prod, request_of(observe, Tk).sizes(Tq, Tk).values()))
    return 4 * (B * Hq * per_head + (call.query.numel() + call.key.numel()) * keep_inputs)
