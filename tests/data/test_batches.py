"""Batches under a token budget."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from regard._symbols import BOS, EOS, PAD, UNK
from regard.data import Pair, SeparatorTokenizer, TokenBudgetSampler, Vocabulary, pad
from regard.errors import ArgumentError
from regard.tasks import Seq2SeqRun
from regard.tasks.seq2seq import Batch, Encoded

sizes = st.integers(0, 12)
lengths = st.lists(st.tuples(sizes, sizes), max_size=60)
seeds = st.integers(0, 2**32)

CHARS = SeparatorTokenizer("chars")
RUN = Seq2SeqRun(None, Vocabulary.from_units("cat"), Vocabulary.from_units(["K", "AE", "T"]), CHARS, CHARS, 9, 1.0)


def sampler_of(pairs: list[tuple[int, int]], tokens: int, seed: int = 0, **options: object) -> TokenBudgetSampler:
    return TokenBudgetSampler([s for s, _ in pairs], [t for _, t in pairs], tokens=tokens, seed=seed, **options)


@given(lengths, st.integers(1, 80), seeds, st.integers(0, 5))
def test_an_epoch_gives_every_example_once_within_the_budget(pairs, tokens: int, seed: int, epoch: int) -> None:
    sampler = sampler_of(pairs, tokens, seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(pairs)))
    assert len(batches) == len(sampler)
    for batch in batches:
        padded = len(batch) * (max(pairs[i][0] for i in batch) + max(pairs[i][1] for i in batch))
        assert batch
        assert padded <= tokens or len(batch) == 1


@given(lengths, st.integers(1, 80))
@example([(0, 2), (0, 2), (1, 0)], 4)  # the longest of one batch has no say in the next
def test_a_batch_takes_as_many_as_fit(pairs, tokens: int) -> None:
    def key(i: int) -> tuple[int, int, int]:
        return (max(pairs[i]), pairs[i][1], pairs[i][0])

    batches = [sorted(batch, key=key) for batch in sampler_of(pairs, tokens)]
    # As they were cut: of several batches of one size of example, the one that is not full came last.
    batches.sort(key=lambda batch: (key(batch[0]), key(batch[-1]), -len(batch)))
    for batch, following in itertools.pairwise(batches):
        more = [*batch, following[0]]
        assert len(more) * (max(pairs[i][0] for i in more) + max(pairs[i][1] for i in more)) > tokens


@given(lengths, st.integers(1, 80), seeds, st.integers(0, 5))
def test_seed_and_epoch_alone_decide(pairs, tokens: int, seed: int, epoch: int) -> None:
    first, second = sampler_of(pairs, tokens, seed), sampler_of(pairs, tokens, seed)
    for earlier in range(epoch):
        first.set_epoch(earlier)
        list(first)
    first.set_epoch(epoch)
    second.set_epoch(epoch)
    assert list(first) == list(second) == list(second)


def test_epochs_and_seeds_differ_in_batches_and_in_their_order() -> None:
    pairs = [(5, 5)] * 30 + [(n, n) for n in range(1, 30)]

    def epoch(seed: int, number: int) -> list[list[int]]:
        sampler = sampler_of(pairs, 40, seed)
        sampler.set_epoch(number)
        return list(sampler)

    # (0, 1) and (1, 0) would be one if the two were added up.
    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0), epoch(1, 1)]
    assert len({str(order) for order in orders}) == 4
    assert len({str(sorted(map(sorted, order))) for order in orders}) == 4


@given(lengths, st.integers(1, 80), seeds, st.integers(1, 5))
def test_the_shares_of_several_processes_are_the_batches_of_one(pairs, tokens: int, seed: int, count: int) -> None:
    whole = list(sampler_of(pairs, tokens, seed))
    samplers = [sampler_of(pairs, tokens, seed, share=(i, count)) for i in range(count)]
    assert {len(sampler) for sampler in samplers} == {len(whole)}
    for batch, *shares in zip(whole, *samplers, strict=True):
        assert sorted(batch) == sorted(i for share in shares for i in share)
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_like_lengths_share_a_batch() -> None:
    pairs = [(1 + i % 20, 1 + (i * 7) % 20) for i in range(2000)]
    cells = sum(
        len(batch) * (max(pairs[i][0] for i in batch) + max(pairs[i][1] for i in batch))
        for batch in sampler_of(pairs, 400)
    )
    assert sum(map(sum, pairs)) / cells > 0.9


def test_an_example_over_the_budget_comes_alone() -> None:
    assert sorted(map(sorted, sampler_of([(50, 50), (1, 1), (1, 1)], 10))) == [[0], [1, 2]]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="got 2 and 1"):
        TokenBudgetSampler([1, 2], [1], tokens=10)
    with pytest.raises(ArgumentError, match="tokens=0"):
        TokenBudgetSampler([1], [1], tokens=0)
    with pytest.raises(ArgumentError, match="seed=-1"):
        TokenBudgetSampler([1], [1], tokens=1, seed=-1)


@given(st.lists(st.lists(st.integers(4, 99), max_size=7), max_size=5))
def test_pad_puts_pad_behind_and_tells_lengths(sequences: list[list[int]]) -> None:
    ids, lengths = pad(sequences)
    assert ids.dtype == lengths.dtype == torch.int64
    assert ids.shape == (len(sequences), max(map(len, sequences), default=0))
    for row, length, sequence in zip(ids.tolist(), lengths.tolist(), sequences, strict=True):
        assert row[:length] == sequence
        assert set(row[length:]) <= {PAD}


def test_collate_puts_the_target_between_bos_and_eos() -> None:
    batch = RUN.collate([Encoded((5, 6, 7), (8,)), Encoded((5,), (8, 9))])
    assert isinstance(batch, Batch)
    assert batch.source.tolist() == [[5, 6, 7], [5, PAD, PAD]]
    assert batch.source_lengths.tolist() == [3, 1]
    assert batch.target.tolist() == [[BOS, 8, EOS, PAD], [BOS, 8, 9, EOS]]


def test_encode_marks_unseen_units() -> None:
    assert RUN.encode([Pair(("c", "o", "t"), ("K", "AA", "T"))]) == [((5, UNK, 6), (5, UNK, 6))]


def loader() -> DataLoader:
    examples = [Encoded((4,) * n, (5,) * n) for n in range(1, 20)]
    sampler = TokenBudgetSampler(
        [len(example.source) for example in examples], [len(example.target) for example in examples], tokens=40
    )
    return DataLoader(examples, batch_sampler=sampler, collate_fn=RUN.collate)


def test_a_data_loader_takes_it() -> None:
    batches = list(loader())
    assert len(batches) == len(loader())
    assert sorted(n for batch in batches for n in batch.source_lengths.tolist()) == list(range(1, 20))


def test_lightning_sets_the_epoch(tmp_path) -> None:
    lightning = pytest.importorskip("lightning", reason="the extra regard[train] is not installed")
    data = loader()
    seen: list[list[int]] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Batch, _: int) -> torch.Tensor:
            seen.append(batch.source_lengths.tolist())
            return self.weight * 1.0

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        log_every_n_steps=1,
    )
    trainer.fit(Module(), data)
    expected = []
    for epoch in range(2):
        data.batch_sampler.set_epoch(epoch)
        expected += [batch.source_lengths.tolist() for batch in data]
    assert seen == expected
    assert expected[: len(data)] != expected[len(data) :]
