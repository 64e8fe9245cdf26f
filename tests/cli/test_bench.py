"""`regard bench`: wrong values get no time, turns are fair, and the bound is computed."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from regard.bench.additive import Case, compare, keras, long, ours, plain
from regard.bench.bound import report
from regard.bench.measure import interleaved, peak_megabytes

SMALL = Case("small", 2, 7, 5, 3, 11)


def wrong(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    return plain(query, key, value, weight) * (1 + 1e-3)


def test_a_peer_with_wrong_values_has_no_time() -> None:
    lines = compare(SMALL, 0.01, {"regard": ours, "PyTorch": plain, "keras": keras, "wrong": wrong})
    assert re.fullmatch(r"\| small \| wrong \| wrong \| \| \| \| \| 1\.0e-03 \|", lines[3])
    for line in lines[:3]:
        assert re.fullmatch(r"\| small \| \w+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| \d+ \| \d\.\de-0\d \|", line)


def test_the_line_of_a_length_counts_memory_in_units() -> None:
    assert re.fullmatch(r"\| 64 \| \d+ \| [\d.]+ \| [\d.]+ \| \d+ \| [\d.]+ \|", long(Case("", 1, 64, 64, 8, 8), 0.01))


def test_functions_take_turns() -> None:
    called: list[str] = []
    taken = interleaved({name: lambda name=name: called.append(name) for name in "ab"}, 0.0, least=2)
    assert all(seconds > 0 for seconds in taken.values())
    assert re.fullmatch("aabb(a+b+){2}", "".join(called))


def test_peak_memory_is_seen() -> None:
    peak = peak_megabytes(lambda: torch.zeros(25, 2**20).sum())
    assert peak != peak or 90 < peak < 130


def test_the_bound_is_reported() -> None:
    assert re.search(r"Weights: [\d.]+e9 terms a second, [\d.]+ of the bound", report())
