"""Faults that people reported of other libraries' transformers, by the ids of the list of cases."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, UnsupportedError
from regard.functional import Observe, causal, padding
from regard.nn import BlockConfig, KeyValueCache, MultiHeadAttention, TransformerDecoder, TransformerEncoder
from regard.positions import ALiBi, Learned, Rotary, Shaw, Sinusoidal, T5Bias

B, T, TK, HEADS, SIZE = 2, 3, 5, 2, 4
DIM = HEADS * SIZE
WEIGHTS = Observe(weights=True)
POSITIONS = {
    "none": None,
    "rotary": lambda: Rotary(SIZE),
    "alibi": lambda: ALiBi(HEADS),
    "t5": lambda: T5Bias(HEADS),
    "shaw": lambda: Shaw(SIZE, 2),
}


class Encoder(nn.Module):
    """A causal encoder and a decoder are called alike: ``model(x, keep)``, weights of the last block on request."""

    def __init__(self, causal: bool = True, **options: Any) -> None:
        super().__init__()
        self.stack = TransformerEncoder(BlockConfig(DIM, HEADS, 7, **{"dropout": 0.0, **options}), 2)
        self.causal = causal

    def forward(self, x: Tensor, keep: Tensor | None = None, observe: Observe | None = None) -> Any:
        mask = causal() if self.causal else None
        if keep is not None:
            mask = padding(keep) if mask is None else mask & padding(keep)
        answer = self.stack(x, mask=mask, observe=observe)
        return answer if observe is None else (answer[0], answer[1][-1].weights)


class Decoder(nn.Module):
    """The memory is that of a fixed source, of which the second example's has nothing in it that is kept."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.stack = TransformerDecoder(BlockConfig(DIM, HEADS, 7, **{"dropout": 0.0, **options}), 2)
        generator = torch.Generator().manual_seed(4)
        self.register_buffer("memory", torch.randn(4, TK, DIM, generator=generator), persistent=False)

    def forward(self, x: Tensor, keep: Tensor | None = None, observe: Observe | None = None) -> Any:
        kept = torch.arange(TK) < torch.tensor([3, 0, 5, 1])[: len(x), None]
        answer = self.stack(
            x,
            self.memory[: len(x)].to(x.dtype),
            mask=None if keep is None else padding(keep),
            memory_mask=padding(kept),
            observe_self=observe,
        )
        return answer if observe is None else (answer[0], answer[1].self_attention[-1].weights)


KINDS = {"encoder": Encoder, "decoder": Decoder}
any_model = pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda k=kind, p=positions, n=first, **o: KINDS[k](positions=p, norm_first=n, **o), id=f"{kind}-{name}"
        )
        for (kind, (name, positions)), first in zip(
            itertools.product(KINDS, POSITIONS.items()), itertools.cycle([True, False, True]), strict=False
        )
    ],
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def grads(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@any_model
@pytest.mark.parametrize("observe", [None, WEIGHTS])
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_m1_an_example_whose_keys_are_all_masked(make, observe: Observe | None) -> None:
    model, x = make(), torch.randn(B, T, DIM)
    keep = torch.tensor([[True, True, False], [False, False, False]])
    with torch.autograd.detect_anomaly():
        answer = model(x, keep, observe)
        output = answer if observe is None else answer[0]
        assert output.isfinite().all()
        assert observe is None or not answer[1][1].any()
        together = grads(model, output[0].square().sum())
    alone = grads(model, model(x[:1], keep[:1]).square().sum())
    assert together.keys() == alone.keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, alone[name], msg=lambda m, n=name: f"{n}: {m}")
    assert all(gradient.isfinite().all() for gradient in grads(model, model(x, keep).square().sum()).values())


