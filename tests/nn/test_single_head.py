"""SelfAttention and CrossAttention against attention written out, with sizes that are all different."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard.nn
from by_hand import attend
from regard.errors import ArgumentError
from regard.functional import Observe, causal, dense, padding
from regard.nn import CrossAttention, SelfAttention

SCORES = ["dot", "scaled_dot", "general", "additive"]
B, T, TK, DIM, SOURCE, KEY, VALUE = 3, 7, 5, 11, 13, 2, 17
any_score = pytest.mark.parametrize("score", SCORES)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_the_public_names_are_pinned() -> None:
    assert regard.nn.__all__ == [
        "AttentionPooling",
        "BahdanauAttention",
        "BlockConfig",
        "BlockObservation",
        "CrossAttention",
        "DecoderBlock",
        "DecoderObservation",
        "DecoderState",
        "Dropout",
        "EncoderBlock",
        "KeyValueCache",
        "LuongAttention",
        "MultiHeadAttention",
        "SelfAttention",
        "TorchMultiheadAttention",
        "TransformerDecoder",
        "TransformerEncoder",
    ]


@any_score
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_self_attention_is_its_formula(score: str, bias: bool, is_causal: bool) -> None:
    layer = SelfAttention(DIM, key_dim=KEY, value_dim=VALUE, score=score, bias=bias, causal=is_causal)
    if bias:
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            nn.init.normal_(projection.bias)
    x = torch.randn(B, T, DIM)
    output, seen = layer(x, observe=Observe(weights=True))
    assert output.shape == (B, T, VALUE)
    assert seen.weights.shape == (B, 1, T, T)
    allowed = torch.ones(T, T).tril().bool() if is_causal else None
    for row in range(B):
        q, k, v = layer.q_proj(x[row]), layer.k_proj(x[row]), layer.v_proj(x[row])
        expected, weights = attend(q, k, v, score, layer.score.weight, allowed)
        torch.testing.assert_close(output[row], expected)
        torch.testing.assert_close(seen.weights[row, 0], weights)
        torch.testing.assert_close(layer(x[row]), expected)


@any_score
def test_cross_attention_is_its_formula(score: str) -> None:
    layer = CrossAttention(DIM, SOURCE, key_dim=KEY, value_dim=VALUE, score=score)
    query, source = torch.randn(B, T, DIM), torch.randn(B, TK, SOURCE)
    output, seen = layer(query, source, observe=Observe(weights=True))
    assert output.shape == (B, T, VALUE)
    for row in range(B):
        q, k, v = layer.q_proj(query[row]), layer.k_proj(source[row]), layer.v_proj(source[row])
        expected, weights = attend(q, k, v, score, layer.score.weight)
        torch.testing.assert_close(output[row], expected)
        torch.testing.assert_close(seen.weights[row, 0], weights)
        torch.testing.assert_close(layer(query[row], source[row]), expected)


def test_cross_attention_within_one_sequence_is_self_attention() -> None:
    own = SelfAttention(DIM, key_dim=KEY, score="additive")
    across = CrossAttention(DIM, DIM, key_dim=KEY, score="additive")
    across.load_state_dict(own.state_dict())
    x = torch.randn(B, T, DIM)
    assert torch.equal(across(x, x), own(x))


def test_sizes_by_default_and_names_of_the_parameters() -> None:
    layer = SelfAttention(DIM)
    assert layer(torch.randn(B, T, DIM)).shape == (B, T, DIM)
    assert list(layer.state_dict()) == ["q_proj.weight", "k_proj.weight", "v_proj.weight"]
    assert CrossAttention(DIM, SOURCE)(torch.randn(B, T, DIM), torch.randn(B, TK, SOURCE)).shape == (B, T, DIM)
    assert list(SelfAttention(DIM, key_dim=KEY, score="general", bias=True).state_dict()) == [
        "q_proj.weight",
        "q_proj.bias",
        "k_proj.weight",
        "k_proj.bias",
        "v_proj.weight",
        "v_proj.bias",
        "score.weight",
    ]


def test_projections_begin_glorot_and_biases_zero() -> None:
    layer = SelfAttention(60, key_dim=30, score="additive", bias=True)
    bound = (6 / 90) ** 0.5
    assert 0.95 * bound < layer.q_proj.weight.abs().max() <= bound
    assert not layer.q_proj.bias.any()
    bound = (6 / 31) ** 0.5
    assert 0.5 * bound < layer.score.weight.abs().max() <= bound


@any_score
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_of_every_kind_agree(score: str, is_causal: bool) -> None:
    layer = SelfAttention(DIM, score=score, causal=is_causal)
    x = torch.randn(B, T, DIM)
    lengths = torch.tensor([7, 3, 5])
    keep = torch.arange(T) < lengths[:, None]
    whole = keep[:, None, None].expand(B, 1, T, T)
    expected = layer(x, mask=padding(keep))
    torch.testing.assert_close(layer(x, mask=padding(lengths=lengths)), expected)
    torch.testing.assert_close(layer(x, mask=whole), expected)
    torch.testing.assert_close(layer(x, mask=dense(whole)), expected)
    if is_causal:
        open_layer = SelfAttention(DIM, score=score)
        open_layer.load_state_dict(layer.state_dict())
        torch.testing.assert_close(open_layer(x, mask=padding(keep) & causal()), expected)


def test_a_bias_is_added_to_the_scores() -> None:
    layer = SelfAttention(DIM)
    x, bias = torch.randn(B, T, DIM), torch.randn(B, 1, T, T)
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    expected = torch.softmax(q @ k.mT / DIM**0.5 + bias[:, 0], -1) @ v
    torch.testing.assert_close(layer(x, bias=bias), expected)


@any_score
def test_gradients_reach_every_parameter(score: str) -> None:
    layer = CrossAttention(DIM, SOURCE, key_dim=KEY, score=score, bias=True)
    layer(torch.randn(B, T, DIM), torch.randn(B, TK, SOURCE)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert layer.score.weight is None or layer.score.weight.grad.any()


def test_a_named_impl_reaches_the_operator() -> None:
    with pytest.raises(Exception, match="sdpa"):
        SelfAttention(DIM, score="additive", impl="sdpa")(torch.randn(B, T, DIM))
    torch.testing.assert_close(
        SelfAttention(DIM, impl="reference")(torch.zeros(B, T, DIM)), torch.zeros(B, T, DIM), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SelfAttention(4, score="cosine"), "'dot', 'scaled_dot', 'general', 'additive'; got 'cosine'"),
        (lambda: SelfAttention(4, dropout=1.5), "from 0 to 1, got 1.5"),
        (lambda: SelfAttention(4)(torch.zeros(2, 3, 5)), r"x must have 2 or 3 axes.*size 4; got shape \(2, 3, 5\)"),
        (lambda: SelfAttention(4)(torch.zeros(4)), r"x must have 2 or 3 axes.*got shape \(4,\)"),
        (lambda: SelfAttention(4)(torch.zeros(2, 2, 3, 4)), r"got shape \(2, 2, 3, 4\)"),
        (lambda: CrossAttention(4, 6)(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)), r"source .* size 6"),
        (lambda: CrossAttention(4, 6)(torch.zeros(2, 3, 6), torch.zeros(2, 5, 6)), r"query .* size 4"),
        (lambda: CrossAttention(4, 6)(torch.zeros(2, 3, 4), torch.zeros(5, 6)), r"source must have 3 axes"),
        (lambda: CrossAttention(4, 6)(torch.zeros(2, 3, 4), torch.zeros(3, 5, 6)), "3"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
