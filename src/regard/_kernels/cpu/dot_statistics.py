"""Statistics of attention by dot products in float32 on the CPU: torch multiplies, Numba scans each row once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard._kernels.cpu.loops.row_statistics import CHUNK, Part, Table, Told, visit
from regard._kernels.statistics.dot_blocks import DotScores, score_blocks, set_nan
from regard._kernels.statistics.request import StatisticsRequest

__all__ = ["statistics"]

_SCORE = 0.7  # nanoseconds that a score takes, about


def statistics(scores: DotScores, request: StatisticsRequest) -> list[Tensor]:
    """Return the answers, (L, Hq, Tq, ...)."""
    L, Hq, Tq, _ = scores.query.shape
    (low, high, *_), Tk = scores.mask, scores.key.shape[2]
    sums, table, threads = _sums(scores, request), _table(scores), torch.get_num_threads()
    received = torch.zeros(L, Hq, Tk if "received" in request.names else 0)
    rows = torch.zeros(L, Hq, len(request.rows), Tk)
    for block, s in score_blocks(scores, scanned=True):
        examples, heads, queries, width = s.shape
        head = block.examples.start * Hq + block.heads.start
        at = block.rows.start, head * Tq + block.rows.start, block.keys.start
        part = Part(head, examples * heads, queries, width, *at, low, high, Tk - Tq)
        parts = threads if queries > CHUNK else 1  # a head that is one task has but one sum
        columns = torch.zeros(parts, examples, heads, width if received.numel() else 0)
        sums = sums._replace(columns=columns.flatten(1, 2).numpy())
        flat = s.view(-1).numpy()
        visit(flat.size * _SCORE, flat, flat.view(np.int32), part, table, sums)
        if received.numel():
            received[block.examples, block.heads, block.keys] += columns.sum(0)
        for k, row in enumerate(request.rows):
            if block.rows.start <= row % Tq < block.rows.stop:
                rows[block.examples, block.heads, k, block.keys] = s[:, :, row % Tq - block.rows.start]
    return _answers(scores, request, sums, received, rows)


def _table(scores: DotScores) -> Table:
    """Return the mask's table as the loop reads it."""
    heads, table = scores.query.shape[1], scores.mask.table
    if table is None:
        return Table(np.zeros(0, np.uint8), np.zeros(3, np.int64), heads, False)
    table = table.contiguous()
    strides = table.expand(*scores.query.shape[:3], -1).stride()
    return Table(table.view(torch.uint8).view(-1).numpy(), np.array(strides[:3]), heads, table.shape[3] == 1)


def _sums(scores: DotScores, request: StatisticsRequest) -> Told:
    """Return room for the sums of each row."""
    N, names = scores.query.shape[:3].numel(), request.names

    def room(name: str) -> Any:
        return np.zeros(N if name in names else 0, np.float32)

    share = torch.ones(N) if request.received is None else request.received.detach().float().reshape(N)
    return Told(
        np.full(N, -np.inf, np.float32),
        np.ones(N, np.float32),
        room("entropy"),
        room("position"),
        room("distance"),
        np.zeros((N, request.top), np.float32),
        np.full((N, request.top), -1),
        np.zeros((N, len(request.offsets)), np.float32),
        np.array(request.offsets, np.int64),
        share.numpy(),
        np.zeros((0, 0, 0), np.float32),
    )


def _answers(scores: DotScores, request: StatisticsRequest, sums: Told, received: Tensor, rows: Tensor) -> list[Tensor]:
    """Return the answers, from sums of exponentials to means; rows that attend to NaN become NaN."""
    L, Hq, Tq, _ = scores.query.shape
    largest, total, spread, position, distance, top, keys, offsets = map(torch.from_numpy, sums[:8])
    formulas: dict[str, Callable[[], Tensor]] = {
        "logsumexp": lambda: largest + total.log(),
        "entropy": lambda: total.log() - spread / total,
        "max": lambda: total.reciprocal().masked_fill_(largest == -torch.inf, 0.0),
        "position": lambda: position / total,
        "distance": lambda: distance / total,
        "top": lambda: top,
        "keys": lambda: keys,
        "offsets": lambda: offsets,
    }
    by_name = {name: formula().view(L, Hq, Tq, -1) for name, formula in formulas.items() if name in request.names}
    nan = total.isnan().view(L, Hq, Tq, 1)
    nan = nan if scores.nan_rows is None else nan | scores.nan_rows
    for name, answer in by_name.items():
        if name != "keys":
            answer.masked_fill_(nan & (by_name["keys"] >= 0) if name == "top" else nan, torch.nan)
    rows /= total.view(L, Hq, Tq, 1)[:, :, list(request.rows)]
    by_name |= {"received": received, "rows": rows}
    answers = [by_name[name] for name in request.names]
    set_nan(nan, scores, request, answers)
    return answers
