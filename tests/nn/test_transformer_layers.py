"""Encoder and decoder against torch's with the same weights, and what they have that torch's have not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.functional import Observe, causal, dense, from_torch, padding
from regard.nn import (
    BlockConfig,
    DecoderBlock,
    EncoderBlock,
    KeyValueCache,
    MultiHeadAttention,
    TransformerDecoder,
    TransformerEncoder,
)
from regard.positions import ALiBi, Shaw, T5Bias

B, TQ, TK, HEADS, SIZE, HIDDEN, LAYERS = 3, 7, 5, 2, 4, 13, 2
DIM = HEADS * SIZE
PLAIN = BlockConfig(DIM, HEADS, HIDDEN, dropout=0.0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def torchs(config: BlockConfig, *, decoder: bool = False) -> nn.Module:
    """torch's stack of the same make; a norm at its end where ours has one."""
    layer = (nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer)(
        config.dim,
        config.heads,
        config.feedforward,
        config.dropout,
        config.activation,
        config.norm_eps,
        batch_first=True,
        norm_first=config.norm_first,
        bias=config.bias,
    )
    norm = nn.LayerNorm(config.dim, config.norm_eps, bias=config.bias) if config.norm_first else None
    if decoder:
        stack: nn.Module = nn.TransformerDecoder(layer, LAYERS, norm)
    else:
        stack = nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack


def ours(theirs: nn.Module, config: BlockConfig) -> nn.Module:
    """Our stack with torch's weights: the names are torch's but for ``cross_attn``."""
    decoder = isinstance(theirs, nn.TransformerDecoder)
    stack = (TransformerDecoder if decoder else TransformerEncoder)(config, LAYERS)
    stack.load_state_dict({n.replace("multihead_attn", "cross_attn"): t for n, t in theirs.state_dict().items()})
    return stack.train(theirs.training)


def gradients_like_torchs(one: nn.Module) -> dict[str, Tensor]:
    """Gradients by torch's names, those of the three projections packed as torch has them."""
    named = {name.replace("cross_attn", "multihead_attn"): p.grad for name, p in one.named_parameters()}
    packed: dict[str, Any] = {}
    for name, gradient in named.items():
        if any(f"{x}_proj" in name for x in "qkv"):
            where, _, kind = name.rsplit(".", 2)
            packed.setdefault(f"{where}.in_proj_{kind}", []).append(gradient)
        else:
            packed[name] = gradient
    return {name: torch.cat(found) if isinstance(found, list) else found for name, found in packed.items()}


configs = st.builds(
    BlockConfig,
    dim=st.just(DIM),
    heads=st.just(HEADS),
    feedforward=st.just(HIDDEN),
    activation=st.sampled_from(["relu", "gelu"]),
    dropout=st.just(0.0),
    norm_first=st.booleans(),
    norm_eps=st.sampled_from([1e-5, 1e-2]),
    bias=st.booleans(),
)


def assert_equal_with_gradients(theirs: nn.Module, mine: nn.Module, expected: Tensor, got: Tensor, xs: list) -> None:
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn(expected.shape)
    of_inputs = [torch.autograd.grad((y * weight).sum(), xs, retain_graph=True) for y in (got, expected)]
    torch.testing.assert_close(*of_inputs, atol=1e-4, rtol=1e-4)
    for stack, output in ((theirs, expected), (mine, got)):
        (output * weight).sum().backward()
        assert all(p.grad is not None for p in stack.parameters())
    found = gradients_like_torchs(mine)
    assert found.keys() == dict(theirs.named_parameters()).keys()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@given(configs, st.sampled_from(["none", "causal", "keys", "both", "heads"]), st.booleans())
def test_an_encoder_is_torchs(config: BlockConfig, mask: str, training: bool) -> None:
    theirs = torchs(config).train(training)
    mine = ours(theirs, config)
    x = torch.randn(B, TQ, DIM, requires_grad=True)
    hidden = torch.arange(TQ) >= torch.tensor([[TQ], [3], [5]]) if mask in ("keys", "both") else None
    above = torch.ones(TQ, TQ).triu(1).bool() if mask in ("causal", "both") else None
    if mask == "heads":
        above = (torch.rand(B * HEADS, TQ, TQ) < 0.4) & ~torch.eye(TQ).bool()
    expected = theirs(x, mask=above, src_key_padding_mask=hidden)
    got = mine(x, mask=from_torch(hidden, above, num_heads=HEADS))
    assert_equal_with_gradients(theirs, mine, expected, got, [x])