def test_m1_a_memory_with_nothing_in_it() -> None:
    model = Decoder()
    x = torch.randn(B, T, DIM)
    output, seen = model.stack(x, model.memory[:B], memory_mask=padding(lengths=[3, 0]), observe=WEIGHTS)
    assert output.isfinite().all()
    for looked in seen.cross_attention:
        assert not looked.weights[1].any()
        torch.testing.assert_close(looked.weights[0].sum(-1), torch.ones(HEADS, T))


@any_model
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("observe", [None, WEIGHTS])
def test_m4_causal_on_every_path(make, padded: bool, dropout: float, observe: Observe | None) -> None:
    model, x = make(dropout=dropout), torch.randn(B, T, DIM)
    keep = torch.tensor([[True, True, False], [False, True, True]]) if padded else None
    changed, outputs = x.clone(), []
    changed[:, -1] += 1
    for given in (x, changed):
        torch.manual_seed(1)
        answer = model(given, keep, observe)
        outputs.append(answer if observe is None else answer[0])
        assert observe is None or not (answer[1] * torch.ones(T, T).triu(1)).any()
    assert torch.equal(outputs[0][:, :-1], outputs[1][:, :-1])
    assert not torch.equal(outputs[0][:, -1], outputs[1][:, -1])


@any_model
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_n1_masked_weights_are_zero_in_every_dtype(make, dtype: torch.dtype) -> None:
    model, x = make().to(dtype), torch.randn(B, T, DIM, dtype=dtype)
    keep = torch.tensor([[False, True, True], [False, False, True]])
    output, weights = model(x, keep, WEIGHTS)
    assert output.dtype == dtype
    assert output.isfinite().all()
    allowed = keep[:, None, None] & torch.ones(T, T).tril().bool()
    assert not (weights * ~allowed).any()
    total = allowed.any(-1).to(weights).expand(weights.shape[:-1])
    torch.testing.assert_close(weights.sum(-1), total, rtol=0, atol=4e-3)


