"""Recurrences that run as one operation, against torch's layers and against the plain loop; their gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard._kernels.cpu import recurrence as fused
from regard._kernels.mask_parts import MaskParts
from regard._symbols import BOS
from regard.models import RecurrentConfig, RecurrentSeq2Seq
from regard.nn._recurrent import fusible, run_bidirectional

LAYERS = {"gru": nn.GRU, "lstm": nn.LSTM}
CELLS = {"gru": fused.GRU, "lstm": fused.LSTM, "lstm, output first": fused.LSTM_OUTPUT_FIRST}
# Below, at and above the numbers of a vector, with and without some left over.
SIZES = st.sampled_from([2, 3, 13, 32, 37, 130])


def drawn_lengths(data: st.DataObject, rows: int, longest: int) -> torch.Tensor:
    return torch.tensor(data.draw(st.lists(st.integers(1, longest), min_size=rows, max_size=rows)))


def packed(layers: nn.GRU | nn.LSTM, rows: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's own layers on packed sequences."""
    output, final = layers(pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False))
    states, _ = pad_packed_sequence(output, batch_first=True, total_length=rows.shape[1])
    return states, final if isinstance(final, torch.Tensor) else final[0]


def gradients(outputs: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Those of a number into which every output enters with another factor."""
    random = torch.Generator().manual_seed(7)
    total = sum((x * torch.randn(x.shape, generator=random, dtype=x.dtype)).sum() for x in outputs)
    return torch.autograd.grad(total, inputs, allow_unused=True)


def assert_same(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], dtype: torch.dtype) -> None:
    bound = 1e-4 if dtype == torch.float32 else 1e-11
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound * (1 + other.abs().max().item()))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["gru", "lstm"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 7),
    SIZES,
    st.data(),
)
def test_layers_read_as_torch_reads_packed_sequences(
    kind: str, dtype: torch.dtype, count: int, batch: int, longest: int, size: int, data: st.DataObject
) -> None:
    torch.manual_seed(0)
    layers = LAYERS[kind](11, size, count, batch_first=True, bidirectional=True).to(dtype)
    rows, lengths = torch.randn(batch, longest, 11, dtype=dtype), drawn_lengths(data, batch, longest)
    inputs = [rows.requires_grad_(), *layers.parameters()]
    found, expected = run_bidirectional(layers, rows, lengths), packed(layers, rows, lengths)
    assert_same(found, expected, dtype)
    assert_same(gradients(found, inputs), gradients(expected, inputs), dtype)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["gru", "lstm"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 5),
    SIZES,
    st.data(),
)
def test_a_decoder_computes_what_its_plain_loop_computes(
    cell: str, dtype: torch.dtype, feeding: bool, batch: int, keys: int, steps: int, size: int, data: st.DataObject
) -> None:
    torch.manual_seed(0)
    config = RecurrentConfig(11, 13, 5, 2 * size, cell=cell, input_feeding=feeding, dropout=0.0)
    model = RecurrentSeq2Seq(config).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=size**-0.5)
    source, target = torch.randint(4, 11, (batch, keys)), torch.randint(4, 13, (batch, steps))
    memory = model.encode(source, drawn_lengths(data, batch, keys))
    states, made, last = (x.detach().requires_grad_() for x in (memory.states, memory.keys, memory.last))
    memory = memory._replace(states=states, keys=made, last=last)
    embedded = model.target_embedding(target).detach().requires_grad_()
    assert model._fuses(embedded)
    inputs = [embedded, states, made, last, *model.parameters()]
    found, expected = (model._run(embedded, memory, fused=fused) for fused in (True, False))
    assert (found[1] is None) == (expected[1] is None) == (not feeding)
    found, expected = ([x for x in pair if x is not None] for pair in (found, expected))
    assert_same(found, expected, dtype)
    pairs = zip(gradients(found, inputs), gradients(expected, inputs), strict=True)
    assert_same(*zip(*[pair for pair in pairs if pair[1] is not None], strict=True), dtype)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def drawn_weights(cell: fused.Cell, entering: int, size: int) -> fused.Weights:
    wide = cell.gates * size
    return fused.Weights(drawn(wide, entering), drawn(wide, size), drawn(wide), drawn(wide))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", CELLS)
def test_gradients_of_a_recurrence(kind: str, directions: int) -> None:
    torch.manual_seed(0)
    cell, rows, steps, entering, size = CELLS[kind], 3, 5, 7, 2
    weights = (weight for _ in range(directions) for weight in drawn_weights(cell, entering, size))
    inputs = (drawn(rows, steps, entering), drawn(cell.parts, directions, rows, size))
    lengths = torch.tensor([5, 1, 3])
    assert torch.autograd.gradcheck(
        lambda x, state, *rest: fused.recurrence(cell, x, state, lengths, *rest), (*inputs, *weights)
    )


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", CELLS)
def test_gradients_of_an_attentive_recurrence(kind: str, steps: int) -> None:
    torch.manual_seed(0)
    cell, rows, keys, entering, hidden, scored, memory = CELLS[kind], 2, 3, 3, 2, 5, 7
    inputs = (
        drawn(rows, steps, entering),
        drawn(cell.parts, rows, hidden),
        drawn(rows, keys, scored),
        drawn(rows, keys, memory),
        drawn(scored, hidden),
        drawn(cell.gates * hidden, memory),
        drawn(scored),
        *drawn_weights(cell, entering, hidden),
    )
    mask = MaskParts(-steps, keys, torch.tensor([[True, True, True], [True, False, False]]), None)

    def function(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return fused.attentive_recurrence(cell, mask, x[0], x[1], x[2:4], x[4:7], fused.Weights(*x[7:]))

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("kind", LAYERS)
def test_what_lies_behind_a_row_has_no_influence(kind: str) -> None:
    torch.manual_seed(0)
    layers = LAYERS[kind](3, 5, 2, batch_first=True, bidirectional=True)
    rows, lengths = torch.randn(3, 7, 3), torch.tensor([4, 7, 1])
    spoiled = rows.masked_fill(torch.arange(7)[:, None] >= lengths[:, None, None], torch.nan).requires_grad_()
    rows.requires_grad_()
    found, expected = run_bidirectional(layers, spoiled, lengths), run_bidirectional(layers, rows, lengths)
    assert all(map(torch.equal, found, expected))
    weights = list(layers.parameters())
    assert all(map(torch.equal, gradients(found, [spoiled, *weights]), gradients(expected, [rows, *weights])))


@pytest.mark.parametrize("kind", LAYERS)
def test_large_numbers_saturate(kind: str) -> None:
    torch.manual_seed(0)
    layers = LAYERS[kind](3, 5, batch_first=True, bidirectional=True)
    rows, lengths = 1e4 * torch.randn(2, 4, 3), torch.tensor([4, 2])
    assert_same(run_bidirectional(layers, rows, lengths), packed(layers, rows, lengths), torch.float32)


def model_and_batch(cell: str = "gru") -> tuple[RecurrentSeq2Seq, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(RecurrentConfig(11, 13, 5, 6, cell=cell, dropout=0.0))
    target = torch.randint(4, 13, (3, 4))
    target[:, 0] = BOS
    return model, (torch.randint(4, 11, (3, 7)), torch.tensor([7, 3, 5]), target)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_going_back_twice_gives_the_same(cell: str) -> None:
    model, batch = model_and_batch(cell)
    loss = model(*batch).square().sum()
    first, second = (torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_only_what_is_asked_for_has_a_gradient() -> None:
    model, batch = model_and_batch()
    names, parameters = zip(*model.named_parameters(), strict=True)
    expected = dict(zip(names, gradients((model(*batch),), list(parameters)), strict=True))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("cell" in name)
    model(*batch).backward(torch.randn(3, 4, 13, generator=torch.Generator().manual_seed(7)))
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == ("cell" not in name)
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name])


def test_transforms_other_types_and_autocast_take_the_plain_loop() -> None:
    model, batch = model_and_batch()
    memory = model.encode(*batch[:2])
    embedded = model.target_embedding(batch[2]).detach()
    model.attention.impl = "reference"
    assert not model._fuses(embedded)
    plain = torch.func.jacrev(lambda x: model._run(x, memory, fused=model._fuses(x))[0].sum())(embedded)
    model.attention.impl = "auto"
    assert model._fuses(embedded)
    (found,) = torch.autograd.grad(model._run(embedded.requires_grad_(), memory, fused=True)[0].sum(), embedded)
    torch.testing.assert_close(found, plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert not fusible(embedded)
    assert not fusible(embedded.bfloat16())
    assert not fusible(torch.zeros((), device="meta"))
    assert torch.func.vmap(lambda x: torch.full_like(x, fusible(x)))(torch.zeros(2)).tolist() == [0, 0]
    with torch.autograd.forward_ad.dual_level():
        assert not fusible(embedded)