@given(configs, st.sampled_from(["none", "keys", "both"]), st.booleans())
def test_a_decoder_is_torchs(config: BlockConfig, mask: str, training: bool) -> None:
    theirs = torchs(config, decoder=True).train(training)
    mine = ours(theirs, config)
    x, memory = (torch.randn(B, count, DIM, requires_grad=True) for count in (TQ, TK))
    above, hidden, targets = torch.ones(TQ, TQ).triu(1).bool(), None, None
    if mask != "none":
        hidden = torch.arange(TK) >= torch.tensor([[TK], [1], [3]])
    if mask == "both":
        targets = torch.arange(TQ) >= torch.tensor([[TQ], [3], [5]])
    expected = theirs(
        x, memory, tgt_mask=above, tgt_key_padding_mask=targets, memory_key_padding_mask=hidden, tgt_is_causal=False
    )
    got = mine(x, memory, mask=from_torch(targets), memory_mask=from_torch(hidden))
    assert_equal_with_gradients(theirs, mine, expected, got, [x, memory])


@pytest.mark.parametrize("norm_first", [True, False])
def test_without_a_batch(norm_first: bool) -> None:
    config = dataclasses.replace(PLAIN, norm_first=norm_first)
    theirs = torchs(config).eval()
    x = torch.randn(TQ, DIM)
    torch.testing.assert_close(ours(theirs, config)(x), theirs(x))
    theirs, memory = torchs(config, decoder=True).eval(), torch.randn(TK, DIM)
    above = torch.ones(TQ, TQ).triu(1).bool()
    torch.testing.assert_close(ours(theirs, config)(x, memory), theirs(x, memory, tgt_mask=above))


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_dropout_falls_where_torchs_falls(decoder: bool, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config, fallen = dataclasses.replace(PLAIN, dropout=0.4), []
    theirs = torchs(config, decoder=decoder).train(training)
    mine, x, drop = ours(theirs, config), torch.randn(B, TQ, DIM), nn.functional.dropout

    def recorded(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        fallen.append((tuple(x.shape), p, training))
        return drop(x, p, training)

    monkeypatch.setattr(nn.functional, "dropout", recorded)
    monkeypatch.setattr("regard.nn._dropout.dropout", lambda x, p: recorded(x, p))
    calls = []
    for stack in (theirs.requires_grad_(True), mine):
        stack(x, x) if decoder else stack(x)
        calls.append([call for call in fallen if call[2]])
        fallen.clear()
    assert calls[0] == calls[1]
    assert len(calls[0]) == LAYERS * (4 if decoder else 3) * training
    attentions = [layer for layer in mine.modules() if isinstance(layer, MultiHeadAttention)]
    assert all(layer.dropout == 0.4 for layer in attentions)
    assert len(attentions) == LAYERS * (2 if decoder else 1)


@pytest.mark.parametrize("norm_first", [True, False])
def test_what_is_dropped_whole_leaves_the_way_past(norm_first: bool) -> None:
    config, x = dataclasses.replace(PLAIN, dropout=1.0, norm_first=norm_first), torch.randn(B, TQ, DIM)
    past, expected = nn.LayerNorm(DIM), x
    for _ in range(1 if norm_first else 3 * LAYERS):
        expected = past(expected)
    torch.testing.assert_close(TransformerDecoder(config, LAYERS)(x, x), expected)


def test_what_blocks_are_made_of_and_how_they_begin() -> None:
    decoder = TransformerDecoder(dataclasses.replace(PLAIN, positions=lambda: Shaw(SIZE, 2)), 2, memory_dim=17)
    shapes = {name: tuple(p.shape) for name, p in decoder.layers[0].named_parameters()}
    assert shapes["cross_attn.k_proj.weight"] == (DIM, 17)
    assert shapes["linear1.weight"] == (HIDDEN, DIM)
    assert len(decoder.state_dict()) == len(list(decoder.parameters()))
    assert EncoderBlock(BlockConfig(DIM, HEADS)).linear1.out_features == 4 * DIM
    for name, parameter in decoder.named_parameters():
        if "norm" in name or name.endswith("bias"):
            assert (parameter == (1.0 if name.endswith("weight") else 0.0)).all(), name
        elif "positions" not in name:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.8 * bound < parameter.abs().max() <= bound, name
    before = {name: p.clone() for name, p in decoder.named_parameters()}
    for layer in decoder.layers:
        layer.reset_parameters()
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, before[name]) == ("norm" in name or name.endswith("bias")), name


def test_positions_are_made_once_a_block_or_shared() -> None:
    own = TransformerEncoder(dataclasses.replace(PLAIN, positions=lambda: T5Bias(HEADS)), 2)
    first, second = (layer.self_attn.positions.weight for layer in own.layers)
    assert not torch.equal(first, second)
    shared = T5Bias(HEADS)
    trained = shared.weight.detach().clone()
    stack = TransformerDecoder(dataclasses.replace(PLAIN, positions=lambda: shared), 2)
    assert all(layer.self_attn.positions is shared for layer in stack.layers)
    assert all(layer.cross_attn.positions is None for layer in stack.layers)
    assert torch.equal(shared.weight, trained), "to build a layer does not draw what it is given anew"


def test_what_is_observed_in_each_block() -> None:
    encoder, x = TransformerEncoder(PLAIN, 3), torch.randn(B, TQ, DIM)
    output, seen = encoder(x, mask=causal(), observe=Observe(weights=True))
    assert torch.equal(output, encoder(x, mask=causal()))
    assert [looked.weights.shape for looked in seen] == [(B, HEADS, TQ, TQ)] * 3
    torch.testing.assert_close(
        seen[0].weights, encoder.layers[0].self_attn(x, mask=causal(), observe=Observe(weights=True))[1].weights
    )
    decoder, memory = TransformerDecoder(PLAIN, 3), torch.randn(B, TK, DIM)
    expected = decoder(x, memory)
    for asked in ({"observe"}, {"observe_self"}, {"observe", "observe_self"}):
        output, seen = decoder(x, memory, **dict.fromkeys(asked, Observe(weights=True)))
        assert torch.equal(output, expected)
        assert [s.weights.shape for s in seen.cross_attention] == [(B, HEADS, TQ, TK)] * 3 * ("observe" in asked)
        assert [s.weights.shape for s in seen.self_attention] == [(B, HEADS, TQ, TQ)] * 3 * ("observe_self" in asked)
    assert not any((looked.weights * torch.ones(TQ, TQ).triu(1)).any() for looked in seen.self_attention)


def test_sequences_with_one_memory_stand_side_by_side() -> None:
    decoder = TransformerDecoder(PLAIN, 2).eval()
    x, memory, mask = torch.randn(B * 2, TQ, DIM), torch.randn(B, TK, DIM), padding(lengths=[5, 2, 3])
    output, seen = decoder(x, memory, memory_mask=mask, observe=Observe(weights=True))
    twice = padding(lengths=mask.lengths[0].repeat_interleave(2))
    expected, whole = decoder(x, memory.repeat_interleave(2, 0), memory_mask=twice, observe=Observe(weights=True))
    torch.testing.assert_close(output, expected)
    side_by_side = seen.cross_attention[1].weights
    assert side_by_side.shape == (B, HEADS, 2 * TQ, TK)
    apart = whole.cross_attention[1].weights.unflatten(0, (B, 2)).transpose(1, 2).flatten(2, 3)
    torch.testing.assert_close(side_by_side, apart)
    torch.testing.assert_close(decoder(x, decoder.start(memory, mask=mask)), expected)


def test_a_state_that_was_selected_from_stays_as_it_is() -> None:
    decoder, memory = TransformerDecoder(PLAIN, 2).eval(), torch.randn(B, TK, DIM)
    x = torch.randn(B, 3, DIM)
    with torch.no_grad():
        state = decoder.start(memory)
        empty = state.select(torch.zeros(B, 2, dtype=torch.int64))  # before any token there is nothing to select
        assert empty.length == 0
        decoder(x[:, :2], state)
        other = state.select(torch.zeros(B, 2, dtype=torch.int64))
        assert other.cross is state.cross, "the memory's keys are not copied"
        decoder(torch.randn(2 * B, 1, DIM), other)
        assert (state.length, other.length) == (2, 3)
        torch.testing.assert_close(decoder(x[:, 2:], state), decoder(x, memory)[:, 2:])


DECODER = TransformerDecoder(PLAIN, 2)
X, MEMORY = torch.zeros(4, 3, DIM), torch.zeros(2, 5, DIM)


def read() -> Any:
    state = DECODER.start(MEMORY)
    DECODER(X, state)
    return state


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BlockConfig(8, 2, 0), "feedforward must be at least 1, got 0"),
        (lambda: BlockConfig(8, 2, activation="tanh"), "activation must be 'relu' or 'gelu', got 'tanh'"),
        (lambda: BlockConfig(8, 2, dropout=1.5), "from 0 to 1, got 1.5"),
        (lambda: EncoderBlock(BlockConfig(8, 3)), "multiple of num_heads, got 8 and 3"),
        (lambda: BlockConfig(8, 2, positions=ALiBi(2)), "got ALiBi itself: use lambda: ALiBi"),
        (lambda: DECODER(X, None), "memory must be a tensor, .*got NoneType"),
        (lambda: DECODER(X, MEMORY[0]), r"key must have 3 axes, .*got shape \(5, 8\)"),
        (lambda: DECODER(X, DECODER.start(MEMORY[0])), "the same number of axes"),
        (lambda: TransformerEncoder(PLAIN, 0), "num_layers must be at least 1, got 0"),
        (lambda: TransformerDecoder(PLAIN, -1), "num_layers must be at least 1, got -1"),
        (lambda: TransformerEncoder(PLAIN, 2)(X, caches=[KeyValueCache()]), "caches must be 2, .*got 1"),
        (lambda: DECODER(X[:3], MEMORY), "as many sequences as the memory, 2, or a multiple; got 3"),
        (lambda: DECODER(X[:3], DECODER.start(MEMORY)), "the memory, 2, or a multiple; got 3"),
        (lambda: DECODER(X, read(), memory_mask=causal()), r"give it to start\(memory, mask=...\)"),
        (lambda: DECODER.start(MEMORY, mask=torch.ones(2, 5).bool()), r"such as padding\(keep\), got Tensor"),
        (lambda: DECODER(X, DECODER.start(MEMORY, mask=padding(lengths=[1]))), r"must be \(B,\) = \(2,\), got \(1,\)"),
        (lambda: DECODER(X, MEMORY, mask=dense(torch.ones(3, 2).bool())), r"mask table must be \(Tq, Tk\) = \(3, 3\)"),
        (lambda: DECODER.start(MEMORY[..., 1:]), r"key must have 3 axes, the last of size 8; got shape \(2, 5, 7\)"),
        (lambda: read().select(torch.zeros(3, 2).long()), r"\(B, K\) with B = 2 memories, got \(3, 2\)"),
        (lambda: read().select(torch.zeros(2, 2)), "parents must be integers, .*got torch.float32"),
        (lambda: read().select([0, 1]), r"parents must be a tensor of integers, \(B, K\) or \(B,\), got list"),
        (lambda: read().select(torch.tensor([[0, 9], [0, 0]])), r"parents must be from 0 to \d, got 0 to 9"),
        (lambda: read().select(torch.tensor([0, 7])), "parents must be from 0 to 1, got 0 to 7"),
        (lambda: read().select(torch.zeros(2, 2, 2).long()), r"parents must be integers, .*\(2, 2, 2\)"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_block_of_a_decoder_by_itself() -> None:
    block, x, memory = DecoderBlock(PLAIN), torch.randn(B, TQ, DIM), torch.randn(B, TK, DIM)
    output, looked = block(x, memory, observe=Observe(max=True))
    assert looked.self_attention is None
    assert looked.cross_attention.max.shape == (B, HEADS, TQ)
    torch.testing.assert_close(block(x, block.cross_attn.project(memory)), output)
