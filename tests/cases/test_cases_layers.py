"""Faults that people reported of other libraries' layers, by the ids of the list of cases."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.functional import Observe, causal, from_torch, padding
from regard.nn import BahdanauAttention, CrossAttention, LuongAttention, MultiHeadAttention, SelfAttention
from regard.positions import Learned, Sinusoidal, sinusoidal

SCORES = ["dot", "scaled_dot", "general", "additive"]
MIXED = ["scaled_dot", "additive", "general", "additive"]
B, T, DIM, HEADS = 2, 3, 8, 4
WEIGHTS = Observe(weights=True)
LAYERS = {
    **{f"self-{score}": lambda score=score, **o: SelfAttention(DIM, score=score, **o) for score in SCORES},
    **{f"heads-{score}": lambda score=score, **o: MultiHeadAttention(DIM, HEADS, score=score, **o) for score in SCORES},
    "heads-mixed": lambda **o: MultiHeadAttention(DIM, HEADS, score=MIXED, kv_heads=2, **o),
}
any_layer = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def row_grads(layer: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    layer.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters() if parameter.grad is not None}


def context_of(layer: nn.Module, output: torch.Tensor) -> torch.Tensor:
    """Return the output of attention, without the bias of the output projection."""
    return output - layer.out_proj.bias if isinstance(layer, MultiHeadAttention) else output


@any_layer
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("observe", [None, WEIGHTS])
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_m1_an_example_whose_keys_are_all_masked(name: str, training: bool, observe: Observe | None) -> None:
    layer = LAYERS[name]().train(training)
    x = torch.randn(B, T, DIM)
    mask = padding(torch.tensor([[True, True, False], [False, False, False]]))
    with torch.autograd.detect_anomaly():
        answer = layer(x, mask=mask, observe=observe)
        output = answer if observe is None else answer[0]
        assert not context_of(layer, output)[1].any()
        if observe is not None:
            assert not answer[1].weights[1].any()
            torch.testing.assert_close(answer[1].weights[0].sum(-1), torch.ones(answer[1].weights.shape[1:3]))
        together = row_grads(layer, output[0].square().sum())
    alone = row_grads(layer, layer(x[:1], mask=padding(torch.tensor([[True, True, False]]))).square().sum())
    assert together.keys() == alone.keys()
    for key, gradient in together.items():
        torch.testing.assert_close(gradient, alone[key])
    everything = row_grads(layer, layer(x, mask=mask).square().sum())
    assert all(gradient.isfinite().all() for gradient in everything.values())


@any_layer
def test_m1_a_causal_band_with_padding_of_just_its_keys(name: str) -> None:
    layer = LAYERS[name](causal=True)
    x = torch.randn(B, T, DIM, requires_grad=True)
    output = layer(x, mask=padding(torch.tensor([[False, True, True], [True, True, True]])))
    context = context_of(layer, output)
    assert not context[0, 0].any()
    assert context[0, 1:].any()
    output.square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("score", [*SCORES, MIXED], ids=str)
def test_m1_one_head_masked(score: str | list[str]) -> None:
    layer = MultiHeadAttention(DIM, HEADS, score=score)
    x = torch.randn(B, T, DIM, requires_grad=True)
    mask = torch.ones(B, HEADS, T, T, dtype=torch.bool)
    mask[:, 1] = False
    output, seen = layer(x, mask=mask, observe=WEIGHTS)
    assert not seen.weights[:, 1].any()
    _, free = layer(x, observe=WEIGHTS)
    torch.testing.assert_close(seen.weights[:, [0, 2, 3]], free.weights[:, [0, 2, 3]])
    output.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@any_layer
def test_m1_a_bias_row_of_minus_infinity(name: str) -> None:
    layer = LAYERS[name]()
    x = torch.randn(B, T, DIM)
    bias = torch.zeros(B, 1, T, T)
    bias[1, :, 2] = -torch.inf
    bias.requires_grad_(True)
    output = layer(x, bias=bias)
    assert not context_of(layer, output)[1, 2].any()
    torch.testing.assert_close(output[0], layer(x)[0])
    output.square().sum().backward()
    assert bias.grad.isfinite().all()
    assert not bias.grad[1, :, 2].any()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("score", ["additive", "dot", "general"])
def test_m1_a_decoder_step_over_an_empty_sentence(score: str) -> None:
    layer = BahdanauAttention(DIM, DIM, 7) if score == "additive" else LuongAttention(DIM, DIM, score)
    memory = torch.randn(B, T, DIM)
    query = torch.randn(B, DIM, requires_grad=True)
    context, seen = layer(query, layer.project(memory), memory, mask=padding(lengths=[2, 0]), observe=WEIGHTS)
    assert not context[1].any()
    assert not seen.weights[1].any()
    context.square().sum().backward()
    assert query.grad.isfinite().all()
    assert not query.grad[1].any()


def test_m2_masks_of_torchs_layer_are_turned_round() -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    ours = MultiHeadAttention(DIM, HEADS)
    with torch.no_grad():
        for mine, weight in zip((ours.q_proj, ours.k_proj, ours.v_proj), theirs.in_proj_weight.chunk(3), strict=True):
            mine.weight.copy_(weight)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    x = torch.randn(B, T, DIM)
    hidden_keys = torch.tensor([[False, False, True], [False, False, False]])
    above = torch.ones(T, T).triu(1).bool()
    expected, _ = theirs(x, x, x, key_padding_mask=hidden_keys, attn_mask=above, need_weights=False)
    torch.testing.assert_close(ours(x, mask=from_torch(hidden_keys, above)), expected)
    per_head = (torch.rand(B * HEADS, T, T) < 0.5) & ~torch.eye(T).bool()
    expected, _ = theirs(x, x, x, attn_mask=per_head, need_weights=False)
    torch.testing.assert_close(ours(x, mask=from_torch(attn_mask=per_head, num_heads=HEADS)), expected)


def test_m3_causal_stands_the_last_query_at_the_last_key() -> None:
    layer = MultiHeadAttention(1, 1, causal=True, bias=False)
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
            projection.weight.fill_(1.0)
    for queries, keys, expected in [(1, 5, [2.0]), (2, 5, [1.5, 2.0]), (3, 2, [0.0, 0.0, 0.5])]:
        values = torch.arange(float(keys)).view(1, keys, 1)
        output = layer(torch.zeros(1, queries, 1), torch.zeros(1, keys, 1), values)
        assert output.flatten().tolist() == pytest.approx(expected)


@any_layer
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("observe", [None, WEIGHTS])
def test_m4_causal_on_every_path(
    name: str, batched: bool, padded: bool, dropout: float, observe: Observe | None
) -> None:
    layer = LAYERS[name](causal=True, dropout=dropout)
    x = torch.randn(B, T, DIM) if batched else torch.randn(T, DIM)
    keep = torch.tensor([[True, True, False], [False, True, True]])
    whole = keep[:, None, None] if batched else keep[1][None].expand(T, T)
    if not batched and name.startswith("heads"):
        whole = whole[None]
    changed = x.clone()
    changed[..., -1, :] += 1
    outputs = []
    for given in (x, changed):
        torch.manual_seed(1)
        answer = layer(given, mask=whole if padded else None, observe=observe)
        outputs.append(answer if observe is None else answer[0])
        if observe is not None:
            weights = answer[1].weights
            assert not (weights * torch.ones(T, T).triu(1)).any()
            assert not padded or not (weights * ~whole).any()
    assert torch.equal(outputs[0][..., :-1, :], outputs[1][..., :-1, :])


@any_layer
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    "shape", [(3, 1), (3, 3), (3,), (B, 3), (5, 1, 3, 3), (B, 3, 3, 3), (B, 1, 3, 4), (1, B, 1, 3, 3)]
)
def test_m4_a_mask_of_a_wrong_shape_always_raises(name: str, is_causal: bool, shape: tuple[int, ...]) -> None:
    layer = LAYERS[name](causal=is_causal)
    with pytest.raises(ArgumentError):
        layer(torch.randn(B, T, DIM), mask=torch.ones(shape, dtype=torch.bool))


@any_layer
@pytest.mark.parametrize("is_causal", [True, False])
def test_a1_bool_masks_under_autocast_and_no_others(name: str, is_causal: bool) -> None:
    layer = LAYERS[name](causal=is_causal)
    x = torch.randn(B, T, DIM)
    mask = torch.tensor([[True, True, False], [True, False, True]])[:, None, None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, seen = layer(x, mask=mask, observe=WEIGHTS)
    assert output.dtype == torch.bfloat16
    assert not (seen.weights * ~mask).any()
    torch.testing.assert_close(output.float(), layer(x, mask=mask), rtol=0.1, atol=0.1)
    for dtype in (torch.float16, torch.float32, torch.int64):
        with pytest.raises(ArgumentError, match="bool"):
            layer(x, mask=mask.to(dtype))


@any_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_n1_masked_weights_are_zero_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    layer = LAYERS[name](causal=True).to(dtype)
    x = torch.randn(B, T, DIM, dtype=dtype)
    keep = torch.tensor([[False, True, True], [False, False, True]])  # padded on the left: the first rows are empty
    output, seen = layer(x, mask=padding(keep), observe=WEIGHTS)
    assert output.dtype == dtype
    assert output.isfinite().all()
    allowed = keep[:, None, None] & torch.ones(T, T).tril().bool()
    assert not (seen.weights * ~allowed).any()
    torch.testing.assert_close(
        seen.weights.sum(-1), allowed.any(-1).to(seen.weights).expand(seen.weights.shape[:-1]), rtol=0, atol=4e-3
    )


@any_layer
def test_d1_dropout_in_evaluation_and_at_one(name: str) -> None:
    layer = LAYERS[name](dropout=0.5)
    plain = LAYERS[name]()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(B, T, DIM)
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer(x), plain(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    layer.dropout = 1.0
    output = layer(x)
    assert torch.equal(context_of(layer, output), torch.zeros(B, T, DIM))
    output.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@any_layer
def test_d2_weights_are_those_before_dropout(name: str) -> None:
    layer = LAYERS[name](dropout=0.5)
    _, seen = layer(torch.randn(B, T, DIM), observe=WEIGHTS)
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(seen.weights.shape[:-1]))


@any_layer
def test_e2_training_evaluation_and_inference_agree(name: str) -> None:
    layer = LAYERS[name]()
    x = torch.randn(B, T, DIM)
    whole = torch.tensor([[True, True, False], [True, True, True]])[:, None, None]
    for mask in (None, padding(whole[:, 0, 0]), whole, whole.expand(B, 1, T, T), causal()):
        expected = layer.train()(x, mask=mask).detach()
        modes = itertools.product(["train", "eval", "no_grad", "inference_mode"], [None, WEIGHTS])
        for mode, observe in modes:
            layer.train(mode == "train")
            with torch.inference_mode(mode == "inference_mode"), torch.set_grad_enabled(mode in ("train", "eval")):
                answer = layer(x, mask=mask, observe=observe)
            output = answer if observe is None else answer[0]
            assert output.shape == expected.shape
            torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


class Padded(nn.Module):
    """Positions and a layer over a padded batch."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.positions, self.layer = Sinusoidal(DIM), layer

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.layer(self.positions(x, keep=keep), mask=padding(keep))


