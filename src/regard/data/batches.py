"""Batches of encoded examples: padding, and batches of similar lengths under a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from regard._symbols import PAD
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Int64

__all__ = ["TokenBudgetSampler", "pad"]


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Int64[Tensor, "B T"], Int64[Tensor, " B"]]:
    """Return sequences as one tensor, the shorter ones padded at the end, and their lengths.

    >>> ids, lengths = pad([[5, 6], [7]])
    >>> ids.tolist(), lengths.tolist()
    ([[5, 6], [7, 0]], [2, 1])
    """
    lengths = [len(sequence) for sequence in sequences]
    longest = max(lengths, default=0)
    rows = [[*sequence, *[PAD] * (longest - n)] for sequence, n in zip(sequences, lengths, strict=True)]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), longest), torch.tensor(lengths, dtype=torch.long)


class TokenBudgetSampler(Sampler[list[int]]):
    """A batch sampler that puts as many examples of similar lengths together as a budget of tokens allows.

    B · (longest source + longest target) <= tokens. An example larger than the budget is a batch by itself. Each epoch
    shuffles examples of equal lengths among themselves, and the batches; both orders depend only on ``(seed, epoch)``,
    and all epochs have equally many batches. Pass it to ``DataLoader(..., batch_sampler=)``,
    and call ``set_epoch`` before each epoch (Lightning does).

    If several processes train together, ``share=(i, n)`` is the sampler of process i of n: it takes every n-th example
    of each batch, beginning with number i, so that together they train on the same batches as a single process. For
    batches with too few examples some processes get ``[]``.

    >>> sampler = TokenBudgetSampler([2, 9, 2, 1], [2, 9, 1, 2], tokens=10)
    >>> sorted(sorted(batch) for batch in sampler)
    [[0], [1], [2, 3]]
    """

    def __init__(
        self,
        source_lengths: Sequence[int],
        target_lengths: Sequence[int],
        *,
        tokens: int,
        seed: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        if len(source_lengths) != len(target_lengths):
            raise ArgumentError(
                f"expected as many source as target lengths, got {len(source_lengths)} and {len(target_lengths)}"
            )
        if tokens < 1 or seed < 0:
            raise ArgumentError(f"expected tokens >= 1 and seed >= 0, got tokens={tokens} and seed={seed}")
        source, target = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
        # By the longer side first: the least padding of the orders tried (Multi30k: 5 % of a batch, 8 % by the source)
        self._keys = (source, target, np.maximum(source, target))
        self._seed = seed
        self._share = slice(share[0], None, share[1])
        self._epoch = 0
        # Sorted lengths, and so the batches' bounds, are the same in every epoch: equal examples are interchangeable
        order = np.lexsort(self._keys)
        self._cuts = _cuts(source[order].tolist(), target[order].tolist(), tokens)

    @property
    def sampler(self) -> TokenBudgetSampler:
        """The sampler itself: Lightning calls ``batch_sampler.sampler.set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, of the next pass."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._cuts)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self._seed, self._epoch))
        shuffled = random.permutation(len(self._keys[0]))
        # lexsort is stable: examples of equal lengths stay shuffled
        order = shuffled[np.lexsort([key[shuffled] for key in self._keys])]
        for i in random.permutation(len(self._cuts)):
            yield order[slice(*self._cuts[i])][self._share].tolist()


def _cuts(sources: list[int], targets: list[int], tokens: int) -> list[tuple[int, int]]:
    """Cut sorted lengths greedily into slices ``[start, end)`` within the budget."""
    cuts = []
    start = longest_source = longest_target = 0
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        longest_source, longest_target = max(longest_source, source), max(longest_target, target)
        if i > start and (i + 1 - start) * (longest_source + longest_target) > tokens:
            cuts.append((start, i))
            start, longest_source, longest_target = i, source, target
    if sources:
        cuts.append((start, len(sources)))
    return cuts
