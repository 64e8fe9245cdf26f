"""What an attention by dot products in float32 looked at, on the CPU: torch multiplies, Numba visits each row once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard._kernels.cpu.loops import row_statistics as numba_statistics
from regard._kernels.cpu.loops.row_statistics import CHUNK, Part, Table, Told
from regard._kernels.statistics.dot import Looked, scored, spoil
from regard._kernels.statistics.from_weights import Asked

__all__ = ["gather"]

_SCORE = 0.7  # nanoseconds that a score takes, about


def gather(looked: Looked, asked: Asked) -> list[Tensor]:
    """What is asked for, (L, Hq, Tq, ...)."""
    L, Hq, Tq, _ = looked.query.shape
    Tk = looked.key.shape[2]
    told, table, threads = _told(looked, asked), _table(looked), torch.get_num_threads()
    received = torch.zeros(L, Hq, Tk if "received" in asked.names else 0)
    rows = torch.zeros(L, Hq, len(asked.rows), Tk)
    for block, scores in scored(looked, visited=True):
        examples, heads, queries, width = scores.shape
        head = block.examples.start * Hq + block.heads.start
        at = block.rows.start, head * Tq + block.rows.start, block.keys.start
        part = Part(head, examples * heads, queries, width, *at, looked.low, looked.high, Tk - Tq)
        sums = threads if queries > CHUNK else 1  # a head that is one task has but one sum
        columns = torch.zeros(sums, examples, heads, width if received.numel() else 0)
        told = told._replace(columns=columns.flatten(1, 2).numpy())
        flat = scores.view(-1).numpy()
        numba_statistics.visit(flat.size * _SCORE, flat, flat.view(np.int32), part, table, told)
        if received.numel():
            received[block.examples, block.heads, block.keys] += columns.sum(0)
        for k, row in enumerate(asked.rows):
            if block.rows.start <= row % Tq < block.rows.stop:
                rows[block.examples, block.heads, k, block.keys] = scores[:, :, row % Tq - block.rows.start]
    return _answers(looked, asked, told, received, rows)


def _table(looked: Looked) -> Table:
    """What a row may see of its range, as the visit reads it."""
    heads, table = looked.query.shape[1], looked.table
    if table is None:
        return Table(np.zeros(0, np.uint8), np.zeros(3, np.int64), heads, False)
    table = table.contiguous()
    strides = table.expand(*looked.query.shape[:3], -1).stride()
    return Table(table.view(torch.uint8).view(-1).numpy(), np.array(strides[:3]), heads, table.shape[3] == 1)


def _told(looked: Looked, asked: Asked) -> Told:
    """Room for what is told of each row."""
    N, names = looked.query.shape[:3].numel(), asked.names

    def room(name: str) -> Any:
        return np.zeros(N if name in names else 0, np.float32)

    share = torch.ones(N) if asked.received is None else asked.received.detach().float().reshape(N)
    return Told(
        np.full(N, -np.inf, np.float32),
        np.ones(N, np.float32),
        room("entropy"),
        room("position"),
        room("distance"),
        np.zeros((N, asked.top), np.float32),
        np.full((N, asked.top), -1),
        np.zeros((N, len(asked.offsets)), np.float32),
        np.array(asked.offsets, np.int64),
        share.numpy(),
        np.zeros((0, 0, 0), np.float32),
    )


def _answers(looked: Looked, asked: Asked, told: Told, received: Tensor, rows: Tensor) -> list[Tensor]:
    """What is asked for, from sums of exponentials to means; of spoiled rows it is NaN."""
    L, Hq, Tq, _ = looked.query.shape
    largest, total, spread, position, distance, top, keys, offsets = map(torch.from_numpy, told[:8])
    ways: dict[str, Callable[[], Tensor]] = {
        "logsumexp": lambda: largest + total.log(),
        "entropy": lambda: total.log() - spread / total,
        "max": lambda: total.reciprocal().masked_fill_(largest == -torch.inf, 0.0),
        "position": lambda: position / total,
        "distance": lambda: distance / total,
        "top": lambda: top,
        "keys": lambda: keys,
        "offsets": lambda: offsets,
    }
    found = {name: way().view(L, Hq, Tq, -1) for name, way in ways.items() if name in asked.names}
    bad = total.isnan().view(L, Hq, Tq, 1)
    bad = bad if looked.spoiled is None else bad | looked.spoiled
    for name, answer in found.items():
        if name != "keys":
            answer.masked_fill_(bad & (found["keys"] >= 0) if name == "top" else bad, torch.nan)
    rows /= total.view(L, Hq, Tq, 1)[:, :, list(asked.rows)]
    found |= {"received": received, "rows": rows}
    answers = [found[name] for name in asked.names]
    spoil(bad, looked, asked, answers)
    return answers
