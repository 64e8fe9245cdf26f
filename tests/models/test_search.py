"""Beam search: against enumeration, against a search in plain Python, and against forced decoding."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard._symbols import BOS, EOS
from regard.errors import ArgumentError
from regard.functional import Observe
from regard.models import Hypothesis, RecurrentConfig, RecurrentSeq2Seq, beam_search
from tables import Table, TableDecoder, drawn_table

SYMBOLS = (4, 5, 6)
VOCABULARY = 7


def search(table: Table, sources: list[int], limits: list[int], **options: object) -> list[list[Hypothesis]]:
    ids = torch.tensor(sources)[:, None]
    return beam_search(
        TableDecoder(table, VOCABULARY), ids, torch.ones(len(sources)), max_lengths=torch.tensor(limits), **options
    )


def by_hand(table: Table, source: int, limit: int, beam: int, penalty: float) -> list[tuple[tuple[int, ...], float]]:
    """One source at a time, in lists: symbols with EOS, and score, best first."""
    going, ended = [((), 0.0)], []
    for _ in range(limit):
        grown = [
            ((*prefix, symbol), total + table(source, prefix)[symbol])
            for prefix, total in going
            for symbol in (EOS, *SYMBOLS)
        ]
        grown = sorted(grown, key=lambda pair: -pair[1])[: beam - len(ended)]
        ended += [pair for pair in grown if pair[0][-1] == EOS or len(pair[0]) == limit]
        going = [pair for pair in grown if pair[0][-1] != EOS]
    scored = [(symbols, total / len(symbols) ** penalty) for symbols, total in ended]
    return sorted(scored, key=lambda pair: -pair[1])


def compare(found: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> None:
    assert [(*h.ids, EOS) if h.finished else h.ids for h in found] == [symbols for symbols, _ in expected]
    assert [h.score for h in found] == pytest.approx([score for _, score in expected], rel=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beam", [1, 2, 3, 5])
def test_equals_a_search_in_plain_python(beam: int, penalty: float) -> None:
    table = drawn_table(VOCABULARY)
    sources, limits = [11, 12, 13, 14, 15, 16], [5, 1, 3, 6, 2, 5]
    found = search(table, sources, limits, beam=beam, n_best=beam, length_penalty=penalty)
    for source, limit, hypotheses in zip(sources, limits, found, strict=True):
        compare(hypotheses, by_hand(table, source, limit, beam, penalty))


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_finds_everything_in_order(penalty: float) -> None:
    table, limit = drawn_table(VOCABULARY), 4
    every = [(*head, EOS) for n in range(limit) for head in itertools.product(SYMBOLS, repeat=n)]
    every += itertools.product(SYMBOLS, repeat=limit)
    scored = []
    for symbols in every:
        total = sum(table(9, symbols[:i])[symbol] for i, symbol in enumerate(symbols))
        scored.append((symbols, total / len(symbols) ** penalty))
    scored.sort(key=lambda pair: -pair[1])
    (found,) = search(table, [9], [limit], beam=len(every) + 3, n_best=len(every) + 3, length_penalty=penalty)
    compare(found, scored)


def network(score: str = "additive", cell: str = "gru", feeding: bool = True) -> RecurrentSeq2Seq:
    torch.manual_seed(3)
    model = RecurrentSeq2Seq(RecurrentConfig(11, 9, 5, 6, cell=cell, score=score, input_feeding=feeding)).eval()
    with torch.no_grad():
        model.output.weight.mul_(6)  # so that answers end, at various lengths
    return model


SOURCE = torch.tensor([[4, 5, 6, 7, 8], [9, 4, 0, 0, 0], [5, 5, 7, 0, 0], [6, 10, 9, 8, 0]])
LENGTHS = torch.tensor([5, 2, 3, 4])
LIMITS = torch.tensor([9, 4, 7, 8])


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("score", ["additive", "dot"])
def test_weights_and_probability_are_those_of_forced_decoding(score: str, cell: str, feeding: bool) -> None:
    model = network(score, cell, feeding)
    found = beam_search(model, SOURCE, LENGTHS, max_lengths=LIMITS, beam=4, n_best=4, weights=True)
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 4
        length = LENGTHS[row : row + 1]
        memory = model.encode(SOURCE[row : row + 1, :length], length)
        for hypothesis in hypotheses:
            symbols = [*hypothesis.ids, *([EOS] if hypothesis.finished else [])]
            assert hypothesis.weights.shape == (len(symbols), length)
            state, total = model.start(memory), 0.0
            for step, (before, symbol) in enumerate(zip([BOS, *symbols], symbols, strict=False)):
                logits, state, seen = model.step(torch.tensor([[before]]), state, memory, Observe(weights=True))
                total += logits.log_softmax(-1)[0, 0, symbol].item()
                torch.testing.assert_close(hypothesis.weights[step], seen.weights[0, 0, 0], rtol=0, atol=1e-6)
            assert hypothesis.log_prob == pytest.approx(total, rel=1e-5)


def test_asking_for_weights_changes_nothing_else() -> None:
    model = network()
    plain, seen = (
        beam_search(model, SOURCE, LENGTHS, max_lengths=LIMITS, beam=3, n_best=3, weights=weights)
        for weights in (False, True)
    )
    for a, b in zip(itertools.chain(*plain), itertools.chain(*seen), strict=True):
        assert (a.ids, a.score, a.finished, a.weights) == (b.ids, b.score, b.finished, None)


def test_a_model_without_attention_has_no_weights() -> None:
    found = beam_search(network(None), SOURCE, LENGTHS, max_lengths=LIMITS, beam=2, weights=True)
    assert all(hypothesis.weights is None for (hypothesis,) in found)


def test_only_symbols_that_can_be_written_are_found() -> None:
    table: Table = lambda source, prefix: {0: -0.1, 1: -0.2, BOS: -0.3, 4: -4.0, EOS: -5.0}  # noqa: E731
    (found,) = search(table, [9], [3], beam=5, n_best=5)
    assert found
    assert {symbol for hypothesis in found for symbol in hypothesis.ids} == {4}


def test_fewer_hypotheses_than_asked_for_where_there_are_no_more() -> None:
    (found,) = search(lambda source, prefix: {EOS: 0.0}, [9], [3], beam=5, n_best=5)
    assert [(hypothesis.ids, hypothesis.finished) for hypothesis in found] == [((), True)]


def test_a_state_whose_hypotheses_stay_in_their_places_is_not_touched() -> None:
    decoder = TableDecoder(drawn_table(VOCABULARY), VOCABULARY)
    sources, options = torch.tensor([[7], [8], [9]]), {"max_lengths": torch.tensor([6, 3, 9])}
    beam_search(decoder, sources, torch.ones(3), **options)
    assert decoder.selected == 0
    beam_search(decoder, sources, torch.ones(3), beam=2, **options)
    assert decoder.selected > 0
    same = TableDecoder(lambda source, prefix: {4 + len(prefix): 0.0} if len(prefix) < 3 else {EOS: 0.0}, VOCABULARY)
    beam_search(same, sources, torch.ones(3), beam=2, **options)
    assert same.selected == 1  # from one place to two


@pytest.mark.parametrize(("beam", "n_best"), [(1, 2), (4, 5), (3, 0), (0, 0), (0, 1)])
def test_n_best_beyond_the_beam_is_refused(beam: int, n_best: int) -> None:
    with pytest.raises(ArgumentError, match=rf"expected a number from 1 to the beam width {beam}, got {n_best}"):
        search(drawn_table(VOCABULARY), [9], [3], beam=beam, n_best=n_best)


@pytest.mark.parametrize("limits", [[3, 0], [0, 0], [-1, 2]])
def test_a_length_that_leaves_no_room_is_refused(limits: list[int]) -> None:
    with pytest.raises(ArgumentError, match="max_lengths"):
        search(drawn_table(VOCABULARY), [8, 9], limits)
