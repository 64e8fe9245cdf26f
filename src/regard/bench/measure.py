"""Interleaved timing and peak memory."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["interleaved", "peak_megabytes"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def interleaved(functions: Mapping[str, Callable[[], object]], seconds: float, least: int = 3) -> dict[str, float]:
    """The median seconds of each function, all called in turn, for about so many seconds and so often at least.

    Taking turns exposes all of them alike to what else the machine does. Each is called once before, unmeasured.
    """
    for function in functions.values():
        function()
    taken: dict[str, list[float]] = {name: [] for name in functions}
    begin, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - begin < seconds:
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: statistics.median(times) for name, times in taken.items()}


def peak_megabytes(function: Callable[[], object]) -> float:
    """By how much the resident memory of the process peaks above what it was; NaN on a system that cannot tell."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what is free but kept would hide what is taken
        _RESET.write_text("5")  # sets the peak to the present
    except (OSError, AttributeError):
        return float("nan")
    before = _kilobytes("VmRSS")
    function()
    return max(0, _kilobytes("VmHWM") - before) / 1024


def _kilobytes(field: str) -> int:
    lines = [line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":")]
    return int(lines[0].split()[1])
