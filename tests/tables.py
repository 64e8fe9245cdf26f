"""A decoder without a network: what comes next is looked up, so that a test can say what a search must find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional import Observation, Observe

# Log probabilities of the next symbols after a prefix, for one source; what is not named cannot come.
Table = Callable[[int, tuple[int, ...]], dict[int, float]]


class Prefixes(NamedTuple):
    """The prefixes of each source's hypotheses, BOS included: a state that is not a tensor."""

    rows: list[list[tuple[int, ...]]]


class TableDecoder:
    """`Decoder` over a table: a source's first id says which one it is, the state is the prefix."""

    def __init__(self, table: Table, vocabulary: int) -> None:
        self.table, self.vocabulary, self.selected = table, vocabulary, 0

    def encode(self, source: Tensor, lengths: Tensor) -> list[int]:
        return source[:, 0].tolist()

    def start(self, memory: list[int]) -> Prefixes:
        return Prefixes([[()] for _ in memory])

    def step(
        self, tokens: Tensor, state: Prefixes, memory: list[int], observe: Observe | None
    ) -> tuple[Tensor, Prefixes, Observation | None]:
        after = [
            [(*prefix, symbol) for prefix, symbol in zip(row, symbols, strict=True)]
            for row, symbols in zip(state.rows, tokens.tolist(), strict=True)
        ]
        logits = torch.full((*tokens.shape, self.vocabulary), -math.inf)
        for i, source in enumerate(memory):
            for k, (_, *prefix) in enumerate(after[i]):
                for symbol, value in self.table(source, tuple(prefix)).items():
                    logits[i, k, symbol] = value
        return logits, Prefixes(after), None

    def select(self, state: Prefixes, parents: Tensor) -> Prefixes:
        self.selected += 1
        return Prefixes([[row[k] for k in places] for row, places in zip(state.rows, parents.tolist(), strict=True)])


def drawn_table(vocabulary: int) -> Table:
    """Any prefix of any source has its own random distribution over all symbols."""
    known: dict[Any, dict[int, float]] = {}

    def table(source: int, prefix: tuple[int, ...]) -> dict[int, float]:
        if (source, prefix) not in known:
            generator = torch.Generator().manual_seed(hash((source, prefix)) % 2**31)
            values = torch.randn(vocabulary, generator=generator).double().log_softmax(-1)
            known[source, prefix] = dict(enumerate(values.tolist()))
        return known[source, prefix]

    return table
