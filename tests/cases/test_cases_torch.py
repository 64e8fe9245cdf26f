"""Faults that people reported of torch's multi-head attention, put to the layer that replaces it."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import ArgumentError
from regard.functional import from_torch
from regard.nn import MultiHeadAttention, TorchMultiheadAttention

B, T, DIM, HEADS = 2, 3, 8, 4
LATER = torch.ones(T, T, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False, False, True], [True, True, True]])
both = pytest.mark.parametrize("floating", [False, True])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def made(**options) -> TorchMultiheadAttention:
    layer = TorchMultiheadAttention(DIM, HEADS, batch_first=True, **options)
    nn.init.normal_(layer.in_proj_bias)
    return layer


def torchs(mask: Tensor, floating: bool) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -math.inf) if floating else mask


def gradients(layer: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    layer.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}


@both
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_m1_an_example_whose_keys_are_all_masked(floating: bool, training: bool, need_weights: bool) -> None:
    layer = made().train(training)
    x = torch.randn(B, T, DIM, requires_grad=True)
    masked = {"key_padding_mask": torchs(PADDING, floating), "need_weights": need_weights}
    with torch.autograd.detect_anomaly():
        output, weights = layer(x, x, x, **masked)
        assert not output[1].any()  # the output's bias is zero
        if weights is not None:
            assert not weights[1].any()
        together = gradients(layer, output[0].square().sum())
        everything = gradients(layer, sum(y.square().sum() for y in layer(x, x, x, **masked) if y is not None))
    assert (
        regard.convert(copy.deepcopy(layer), back=True)(x, x, x, torchs(PADDING, floating))[0].isnan().any()
    )  # torch's
    alone = gradients(layer, layer(x[:1], x[:1], x[:1], torchs(PADDING[:1], floating))[0].square().sum())
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, alone[name])
        assert everything[name].isfinite().all()
    assert not x.grad[1].any()


@both
def test_m1_a_causal_band_with_padding_of_just_its_keys_and_one_head_that_sees_nothing(floating: bool) -> None:
    layer = made()
    x = torch.randn(B, T, DIM, requires_grad=True)
    first = torch.tensor([[True, False, False], [False, False, False]])
    output, weights = layer(x, x, x, torchs(first, floating), attn_mask=torchs(LATER, floating), is_causal=True)
    assert not output[0, 0].any()
    assert not weights[0, 0].any()
    assert output[0, 1:].any()
    one_head = torch.zeros(B, HEADS, T, T, dtype=torch.bool)
    one_head[:, 2] = True
    more, of_heads = layer(x, x, x, attn_mask=torchs(one_head.flatten(0, 1), floating), average_attn_weights=False)
    assert not of_heads[:, 2].any()
    torch.testing.assert_close(of_heads[:, [0, 1, 3]].sum(-1), torch.ones(B, 3, T))
    (output.square().sum() + more.square().sum()).backward()
    assert x.grad.isfinite().all()


@both
def test_m1_a_transformer_with_an_empty_example_learns_from_the_others(floating: bool) -> None:
    model = nn.Transformer(DIM, HEADS, 2, 2, 17, dropout=0.0, batch_first=True)
    source, target = torch.randn(B, T, DIM), torch.randn(B, T, DIM)
    padding = torchs(PADDING, floating)
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    regard.convert(model)
    output = model(source, target, **masks)
    assert output.isfinite().all()
    together = gradients(model, output[0].square().sum())
    alone = model(source[:1], target[:1], **{name: mask[:1] for name, mask in masks.items()})
    for name, gradient in gradients(model, alone.square().sum()).items():
        torch.testing.assert_close(together[name], gradient, rtol=1e-4, atol=1e-5)


def test_m2_the_same_triangle_is_the_same_attention_by_either_convention() -> None:
    theirs = made()
    ours = MultiHeadAttention(DIM, HEADS)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, T, DIM)
    expected = theirs(x, x, x, attn_mask=LATER)[0]
    torch.testing.assert_close(ours(x, mask=regard.causal()), expected)
    torch.testing.assert_close(ours(x, mask=from_torch(attn_mask=LATER)), expected)
    keep = torch.tensor([[True, True, False], [True, False, False]])
    torch.testing.assert_close(ours(x, mask=regard.padding(keep)), theirs(x, x, x, key_padding_mask=~keep)[0])


@both
@pytest.mark.parametrize(
    ("need_weights", "dropout", "padded", "rank"),
    [*itertools.product([True, False], [0.0, 0.5], [True, False], [2, 3])],
)
def test_m4_causal_on_every_path(floating: bool, need_weights: bool, dropout: float, padded: bool, rank: int) -> None:
    layer = made(dropout=dropout)
    x = torch.randn(B, T, DIM)
    changed = x.clone()
    changed[:, 1:] += 1
    mask = torchs(LATER if rank == 2 else LATER.expand(B * HEADS, T, T), floating)
    keys = torchs(torch.tensor([[False, False, True], [False, True, False]]), floating) if padded else None
    answers = []
    for y in (x, changed):
        torch.manual_seed(0)
        answers.append(layer(y, y, y, keys, need_weights, mask, is_causal=True)[0])
    assert torch.equal(answers[0][:, 0], answers[1][:, 0])
    assert not torch.equal(answers[0], answers[1])


def test_m4_the_hint_never_opens_what_the_mask_hides() -> None:
    layer = made()
    x = torch.randn(B, T, DIM)
    narrower = LATER | torch.tensor([[False, False, False], [True, False, False], [True, True, False]])
    for need_weights in (True, False):
        output, _ = layer(x, x, x, attn_mask=narrower, is_causal=True, need_weights=need_weights)
        torch.testing.assert_close(output, layer(x, x, x, attn_mask=narrower)[0])
    open_to_all = torch.zeros(T, T, dtype=torch.bool)
    torch.testing.assert_close(
        layer(x, x, x, attn_mask=open_to_all, is_causal=True)[0], layer(x, x, x, attn_mask=LATER)[0]
    )
    with pytest.raises(ArgumentError, match=r"attn_mask must be \(3, 3\) or \(8, 3, 3\), got \(3, 1\)"):
        layer(x, x, x, attn_mask=torch.zeros(3, 1, dtype=torch.bool), is_causal=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_n1_masks_of_the_lowest_number_add_up_without_nan(dtype: torch.dtype) -> None:
    layer = made().to(dtype)
    x = torch.randn(B, T, DIM, dtype=dtype)
    lowest = torch.finfo(dtype).min
    later = torch.zeros(T, T, dtype=dtype).masked_fill(LATER, lowest)
    left = torch.tensor([[False, False, False], [True, True, False]])
    padding = torch.zeros(B, T, dtype=dtype).masked_fill(left, lowest)
    output, weights = layer(x, x, x, padding, attn_mask=later, average_attn_weights=False)
    assert output.isfinite().all()
    assert weights.isfinite().all()
    hidden = (LATER | left[:, None])[:, None].expand_as(weights)
    open_rows = (~hidden).any(-1, keepdim=True)
    assert not weights[hidden & open_rows].any()
    by_bool = layer(x, x, x, left, attn_mask=LATER, average_attn_weights=False)[1]
    assert not by_bool[hidden].any()
    torch.testing.assert_close(by_bool[0], weights[0])
    very = torch.zeros(T, T).masked_fill(LATER, -1e9)  # a float32 mask for a model in half precision
    assert not layer(x, x, x, attn_mask=very, average_attn_weights=False)[1][:, :, LATER].any()


def test_d1_dropout_is_of_training_alone_and_of_one_gives_zeros() -> None:
    layer, without = made(dropout=0.5), made()
    without.load_state_dict(layer.state_dict())
    x = torch.randn(B, T, DIM)
    layer.eval()
    for need_weights in (True, False):
        first, second = (layer(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert torch.equal(first, second)
        assert torch.equal(first, without(x, x, x, need_weights=need_weights)[0])
        everything = made(dropout=1.0)
        output = everything(x, x, x, need_weights=need_weights)[0]
        assert not output.any()
        assert all(gradient.isfinite().all() for gradient in gradients(everything, output.sum()).values())


@pytest.mark.parametrize("average", [True, False])
def test_d2_weights_are_the_probabilities_before_dropout(average: bool) -> None:
    layer = made(dropout=0.5)
    x = torch.randn(B, T, DIM)
    output, weights = layer(x, x, x, average_attn_weights=average)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    calm, expected = layer.eval()(x, x, x, average_attn_weights=average)
    assert torch.equal(weights, expected)
    assert not torch.equal(output, calm)


@both
@pytest.mark.parametrize("rank", [2, 3])
def test_e2_one_answer_in_every_mode(floating: bool, rank: int) -> None:
    layer = made(dropout=0.0)
    x = torch.randn(B, T, DIM)
    mask = torchs(LATER if rank == 2 else torch.rand(B * HEADS, T, T) < 0.4, floating)
    padding = torchs(PADDING, floating)
    modes = [(True, contextlib.nullcontext), (False, contextlib.nullcontext), (False, torch.no_grad)]
    modes += [(False, torch.inference_mode), (True, torch.no_grad)]
    for masks in (
        {},
        {"attn_mask": mask},
        {"key_padding_mask": padding},
        {"attn_mask": mask, "key_padding_mask": padding},
    ):
        answers = []
        for (training, context), need_weights in itertools.product(modes, (True, False)):
            layer.train(training)
            with context():
                answers.append(layer(x, x, x, need_weights=need_weights, **masks)[0])
        assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_a1_bool_masks_under_autocast_and_other_masks_refused() -> None:
    layer = made()
    x = torch.randn(B, T, DIM)
    exact, exact_weights = layer(x, x, x, PADDING, attn_mask=LATER)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(DIM, HEADS, 17, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    regard.convert(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = layer(x, x, x, PADDING, attn_mask=LATER)
        theirs = copy.deepcopy(layer)
        regard.convert(theirs, back=True)
        expected, _ = theirs(x, x, x, attn_mask=LATER)
        stacked = model(x, mask=LATER, src_key_padding_mask=PADDING, is_causal=True)
        plain, plain_weights = layer(x, x, x, attn_mask=LATER)
    assert plain.dtype == expected.dtype == torch.bfloat16
    assert (
        plain_weights.dtype == torch.float32
    )  # softmax is computed in it; torch's layer narrows them on the CPU alone
    torch.testing.assert_close(plain, expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.05)
    torch.testing.assert_close(weights, exact_weights, rtol=0.05, atol=0.05)
    torch.testing.assert_close(stacked.float(), model(x, mask=LATER, src_key_padding_mask=PADDING), rtol=0.1, atol=0.1)
    for mask, message in [(LATER.long(), "got torch.int64: use .bool()"), (LATER.half(), "torch.float16")]:
        with pytest.raises(ArgumentError, match=message):
            layer(x, x, x, attn_mask=mask)


def test_m1_a_loss_on_the_weights_does_not_feel_what_is_masked() -> None:
    """A key that is hidden, and a query that may attend to nothing, though they be NaN."""
    layer, hidden, weight = made(), torch.zeros(T, T, dtype=torch.bool), torch.randn(B, T, T)
    hidden[:, 1] = hidden[2] = True
    found = []
    for rubbish in (0.0, math.nan):
        query, memory = (torch.randn(B, T, DIM, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
        query[:, 2], memory[:, 1] = rubbish, rubbish
        query.requires_grad_(), memory.requires_grad_()
        weights = layer(query, memory, memory, attn_mask=hidden)[1]
        found.append(torch.autograd.grad((weights * weight).sum(), (query, memory)))
    torch.testing.assert_close(*found)
    assert found[0][1].abs().max() > 0
