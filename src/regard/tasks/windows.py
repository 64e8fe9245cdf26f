"""Prediction in batches of similar lengths, a window of inputs at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from regard.errors import RegardError

__all__ = ["in_length_batches"]

_WINDOW = 2048  # inputs that are sorted by length at once

Input = TypeVar("Input")
Output = TypeVar("Output")


def in_length_batches(
    inputs: Iterable[Input],
    length: Callable[[Input], int],
    batch_size: Callable[[int], int],
    predict: Callable[[list[Input]], Iterable[Output]],
    empty: Output,
) -> Iterator[Output]:
    """Yield an output for each input, in order; inputs are read on demand, and predicted in batches.

    A batch has inputs of similar lengths, at most ``batch_size(longest)`` of them. An input of length 0 is left out of
    the batches; its output is ``empty``.

    >>> lengths = lambda batch: [len(batch)] * len(batch)
    >>> list(in_length_batches(["abc", "", "d", "ef"], len, lambda longest: 6 // longest, lengths, 0))
    [2, 0, 1, 2]
    """
    for window in _windows(iter(inputs)):
        lengths = [length(one) for one in window]
        order = sorted((i for i, n in enumerate(lengths) if n), key=lengths.__getitem__, reverse=True)
        outputs = [empty] * len(window)
        while order:
            size = max(1, batch_size(lengths[order[0]]))
            rows, order = order[:size], order[size:]
            for row, output in zip(rows, predict([window[i] for i in rows]), strict=True):
                outputs[row] = output
        yield from outputs


def _windows(inputs: Iterator[Input]) -> Iterator[list[Input]]:
    """Yield the inputs in lists; if reading fails, yield the inputs before the failure, then raise the error."""
    window: list[Input] = []
    try:
        for one in inputs:
            window.append(one)
            if len(window) == _WINDOW:
                yield window
                window = []
    except RegardError:
        yield window
        raise
    if window:
        yield window