@any_model
def test_a1_bool_masks_under_autocast_and_no_others(make) -> None:
    model, x = make(), torch.randn(B, T, DIM)
    keep = torch.tensor([[True, True, False], [True, False, True]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = model(x, keep, WEIGHTS)
    assert not (weights * ~keep[:, None, None]).any()
    torch.testing.assert_close(output.float(), model(x, keep), rtol=0.1, atol=0.1)
    for dtype in (torch.float16, torch.int64):
        with pytest.raises(ArgumentError, match="bool"):
            model(x, keep.to(dtype))


@any_model
def test_d1_dropout_in_evaluation(make) -> None:
    model, plain, x = make(dropout=0.5), make(), torch.randn(B, T, DIM)
    plain.load_state_dict(model.state_dict())
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    assert torch.equal(model(x), plain(x))
    output = make(dropout=1.0)(x)
    assert output.isfinite().all()


@any_model
def test_d2_weights_are_those_before_dropout(make) -> None:
    _, weights = make(dropout=0.5)(torch.randn(B, T, DIM), None, WEIGHTS)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@any_model
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_e1_second_and_forward_derivatives_by_the_reference(make) -> None:
    model, x = make(impl="reference", activation="gelu").double(), torch.randn(1, T, DIM).double()
    keep = torch.tensor([[False, True, True]])
    assert torch.autograd.gradcheck(
        lambda x: model(x, keep), (x.requires_grad_(),), check_forward_ad=True, fast_mode=True
    )
    assert torch.autograd.gradgradcheck(lambda x: model(x, keep), (x,), fast_mode=True)
    xs = torch.randn(2, 1, T, DIM).double()
    torch.testing.assert_close(torch.vmap(model)(xs), torch.stack([model(x) for x in xs]))


def test_e1_a_fused_path_says_which_switch_to_use() -> None:
    x = torch.randn(B, T, DIM, requires_grad=True)
    (gradient,) = torch.autograd.grad(Encoder(impl="sdpa")(x).square().sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match='use impl="reference"'):
        gradient.sum().backward()


@any_model
def test_e2_training_evaluation_and_inference_agree(make) -> None:
    model, x = make(), torch.randn(B, T, DIM)
    for keep in (None, torch.tensor([[True, True, False], [True, True, True]])):
        expected = model.train()(x, keep).detach()
        for mode, observe in itertools.product(["train", "eval", "no_grad", "inference_mode"], [None, WEIGHTS]):
            model.train(mode == "train")
            with torch.inference_mode(mode == "inference_mode"), torch.set_grad_enabled(mode in ("train", "eval")):
                answer = model(x, keep, observe)
            output = answer if observe is None else answer[0]
            torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@any_model
@pytest.mark.parametrize("absolute", [None, lambda: Sinusoidal(DIM), lambda: Learned(9, DIM)], ids=["", "sin", "learn"])
def test_p1_left_padding_does_not_move_the_tokens(make, absolute) -> None:
    model, alone, junk = make(), torch.randn(1, 2, DIM), torch.randn(1, 2, DIM)
    positions = nn.Identity() if absolute is None else absolute()
    keep = torch.tensor([[False, False, True, True]])
    padded = torch.cat([junk, alone], 1)
    given = padded if absolute is None else positions(padded, keep=keep)
    torch.testing.assert_close(model(given, keep)[:, 2:], model(positions(alone)))


def test_p2_rotary_of_an_odd_size_names_it() -> None:
    with pytest.raises(ArgumentError, match="5"):
        TransformerEncoder(BlockConfig(10, 2, positions=lambda: Rotary(5)), 1)


def test_p3_longer_than_what_is_learned_also_while_generating() -> None:
    learned, sinusoidal, stack = Learned(10, DIM), Sinusoidal(DIM), Decoder().stack
    x, memory = torch.randn(1, 11, DIM), torch.randn(1, TK, DIM)
    state = stack.start(memory)
    with torch.no_grad():
        steps = [stack(sinusoidal(token, offset=state.length), state) for token in x.split(1, 1)]
        torch.testing.assert_close(torch.cat(steps, 1), stack(sinusoidal(x), memory))
    with pytest.raises(ArgumentError, match="12 positions needed, but Learned has max_len=10"):
        learned(x[:, :1], offset=state.length)


@any_model
def test_b1_the_batch_comes_first(make) -> None:
    model, x = make(), torch.randn(3, 3, DIM)
    changed = x.clone()
    changed[1] += 1
    assert torch.equal(model(changed)[[0, 2]], model(x)[[0, 2]])


@any_model
def test_c1_a_checkpoint_holds_parameters_alone(make) -> None:
    model, x = make(), torch.randn(B, T, DIM)
    expected = model(x)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    compiled, fresh = copy.deepcopy(model), make()
    compiled.compile(backend="eager")
    fresh.load_state_dict(compiled.state_dict(), strict=True)
    assert torch.equal(fresh(x), expected)


@any_model
def test_i1_blocks_do_not_begin_equal(make) -> None:
    model = make()
    again = copy.deepcopy(model)
    for layer in again.stack.layers:
        layer.reset_parameters()
    blocks = [*model.stack.layers, *again.stack.layers]
    for one, other in itertools.combinations(blocks, 2):
        for name, parameter in one.named_parameters():
            if not name.endswith("bias") and "norm" not in name:
                assert not torch.equal(parameter, dict(other.named_parameters())[name]), name


def test_m3_a_new_query_sees_all_keys_of_a_cache() -> None:
    layer = MultiHeadAttention(1, 1, causal=True, bias=False)
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
            projection.weight.fill_(1.0)
        cache = KeyValueCache()
        cache.append(torch.zeros(1, 1, 4, 1), torch.arange(4.0).view(1, 1, 4, 1))
        assert layer(torch.full((1, 1, 1), 0.0), cache=cache).item() == pytest.approx((0 + 1 + 2 + 3 + 0) / 5)
