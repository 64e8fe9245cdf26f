"""Interleaved timing and peak memory."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["interleaved", "peak_megabytes"]

_TURN = 0.02  # seconds
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def interleaved(functions: Mapping[str, Callable[[], object]], seconds: float, least: int = 3) -> dict[str, float]:
    """Return the median seconds of a call of each function, called in turns for about ``seconds``, at least ``least``.

    Taking turns exposes all functions equally to other load on the machine. A turn is one call, or as many as fit into
    20 ms, so that a fast function runs with its own data in the caches, not those of the previous function. Each is
    called twice before, unmeasured.
    """
    counts = {}
    for name, function in functions.items():
        function()
        counts[name] = max(1, int(_TURN / _timed(function)))
    taken: dict[str, list[float]] = {name: [] for name in functions}
    begin, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - begin < seconds:
        for name, function in functions.items():
            taken[name] += [_timed(function) for _ in range(counts[name])]
        rounds += 1
    return {name: statistics.median(times) for name, times in taken.items()}


def _timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def peak_megabytes(function: Callable[[], object]) -> float:
    """Return the peak of the process's resident memory above its present size; NaN if the system has no figures."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory that is free but not returned would hide new allocations
        _RESET.write_text("5")  # sets the peak to the present
    except (OSError, AttributeError):
        return float("nan")
    before = _kilobytes("VmRSS")
    function()
    return max(0, _kilobytes("VmHWM") - before) / 1024


def _kilobytes(field: str) -> int:
    lines = [line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":")]
    return int(lines[0].split()[1])
