"""A decoder without a network: what comes next is looked up, so that a test can say what a search must find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.functional import Observation, Observe

# Log probabilities of the next symbols after a prefix, for one source; what is not named cannot come.
Table = Callable[[int, tuple[int, ...]], dict[int, float]]


class TableDecoder:
    """`Decoder` over a table: a source's first id says which one it is, the state is the prefix, BOS included."""

    def __init__(self, table: Table, vocabulary: int) -> None:
        self.table, self.vocabulary = table, vocabulary

    def encode(self, source: Tensor, lengths: Tensor) -> list[int]:
        return source[:, 0].tolist()

    def start(self, memory: list[int]) -> tuple[Tensor, ...]:
        return (torch.zeros(len(memory), 1, 0, 1, dtype=torch.long),)  # four axes: a search must not count on three

    def step(
        self, tokens: Tensor, state: tuple[Tensor, ...], memory: list[int], observe: Observe | None
    ) -> tuple[Tensor, tuple[Tensor, ...], Observation | None]:
        prefixes = torch.cat((state[0], tokens[..., None, None]), 2)
        logits = torch.full((*tokens.shape, self.vocabulary), -math.inf)
        for i, source in enumerate(memory):
            for k, prefix in enumerate(prefixes[i, :, 1:, 0].tolist()):
                for symbol, value in self.table(source, tuple(prefix)).items():
                    logits[i, k, symbol] = value
        return logits, (prefixes,), None


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
