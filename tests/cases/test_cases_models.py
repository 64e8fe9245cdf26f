"""Faults that people reported of other libraries' models and searches, by the ids of the list of cases."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from regard._symbols import BOS, EOS, PAD
from regard.errors import ArgumentError
from regard.functional import Observe
from regard.models import (
    Config,
    RecurrentConfig,
    RecurrentSeq2Seq,
    Seq2Seq,
    TransformerConfig,
    beam_search,
)
from tables import Table, TableDecoder, drawn_table

SCORES = ["additive", "dot", "scaled_dot", "general", None]
POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"]
SOURCES, TARGETS = 11, 13
SENTENCES = {3: [4, 5, 6], 5: [7, 8, 9, 4, 4], 7: [5, 6, 7, 8, 9, 10, 4]}
RECURRENT = {
    f"{score}-{cell}-{'bahdanau' if feeding else 'luong'}": RecurrentConfig(
        SOURCES, TARGETS, 5, 6, 2, cell=cell, score=score, input_feeding=feeding
    )
    for score, cell, feeding in itertools.product(SCORES, ["gru", "lstm"], [True, False])
}
TRANSFORMERS = {
    f"{positions}-{'pre' if norm_first else 'post'}": TransformerConfig(
        SOURCES, TARGETS, 12, 3, 7, 2, 2, norm_first=norm_first, positions=positions, max_length=10
    )
    for positions, norm_first in [*itertools.product(POSITIONS, [True]), ("sinusoidal", False)]
}
ADDITIVE = RECURRENT["additive-gru-bahdanau"]


def every(configs: dict[str, Config]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("config", configs.values(), ids=configs)


every_model = every({**RECURRENT, **TRANSFORMERS})


def new(config: Config, **options: object) -> Seq2Seq:
    torch.manual_seed(0)
    model = replace(config, **options).build().eval()
    # A transformer has more to round, as its logits are larger: in float64 equal is equal all the more
    return model if config.kind == "recurrent" else model.double()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def targets(count: int, steps: int) -> torch.Tensor:
    target = torch.randint(4, TARGETS, (count, steps), generator=torch.Generator().manual_seed(1))
    target[:, 0] = BOS
    return target


@every_model
@pytest.mark.parametrize("order", list(itertools.permutations(SENTENCES)))
def test_r1_a_source_alone_equals_it_beside_longer_ones(order: tuple[int, ...], config: Config) -> None:
    model = new(config)
    # What lies behind a sentence is no padding symbol here: nobody may read it
    source = torch.tensor([SENTENCES[n] + [10] * (7 - n) for n in order])
    target = targets(3, 4)
    memory = model.encode(source, torch.tensor(order))
    start, logits = model.start(memory), model(source, torch.tensor(order), target)
    _, _, seen = model.step(target[:, :1], start, memory, Observe(weights=True))
    for row, length in enumerate(order):
        alone, size = torch.tensor([SENTENCES[length]]), torch.tensor([length])
        one = model.encode(alone, size)
        close(memory.states[row, :length], one.states[0])
        close(logits[row], model(alone, size, target[row : row + 1])[0])
        if config.attends:
            _, _, its = model.step(target[row : row + 1, :1], model.start(one), one, Observe(weights=True))
            close(seen.weights[row, ..., :length], its.weights[0])
            assert not seen.weights[row, ..., length:].any()


@every(RECURRENT)
def test_r1_the_last_states_are_those_of_the_last_tokens(config: RecurrentConfig) -> None:
    model = new(config)
    order = (5, 7, 3)
    memory = model.encode(torch.tensor([SENTENCES[n] + [10] * (7 - n) for n in order]), torch.tensor(order))
    for row, length in enumerate(order):
        one = model.encode(torch.tensor([SENTENCES[length]]), torch.tensor([length]))
        assert not memory.states[row, length:].any()
        close(memory.last[row], one.last[0])
        for together, single in zip(model.start(memory), model.start(one), strict=True):
            close(together[row], single[0])


@every_model
def test_r1_padding_has_no_gradient(config: Config) -> None:
    model = new(config)
    source, lengths, target = torch.tensor([[4, 5, 6, 0], [7, 8, 9, 4]]), torch.tensor([3, 4]), targets(2, 3)
    model(source, lengths, target)[0].square().sum().backward()
    padded = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model(source[:1, :3], lengths[:1], target[:1])[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(padded[name], parameter.grad)


@every_model
def test_f1_a_target_reaches_later_steps_alone(config: Config) -> None:
    model = new(config)
    source, lengths, target = torch.tensor([SENTENCES[5]]), torch.tensor([5]), targets(1, 6)
    logits = model(source, lengths, target)
    for step in range(1, 6):
        other = target.clone()
        other[:, step] = 4 + (target[:, step] - 3) % (TARGETS - 4)
        changed = model(source, lengths, other)
        assert torch.equal(changed[:, :step], logits[:, :step])
        assert not torch.equal(changed[:, step], logits[:, step])


@every_model
def test_f1_forced_decoding_equals_teacher_forcing(config: Config) -> None:
    model = new(config)
    source, lengths = torch.tensor([SENTENCES[7], SENTENCES[3] + [0] * 4]), torch.tensor([7, 3])
    forced = torch.stack((targets(2, 5), targets(4, 5)[2:]), 1)  # two hypotheses of each source
    memory = model.encode(source, lengths)
    state = model.select(model.start(memory), torch.zeros(2, 2, dtype=torch.long))
    for step in range(5):
        logits, state, _ = model.step(forced[:, :, step], state, memory)
        for k in range(2):
            close(logits[:, k], model(source, lengths, forced[:, k])[:, step])


@every({"recurrent": ADDITIVE, "transformer": TRANSFORMERS["sinusoidal-pre"]})
def test_f1_learns_the_symbol_that_comes_next(config: Config) -> None:
    model = new(config)
    target = torch.tensor([[BOS, 4, 5, EOS, PAD]])
    source, lengths = torch.tensor([SENTENCES[3]]), torch.tensor([3])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(30):
        logits = model(source, lengths, target[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits[0], target[0, 1:], ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model(source, lengths, target[:, :-1]).argmax(-1)[0, :3].tolist() == [4, 5, EOS]
    ((found,),) = beam_search(model, source, lengths, max_lengths=torch.tensor([9]))
    assert (found.ids, found.finished) == ((4, 5), True)


@every_model
def test_b1_permuting_the_batch_permutes_the_output_and_nothing_else(config: Config) -> None:
    model = new(config)
    source = torch.tensor([[4, 5, 6], [7, 8, 9], [10, 4, 7]])  # B = Tk = Tq, where axes could be confused unseen
    lengths, target, order = torch.tensor([3, 2, 3]), targets(3, 3), torch.tensor([2, 0, 1])
    logits = model(source, lengths, target)
    close(model(source[order], lengths[order], target[order]), logits[order])
    for row in range(3):
        close(model(source[row : row + 1], lengths[row : row + 1], target[row : row + 1]), logits[row : row + 1])


@every_model
def test_i1_the_padding_row_is_zero_and_stays_so(config: Config) -> None:
    model = new(config)
    assert not model.target_embedding.weight[PAD].any()
    source, target = torch.tensor([[4, 5, 0], [6, 7, 8]]), torch.tensor([[BOS, 4, 0], [BOS, 5, 6]])
    model(source, torch.tensor([2, 3]), target).square().sum().backward()
    torch.optim.AdamW(model.parameters(), lr=0.1).step()
    # A transformer's target embeddings are weights of its output as well
    for embedding in (model.source_embedding, *([model.target_embedding] if config.kind == "recurrent" else [])):
        assert not embedding.weight[PAD].any()
        assert not embedding.weight.grad[PAD].any()
        assert embedding.weight[4].any()


@every(TRANSFORMERS)
def test_i1_layers_of_a_transformer_begin_different(config: TransformerConfig) -> None:
    model = new(config)
    for stack in (model.encoder, model.decoder):
        first, second = (dict(layer.named_parameters()) for layer in stack.layers)
        for name, weight in first.items():
            shared = weight is second[name]
            assert shared == (config.positions == "t5" and "positions" in name)
            assert shared or weight.dim() < 2 or not torch.equal(weight, second[name]), name


def test_i1_layers_and_models_begin_different_and_a_seed_fixes_them() -> None:
    first, again = new(ADDITIVE), new(ADDITIVE)
    other = RecurrentSeq2Seq(first.config)
    for (name, a), b, c in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert not torch.equal(a, c) or not a.any(), name
    assert not torch.equal(first.encoder.weight_hh_l0, first.encoder.weight_hh_l1)
    assert not torch.equal(first.encoder.weight_hh_l0, first.encoder.weight_hh_l0_reverse)


@every(TRANSFORMERS)
def test_p1_places_do_not_depend_on_the_batch(config: TransformerConfig) -> None:
    model, target = new(config), targets(2, 9)
    source, lengths = torch.tensor([SENTENCES[7], SENTENCES[3] + [PAD] * 4]), torch.tensor([7, 3])
    logits = model(source, lengths, target)
    swapped = model(torch.tensor([[*SENTENCES[3][::-1], *[PAD] * 4]]), torch.tensor([3]), target[1:])
    assert (logits[1] - swapped[0]).abs().max() > 1e-3  # that there is an order at all
    close(logits[1], model(source[1:, :3], lengths[1:], target[1:])[0])
    shorter = model(source, lengths, target[:, :4])  # nor on how much is to come
    close(logits[:, :4], shorter)


@every(TRANSFORMERS)
def test_p3_what_is_longer_than_ever_works_or_is_refused_naming_both_lengths(config: TransformerConfig) -> None:
    model, lengths = new(config), torch.tensor([11])
    source, target = torch.full((1, 11), 4), targets(1, 11)
    if config.positions != "learned":
        assert model(source, lengths, target).isfinite().all()
        return
    named = "11 positions needed, but Learned has max_len=10"
    with pytest.raises(ArgumentError, match=named):
        model(source, lengths, target[:, :3])
    with pytest.raises(ArgumentError, match=named):
        model(source[:, :3], torch.tensor([3]), target)
    assert model(source[:, :10], lengths - 1, target[:, :10]).isfinite().all()
    with torch.no_grad():
        model.decoder.norm.bias.fill_(1)
        model.target_embedding.weight[EOS] = -9  # never ends
    beam_search(model, source[:, :3], torch.tensor([3]), max_lengths=torch.tensor([10]))
    with pytest.raises(ArgumentError, match=named):
        beam_search(model, source[:, :3], torch.tensor([3]), max_lengths=torch.tensor([11]))


def ids(*sources: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(sources)[:, None], torch.ones(len(sources))


# A short answer of one symbol, log p = -1.0, and a long one of four, log p = -1.2; the rest goes to what none may say.
SHORT_OR_LONG: dict[tuple[int, ...], dict[int, float]] = {
    (): {4: -1.0, 5: -1.2},
    (4,): {EOS: 0.0},
    **{(5,) * n: {5: 0.0} for n in (1, 2, 3)},
    (5, 5, 5, 5): {EOS: 0.0},
}


def short_or_long(_: int, prefix: tuple[int, ...]) -> dict[int, float]:
    known = SHORT_OR_LONG.get(prefix, {EOS: 0.0})
    return {**known, 1: math.log1p(-min(1 - 1e-9, sum(map(math.exp, known.values()))))}


@pytest.mark.parametrize(("penalty", "first"), [(0.0, (4,)), (1.0, (5, 5, 5, 5))])
def test_g1_with_a_length_penalty_the_long_one_wins(penalty: float, first: tuple[int, ...]) -> None:
    (found,) = beam_search(
        TableDecoder(short_or_long, 6), *ids(9), max_lengths=torch.tensor([9]), beam=2, n_best=2, length_penalty=penalty
    )
    assert found[0].ids == first
    assert {h.ids: pytest.approx(h.log_prob, abs=1e-5) for h in found} == {(4,): -1.0, (5, 5, 5, 5): -1.2}
    scores = {(4,): -1.0 / 2**penalty, (5, 5, 5, 5): -1.2 / 5**penalty}  # EOS counts
    assert {h.ids: pytest.approx(h.score, abs=1e-5) for h in found} == scores
    assert all(hypothesis.finished for hypothesis in found)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_g1_n_best_of_1_is_the_head_of_n_best_of_5(penalty: float) -> None:
    decoder, limits = TableDecoder(drawn_table(7), 7), torch.tensor([6, 3, 5])
    one, five = (
        beam_search(decoder, *ids(7, 8, 9), max_lengths=limits, beam=5, n_best=n, length_penalty=penalty)
        for n in (1, 5)
    )
    assert [len(row) for row in five] == [5, 5, 5]
    assert one == [row[:1] for row in five]
    for row in five:
        assert row == sorted(row, key=lambda hypothesis: -hypothesis.score)
        assert len({(hypothesis.ids, hypothesis.finished) for hypothesis in row}) == 5


@every_model
def test_g1_a_beam_of_1_is_greedy_search(config: Config) -> None:
    model = new(config)
    source, lengths = torch.tensor([SENTENCES[7], SENTENCES[3] + [0] * 4]), torch.tensor([7, 3])
    found = beam_search(model, source, lengths, max_lengths=torch.tensor([8, 5]))
    for row, limit in enumerate((8, 5)):
        memory = model.encode(source[row : row + 1], lengths[row : row + 1])
        state, symbols = model.start(memory), [BOS]
        while symbols[-1] != EOS and len(symbols) <= limit:
            logits, state, _ = model.step(torch.tensor([symbols[-1:]]), state, memory)
            logits[..., [PAD, 1, BOS]] = -math.inf
            symbols.append(int(logits.argmax()))
        (hypothesis,) = found[row]
        assert hypothesis.finished == (symbols[-1] == EOS)
        assert list(hypothesis.ids) == symbols[1 : -1 if hypothesis.finished else None]


@every_model
def test_g1_the_batch_has_no_say(config: Config) -> None:
    model = new(config)
    lengths = torch.tensor([3, 7, 5])
    source = torch.tensor([SENTENCES[n] + [0] * (7 - n) for n in (3, 7, 5)])
    limits = torch.tensor([2, 9, 6])
    options = {"beam": 4, "n_best": 4, "length_penalty": 0.5, "weights": True}
    together = beam_search(model, source, lengths, max_lengths=limits, **options)
    for row, expected in enumerate(together):
        one = slice(row, row + 1)
        (alone,) = beam_search(model, source[one], lengths[one], max_lengths=limits[one], **options)
        for a, b in zip(alone, expected, strict=True):
            assert (a.ids, a.finished) == (b.ids, b.finished)
            assert a.score == pytest.approx(b.score, abs=1e-5)
            if config.attends:
                close(a.weights, b.weights)


@pytest.mark.parametrize("vocabulary", [7, 3000])
@pytest.mark.parametrize("value", [0.0, -1.0 / 3])
def test_g1_ties_go_to_the_lower_id(value: float, vocabulary: int) -> None:
    flat: Table = lambda source, prefix: dict.fromkeys(range(vocabulary), value)  # noqa: E731
    decoder = TableDecoder(flat, vocabulary)
    ((greedy,),) = beam_search(decoder, *ids(9), max_lengths=torch.tensor([4]))
    assert greedy.ids == ()
    (found,) = beam_search(decoder, *ids(9), max_lengths=torch.tensor([1]), beam=4, n_best=4)
    assert [hypothesis.ids for hypothesis in found] == [(), (4,), (5,), (6,)]


def test_g1_nearly_equal_is_no_tie() -> None:
    decoder = TableDecoder(lambda source, prefix: {EOS: -2.0, 4: -2.0, 2990: -2.0 + 2e-6, 2999: -0.1}, 3000)
    (found,) = beam_search(decoder, *ids(9), max_lengths=torch.tensor([1]), beam=4, n_best=4)
    assert [hypothesis.ids for hypothesis in found] == [(2999,), (2990,), (), (4,)]


def test_g1_reaching_the_greatest_length_is_flagged() -> None:
    decoder = TableDecoder(lambda source, prefix: {4: -0.1, EOS: -9.0 if source == 8 else -0.01}, 6)
    (endless,), (short,) = beam_search(decoder, *ids(8, 9), max_lengths=torch.tensor([3, 3]))
    assert (endless.ids, endless.finished) == ((4, 4, 4), False)
    assert (short.ids, short.finished) == ((), True)
