"""From encoded examples to batches: of like length, under a budget of tokens, in an order fixed by seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from regard._symbols import BOS, EOS, PAD
from regard.data.pairs import Example
from regard.data.vocabulary import Vocabulary
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtyping import Int64

__all__ = ["Batch", "Encoded", "TokenBudgetSampler", "collate", "encode", "pad"]


class Encoded(NamedTuple):
    """One pair as ids, without BOS and EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class Batch(NamedTuple):
    """B pairs: sources with PAD behind, their lengths, targets between BOS and EOS with PAD behind."""

    source: Int64[Tensor, "B Ts"]
    source_lengths: Int64[Tensor, " B"]
    target: Int64[Tensor, "B Tt"]


def encode(examples: Sequence[Example], source: Vocabulary, target: Vocabulary) -> list[Encoded]:
    """The ids of examples, UNK for units that a vocabulary lacks."""
    # Tuples of ints, unlike lists, leave the garbage collector's books: on a large file this halves the time.
    return [Encoded(tuple(source.encode(a)), tuple(target.encode(b))) for a, b in examples]


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Int64[Tensor, "B T"], Int64[Tensor, " B"]]:
    """Sequences as one tensor with PAD behind the shorter ones, and their lengths.

    >>> ids, lengths = pad([[5, 6], [7]])
    >>> ids.tolist(), lengths.tolist()
    ([[5, 6], [7, 0]], [2, 1])
    """
    lengths = [len(sequence) for sequence in sequences]
    longest = max(lengths, default=0)
    rows = [[*sequence, *[PAD] * (longest - n)] for sequence, n in zip(sequences, lengths, strict=True)]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), longest), torch.tensor(lengths, dtype=torch.long)


def collate(examples: Sequence[Encoded]) -> Batch:
    """Make one batch of encoded examples, as ``collate_fn`` of a ``DataLoader``.

    >>> collate([Encoded((5, 6), (7,)), Encoded((5,), (7, 8))]).target.tolist()
    [[2, 7, 3, 0], [2, 7, 8, 3]]
    """
    source, source_lengths = pad([example.source for example in examples])
    target, _ = pad([[BOS, *example.target, EOS] for example in examples])
    return Batch(source, source_lengths, target)


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of examples of like length, as many as fit: B · (longest source + longest target) <= tokens.

    An example larger than the budget makes a batch alone. Each epoch, examples of equal lengths change places and the
    batches come in another order; both follow from ``(seed, epoch)`` alone. The number of batches is that of every
    epoch. Serves as ``DataLoader(..., batch_sampler=)``; call ``set_epoch`` before each epoch (Lightning does).

    Of several processes that train together, ``share=(i, n)`` is the sampler of number i of n: it gives, of each
    batch, every n-th example from i on, so that all together see the batches that one alone would see. Of a batch that
    has too few, some get ``[]``.

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
        # By the longer side first: least padding of the orders tried (5 % of a batch of Multi30k, 8 % by the source).
        self._keys = (source, target, np.maximum(source, target))
        self._seed = seed
        self._share = slice(share[0], None, share[1])
        self._epoch = 0
        # Sorted, the lengths are the same in every epoch, whichever of two equal examples comes first: cut them once.
        order = np.lexsort(self._keys)
        self._cuts = _cuts(source[order].tolist(), target[order].tolist(), tokens)

    @property
    def sampler(self) -> TokenBudgetSampler:
        """Itself: Lightning looks for ``set_epoch`` at ``batch_sampler.sampler``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose batches the next pass gives."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._cuts)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self._seed, self._epoch))
        shuffled = random.permutation(len(self._keys[0]))
        # lexsort is stable: within equal lengths the shuffled order stays.
        order = shuffled[np.lexsort([key[shuffled] for key in self._keys])]
        for i in random.permutation(len(self._cuts)):
            yield order[slice(*self._cuts[i])][self._share].tolist()


def _cuts(sources: list[int], targets: list[int], tokens: int) -> list[tuple[int, int]]:
    """Cut sorted lengths greedily into runs ``[start, end)`` within the budget."""
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
