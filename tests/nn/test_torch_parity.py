"""The layer that replaces torch's, beside torch's: outputs, weights and gradients, over all that can be asked of it."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.errors import ArgumentError, UnsupportedError
from regard.nn import MultiHeadAttention, TorchMultiheadAttention
from regard.nn._torch_multi_head import _is_nothing_but_causal
from torch_drawn import (
    GRADIENTS,
    KDIM,
    SEEDS,
    VDIM,
    B,
    L,
    S,
    by_formula,
    close,
    drawn_call,
    drawn_layer,
    drawn_mask,
    options,
    requests,
    same,
    with_gradients,
)


@settings(max_examples=150)
@given(options, requests, st.booleans(), SEEDS)
def test_outputs_weights_and_gradients_are_torchs(embed, asked, training: bool, seed: int) -> None:
    theirs = drawn_layer(embed, seed).train(training)
    ours = regard.convert(copy.deepcopy(theirs))
    assert isinstance(ours, TorchMultiheadAttention)
    call = drawn_call(theirs, asked)
    same(ours, theirs, call)
    with torch.no_grad(), warnings.catch_warnings():  # where torch takes its fused kernel
        warnings.filterwarnings("ignore", "Support for mismatched")
        expected = theirs(**call)
        for found, right in zip(ours(**call), expected, strict=True):
            assert (found is None) == (right is None)
            if right is not None:
                close(found, right)


@given(options, requests, st.sampled_from(["causal", "causal bool"]), SEEDS)
def test_the_hint_that_a_mask_is_causal_is_served_as_torch_serves_it(embed, asked, kind: str, seed: int) -> None:
    # With keys appended, torch takes the hint to hide them if there are no weights to return, and else shows them.
    embed |= {"add_bias_kv": False, "add_zero_attn": False}
    theirs = drawn_layer(embed, seed)
    call = drawn_call(theirs, asked | {"attn_mask": kind})
    same(regard.convert(copy.deepcopy(theirs)), theirs, call | {"is_causal": True})


def test_a_causal_mask_that_learns_goes_on_learning() -> None:
    layer = regard.convert(drawn_layer({"num_heads": 3}, 0))
    x = torch.randn(L, B, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(L).requires_grad_()
    layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0].square().sum().backward()
    assert mask.grad is not None
    assert mask.grad.isfinite().all()
    assert mask.grad.any()


@pytest.mark.parametrize(
    "extra", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}]
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_keys_that_are_appended_are_open_to_every_query(extra: dict[str, bool], need_weights: bool) -> None:
    theirs = drawn_layer({"num_heads": 3, **extra}, 0)
    ours = regard.convert(copy.deepcopy(theirs))
    call = drawn_call(
        theirs,
        {
            "key_padding_mask": None,
            "attn_mask": "causal",
            "rank": 2,
            "batched": True,
            "inputs": "one",
            "need_weights": True,
            "average_attn_weights": True,
        },
    )
    expected = theirs(**call)[0]
    close(ours(**call | {"is_causal": True, "need_weights": need_weights})[0], expected)


@settings(max_examples=100)
@given(options, requests, SEEDS)
def test_rows_with_nothing_to_attend_are_zero_and_so_are_their_gradients(embed, asked, seed: int) -> None:
    theirs = drawn_layer(embed | {"dtype": torch.float64}, seed)
    call = drawn_call(theirs, asked | {"average_attn_weights": False, "need_weights": True}, empty=True)

    class Formula(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in [*theirs.named_parameters(recurse=False), *theirs.named_children()]:
                setattr(self, name, part)

        def forward(self, **call: Any) -> tuple[Tensor, Tensor]:
            return by_formula(theirs, call)

    expected, expected_gradients = with_gradients(Formula(), call)
    outputs, gradients = with_gradients(regard.convert(theirs), call)
    for found, right in zip(outputs, expected, strict=True):
        close(found, right)
    for name, gradient in gradients.items():
        close(gradient, expected_gradients[name], GRADIENTS)


@given(options, requests, SEEDS)
def test_weights_never_change_the_output(embed, asked, seed: int) -> None:
    layer = regard.convert(drawn_layer(embed | {"dropout": 0.5}, seed))
    call = drawn_call(layer, asked, empty=True)
    answers = []
    for need_weights in (True, False):
        torch.manual_seed(seed)
        answers.append(layer(**call | {"need_weights": need_weights})[0])
    assert torch.equal(*answers)


def test_a_kernel_is_told_that_a_mask_is_causal_where_it_is_so() -> None:
    later = torch.ones(L, S, dtype=torch.bool).triu(1)
    added = torch.zeros(L, S).masked_fill(later, -math.inf)
    assert _is_nothing_but_causal(later)
    assert _is_nothing_but_causal(added)
    for other in (
        ~later,
        later.mT,
        added.nan_to_num(),
        added + 1,
        later.expand(B, L, S),
        later | torch.eye(L, S).bool(),
    ):
        assert not _is_nothing_but_causal(other)


def test_a_query_that_sees_nothing_is_not_felt_though_it_be_nan() -> None:
    layer = regard.convert(drawn_layer({"num_heads": 3, "batch_first": True}, 0))
    x = torch.randn(B, L, 12)
    hidden = torch.zeros(L, L, dtype=torch.bool)
    hidden[2] = hidden[:, 2] = True
    found = []
    for y in (x, x.index_fill(1, torch.tensor(2), math.nan)):
        key = y.clone().requires_grad_()
        output, weights = layer(y, key, y, attn_mask=hidden)
        (gradient,) = torch.autograd.grad(output.square().sum() + weights.square().sum(), key)
        found.append((output, weights, gradient))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_what_is_masked_is_not_felt_though_it_be_nan() -> None:
    layer = regard.convert(drawn_layer({"num_heads": 3, "batch_first": True}, 0))
    call = drawn_call(
        layer,
        {
            "key_padding_mask": "bool",
            "attn_mask": None,
            "rank": 2,
            "batched": True,
            "inputs": "two",
            "need_weights": True,
            "average_attn_weights": True,
        },
    )
    expected, expected_gradients = with_gradients(layer, call)
    call["key"] = call["value"] = call["key"].detach().masked_fill(call["key_padding_mask"][..., None], math.nan)
    outputs, gradients = with_gradients(layer, call)
    for found, right in zip(outputs, expected, strict=True):
        assert torch.equal(found, right)
    for name in ("query", "key", "out_proj.weight"):
        close(gradients[name], expected_gradients[name], GRADIENTS)


@given(options, st.booleans(), SEEDS)
def test_multi_head_attention_reads_the_state_of_torchs_layer(embed, packed: bool, seed: int) -> None:
    embed |= {"add_bias_kv": False, "add_zero_attn": False, "batch_first": True}
    embed |= {"kdim": None, "vdim": None} if packed else {"kdim": KDIM, "vdim": VDIM}
    theirs = drawn_layer(embed, seed)
    names = ("kdim", "vdim", "bias")
    ours = MultiHeadAttention(theirs.embed_dim, theirs.num_heads, **{name: embed[name] for name in names}).to(
        embed["dtype"]
    )
    nn.Sequential(ours).load_state_dict(nn.Sequential(theirs).state_dict())
    call = drawn_call(
        theirs,
        {
            "key_padding_mask": "bool",
            "attn_mask": "bool",
            "rank": 3,
            "batched": True,
            "inputs": "two",
            "need_weights": True,
            "average_attn_weights": False,
        },
    )
    mask = regard.functional.from_torch(call["key_padding_mask"], call["attn_mask"], num_heads=theirs.num_heads)
    inputs = [call[name] for name in ("query", "key", "value")]
    output, seen = ours(*inputs, mask=mask, observe=regard.Observe(weights=True))
    expected, weights = theirs(**call)
    close(output, expected)
    close(seen.weights, weights)


def test_multi_head_attention_refuses_keys_of_its_state_that_it_has_not() -> None:
    state = nn.MultiheadAttention(8, 2, add_bias_kv=True).state_dict()
    with pytest.raises(UnsupportedError, match=r"bias_k and bias_v .*TorchMultiheadAttention") as caught:
        MultiHeadAttention(8, 2).load_state_dict(state)
    assert "\n" not in str(caught.value)
    ours = MultiHeadAttention(8, 2)
    ours.load_state_dict(copy.deepcopy(ours).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        ours.load_state_dict(nn.MultiheadAttention(8, 2, bias=False).state_dict())
    ours.load_state_dict(nn.MultiheadAttention(8, 2).state_dict(), assign=True)
    parts = [projection.weight.untyped_storage() for projection in (ours.q_proj, ours.k_proj, ours.v_proj)]
    assert len({part.data_ptr() for part in parts}) == 3  # safetensors, for one, refuses parts of one storage
    missing = MultiHeadAttention(8, 2, bias=False).load_state_dict(
        nn.MultiheadAttention(8, 2).state_dict(), strict=False
    )
    assert not missing.missing_keys
    assert "q_proj.bias" in missing.unexpected_keys


STACKS = st.fixed_dictionaries(
    {
        "nhead": st.sampled_from([2, 3]),
        "num_encoder_layers": st.sampled_from([1, 2]),
        "num_decoder_layers": st.sampled_from([1, 2]),
        "activation": st.sampled_from(["relu", "gelu", torch.tanh]),
        "layer_norm_eps": st.sampled_from([1e-5, 1e-2]),
        "batch_first": st.booleans(),
        "norm_first": st.booleans(),
        "bias": st.booleans(),
        "dtype": st.sampled_from([torch.float32, torch.float64]),
    }
)
KINDS = st.sampled_from([None, "bool", "-inf", "float"])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:Support for mismatched")
@given(STACKS, st.tuples(*[KINDS] * 3), st.tuples(*[KINDS] * 3), st.booleans(), st.booleans(), SEEDS)
def test_transformers_of_torchs_give_what_they_gave(
    stack, masks, paddings, causal: bool, training: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    size, dtype = 6 * stack["nhead"], stack["dtype"]
    theirs = nn.Transformer(size, dim_feedforward=17, dropout=0.0, **stack).train(training)
    ours = regard.convert(copy.deepcopy(theirs))
    shapes = [(B, L, size), (B, S, size)]
    call = dict(zip(("src", "tgt"), [torch.randn(shape, dtype=dtype) for shape in shapes], strict=True))
    if not stack["batch_first"]:
        call = {name: x.transpose(0, 1) for name, x in call.items()}
    for name, kind, shape in zip(("src", "tgt", "memory"), masks, [(L, L), (S, S), (S, L)], strict=True):
        call[f"{name}_mask"] = drawn_mask(kind, shape, dtype)
    for name, kind, length in zip(("src", "tgt", "memory"), paddings, (L, S, L), strict=True):
        call[f"{name}_key_padding_mask"] = drawn_mask(kind, (B, length), dtype)
    if causal:
        call |= {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(S, dtype=dtype), "tgt_is_causal": True}
    answers = []
    for model in (ours, theirs):
        output = model(**call)
        output.square().mean().backward()
        answers.append((output.detach(), {name: x.grad for name, x in model.named_parameters()}))
    close(answers[0][0], answers[1][0], GRADIENTS)
    for name, gradient in answers[1][1].items():
        close(answers[0][1][name], gradient, GRADIENTS)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(("norm_first", "batched"), [*itertools.product([True, False], [True, False])])
def test_layers_and_stacks_of_torchs_with_norms_of_their_own(norm_first: bool, batched: bool) -> None:
    torch.manual_seed(0)
    lead = (B,) if batched else ()
    options = {"norm_first": norm_first, "dropout": 0.0, "batch_first": True}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 17, **options), 2, norm=nn.LayerNorm(12))
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 17, **options), 2, norm=nn.RMSNorm(12))
    custom = nn.Transformer(12, 2, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    source, target = torch.randn(*lead, L, 12), torch.randn(*lead, S, 12)
    for model, inputs in [
        (encoder, (source,)),
        (encoder.layers[0], (source,)),
        (decoder, (target, source)),
        (decoder.layers[1], (target, source)),
        (custom, (source, target)),
    ]:
        for training in (True, False):
            theirs = copy.deepcopy(model).train(training)
            close(regard.convert(copy.deepcopy(theirs))(*inputs), theirs(*inputs), 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_so(dtype: torch.dtype) -> None:
    layer = drawn_layer({"num_heads": 2, "batch_first": True}, 0)
    x = torch.randn(B, L, 8)
    expected, expected_weights = layer(x, x, x)
    half = x.to(dtype)
    # A mask in float32, as torch's encoder makes none and its users do, is narrowed.
    output, weights = regard.convert(layer).to(dtype)(half, half, half, attn_mask=torch.zeros(L, L))
    assert output.dtype == weights.dtype == dtype
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.1)
    torch.testing.assert_close(weights.float(), expected_weights, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("sizes", [(0, L, S), (B, 0, S), (B, L, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_sizes_of_zero(sizes: tuple[int, int, int], masked: bool) -> None:
    theirs = drawn_layer({"num_heads": 2, "batch_first": True}, 0)
    query, key = torch.randn(sizes[0], sizes[1], 8), torch.randn(sizes[0], sizes[2], 8)
    masks = {}
    if masked:
        masks["attn_mask"] = torch.zeros(sizes[0] * 2, *sizes[1:], dtype=torch.bool)
        masks["key_padding_mask"] = torch.zeros(sizes[0], sizes[2], dtype=torch.bool)
    expected = theirs(query, key, key, **masks)
    for found, right in zip(regard.convert(theirs)(query, key, key, **masks), expected, strict=True):
        close(found, right)


X = torch.zeros(3, 5, 8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"query": torch.zeros(3, 5, 4)}, ArgumentError, r"query .*size 8; got shape \(3, 5, 4\)"),
        ({"key": torch.zeros(5, 8)}, ArgumentError, r"key must have 3 axes.*got shape \(5, 8\)"),
        ({"key": torch.zeros(3, 6, 8)}, ArgumentError, r"agree in length.*key \(3, 6, 8\)"),
        ({"query": torch.zeros(2, 5, 8)}, ArgumentError, r"in batch size; got query \(2, 5, 8\)"),
        ({"is_causal": True}, ArgumentError, "needs it; got attn_mask=None"),
        (
            {"attn_mask": torch.zeros(5, 3).bool()},
            ArgumentError,
            r"attn_mask must be \(5, 5\) or \(6, 5, 5\), got \(5, 3\)",
        ),
        ({"attn_mask": torch.zeros(5, 5).long()}, ArgumentError, r"attn_mask must be bool .* got torch.int64"),
        ({"attn_mask": torch.zeros(5, 5).half()}, ArgumentError, r"one dtype, got torch.float32 .* torch.float16"),
        (
            {"key_padding_mask": torch.zeros(5, 5).bool()},
            ArgumentError,
            r"key_padding_mask must be \(3, 5\), got \(5, 5\)",
        ),
        ({"key_padding_mask": [True]}, ArgumentError, r"key_padding_mask must be bool .* got list"),
        (
            {"query": torch.nested.nested_tensor([X[0]], layout=torch.jagged)},
            UnsupportedError,
            "nested tensors are not supported",
        ),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call: dict[str, Any], error: type[Exception], message: str) -> None:
    layer = TorchMultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(error, match=message) as caught:
        layer(**{"query": X, "key": X, "value": X} | call)
    assert "\n" not in str(caught.value)