@pytest.mark.parametrize("name", ["self-additive", "heads-scaled_dot", "heads-mixed"])
def test_e3_export_with_sizes_left_open(name: str) -> None:
    model = Padded(LAYERS[name](causal=True)).eval()
    sizes = {0: torch.export.Dim("B", min=2, max=64), 1: torch.export.Dim("T", min=2, max=64)}
    example = (torch.randn(3, 5, DIM), torch.ones(3, 5, dtype=torch.bool))
    exported = torch.export.export(model, example, dynamic_shapes={"x": sizes, "keep": sizes}).module()
    x, keep = torch.randn(4, 7, DIM), torch.rand(4, 7) < 0.6
    torch.testing.assert_close(exported(x, keep), model(x, keep))


def test_e3_compiled_as_one_graph() -> None:
    torch.compiler.reset()
    model = Padded(LAYERS["heads-mixed"](causal=True)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for batch, length in [(3, 5), (4, 7)]:
        x, keep = torch.randn(batch, length, DIM), torch.rand(batch, length) < 0.6
        torch.testing.assert_close(compiled(x, keep), model(x, keep))


@pytest.mark.parametrize("make", [lambda: Sinusoidal(DIM), lambda: Learned(9, DIM)], ids=["sinusoidal", "learned"])
@any_layer
def test_p1_left_padding_does_not_move_the_tokens(name: str, make) -> None:
    layer, positions = LAYERS[name](causal=True), make()
    alone = torch.randn(1, 2, DIM)
    padded = torch.cat([torch.randn(1, 2, DIM), alone], 1)
    keep = torch.tensor([[False, False, True, True]])
    expected = layer(positions(alone))
    output = layer(positions(padded, keep=keep), mask=padding(keep))
    torch.testing.assert_close(output[:, 2:], expected)


@pytest.mark.parametrize("dim", [1, 5])
def test_p2_sinusoids_of_odd_size(dim: int) -> None:
    assert sinusoidal(3, dim)[0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0][:dim]
    assert Sinusoidal(dim)(torch.zeros(1, 3, dim)).shape == (1, 3, dim)


def test_p3_longer_than_max_len() -> None:
    x = torch.zeros(1, 11, DIM)
    assert Sinusoidal(DIM)(x).shape == x.shape
    learned = Learned(10, DIM)
    with pytest.raises(ArgumentError, match="11 positions needed, but Learned has max_len=10"):
        learned(x)
    with pytest.raises(ArgumentError, match="11 positions needed, but Learned has max_len=10"):
        learned(x[:, :1], offset=10)  # the eleventh token while generating


@any_layer
def test_b1_the_batch_comes_first(name: str) -> None:
    layer = LAYERS[name](causal=True)
    x, order = torch.randn(3, 3, DIM), torch.tensor([2, 0, 1])
    model = nn.Sequential(Sinusoidal(DIM), layer)
    torch.testing.assert_close(model(x[order]), model(x)[order])
    changed = x.clone()
    changed[1] += 1
    assert torch.equal(model(changed)[[0, 2]], model(x)[[0, 2]])


@pytest.mark.parametrize("make", [lambda: BahdanauAttention(DIM, DIM, 7), lambda: LuongAttention(DIM, DIM)])
def test_b1_the_batch_comes_first_in_a_decoder_step(make) -> None:
    layer = make()
    query, memory, order = torch.randn(3, 3, DIM), torch.randn(3, 3, DIM), torch.tensor([2, 0, 1])
    expected = layer(query, layer.project(memory), memory)
    torch.testing.assert_close(layer(query[order], layer.project(memory[order]), memory[order]), expected[order])


@any_layer
def test_c1_a_checkpoint_holds_parameters_alone(name: str) -> None:
    model = nn.Sequential(Sinusoidal(DIM), LAYERS[name](causal=True))
    x = torch.randn(B, T, DIM)
    expected = model(x)
    assert set(model.state_dict()) == {key for key, _ in model.named_parameters()}
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager")
    compiled(x)
    fresh = nn.Sequential(Sinusoidal(DIM), LAYERS[name](causal=True))
    fresh.load_state_dict(compiled.state_dict(), strict=True)
    assert torch.equal(fresh(x), expected)
    assert set(model.state_dict()) == set(fresh.state_dict())


@any_layer
def test_i1_layers_do_not_begin_equal(name: str) -> None:
    layers = [LAYERS[name]() for _ in range(2)]
    layers.append(copy.deepcopy(layers[0]))
    layers[2].reset_parameters()
    for one, other in itertools.combinations(layers, 2):
        for key, parameter in one.named_parameters():
            if not key.endswith("bias"):
                assert not torch.equal(parameter, dict(other.named_parameters())[key]), key


@pytest.mark.parametrize("heads", [False, True])
def test_m1_and_d2_hold_across_sequences(heads: bool) -> None:
    layer = MultiHeadAttention(5, 1, kdim=DIM, dropout=0.5) if heads else CrossAttention(5, DIM, dropout=0.5)
    source = torch.randn(B, 4, DIM, requires_grad=True)
    output, seen = layer(torch.randn(B, T, 5), source, mask=padding(lengths=[4, 0]), observe=WEIGHTS)
    assert seen.weights.shape == (B, 1, T, 4)
    torch.testing.assert_close(seen.weights[0].sum(-1), torch.ones(1, T))
    assert not context_of(layer, output)[1].any()
    output.square().sum().backward()
    assert source.grad.isfinite().all()
    assert not source.grad[1].any()
