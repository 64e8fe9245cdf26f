"""Positions within attention: each against its formula written out in float64; only differences of places count."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from positions_by_hand import plain
from regard.positions import ALiBi, Relative, Rotary, Shaw, T5Bias, YarnScaling

HEADS, DIM = 3, 10
KINDS = {
    "rotary": lambda: Rotary(DIM),
    "interleaved": lambda: Rotary(DIM, interleaved=True, base=500.0),
    "partial": lambda: Rotary(DIM, features=4),
    "yarn": lambda: Rotary(DIM, scaling=YarnScaling(4.0, original_length=64)),
    "alibi": lambda: ALiBi(HEADS),
    "t5": lambda: T5Bias(HEADS, buckets=14, max_distance=19),
    "t5-causal": lambda: T5Bias(HEADS, buckets=7, max_distance=11, bidirectional=False),
    "shaw": lambda: Shaw(DIM, 2),
    "shaw-keys": lambda: Shaw(DIM, 3, values=False),
    "none": Relative,
}
every = pytest.mark.parametrize("kind", KINDS)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Attend(nn.Module):
    """Attention in its plainest form, with an encoding at the three points where one may act."""

    def __init__(self, positions: Relative) -> None:
        super().__init__()
        self.positions = positions

    def forward(self, query: Tensor, key: Tensor, value: Tensor, query_places: Tensor, key_places: Tensor) -> Tensor:
        turned, keys = self.positions.rotate(query, query_places), self.positions.rotate(key, key_places)
        scores = turned @ keys.mT / query.shape[-1] ** 0.5
        bias = self.positions.bias(query, query_places, key_places)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        output = weights @ value
        if self.positions.needs_weights:
            output = output + self.positions.of_weights(weights, query_places, key_places)
        return output


# --- what an example is made of


@dataclass
class Case:
    query: Tensor
    key: Tensor
    value: Tensor
    query_places: Tensor
    key_places: Tensor

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        return self.query_places, self.key_places

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value, *self.places

    def row(self, number: int) -> tuple[Tensor, ...]:
        """Return the case of one sequence alone."""
        at, to = (places[number] if places.dim() == 2 else places for places in self.places)
        return self.query[number], self.key[number], self.value[number], at, to


def make_case(seed: int = 0, batch: bool = True, sizes: tuple[int, int, int] = (2, 5, 7), far: int = 40) -> Case:
    generator = torch.Generator().manual_seed(seed)
    B, Tq, Tk = sizes

    def numbers(length: int) -> Tensor:
        return torch.randn(B, HEADS, length, DIM, generator=generator, dtype=torch.float64)

    def places(length: int) -> Tensor:
        return torch.randint(0, far, (B, length) if batch else (length,), generator=generator)

    return Case(numbers(Tq), numbers(Tk), numbers(Tk), places(Tq), places(Tk))


cases = st.builds(
    make_case, st.integers(0, 999), st.booleans(), st.sampled_from([(2, 5, 7), (3, 1, 11), (1, 13, 1)]), st.just(40)
)
kinds = st.sampled_from(list(KINDS))


@given(kinds, cases)
def test_output_and_gradients_are_those_of_the_formula(kind: str, case: Case) -> None:
    torch.manual_seed(0)
    layer = Attend(KINDS[kind]()).double()
    inputs = [x.requires_grad_() for x in (case.query, case.key, case.value, *layer.parameters())]
    output = layer(*case.all)
    expected = torch.stack([plain(layer.positions, *case.row(b)) for b in range(len(case.query))])
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)  # the tables of rotary are float32
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.autograd.grad(output, inputs, weights, materialize_grads=True)
    for gradient, other in zip(
        found, torch.autograd.grad(expected, inputs, weights, materialize_grads=True), strict=True
    ):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-5)


@given(kinds, cases, st.integers(-50_000, 50_000))
def test_only_differences_of_places_count(kind: str, case: Case, shift: int) -> None:
    torch.manual_seed(0)
    layer = Attend(KINDS[kind]())
    inputs = [x.float() for x in (case.query, case.key, case.value)]
    here, there = layer(*inputs, *case.places), layer(*inputs, *(places + shift for places in case.places))
    if isinstance(layer.positions, Rotary):
        torch.testing.assert_close(there, here, rtol=0, atol=5e-6)
    else:
        assert torch.equal(there, here)


@every
def test_distances_do_count(kind: str) -> None:
    case, layer = make_case(), Attend(KINDS[kind]()).double()
    moved = layer(*case.all[:3], case.query_places + 1, case.key_places)
    assert torch.equal(moved, layer(*case.all)) is (kind == "none")


@given(st.sampled_from(["rotary", "interleaved", "partial", "yarn"]), cases)
def test_rotary_keeps_norms(kind: str, case: Case) -> None:
    rotary = KINDS[kind]()
    turned = rotary.rotate(case.query, case.query_places * 1000)
    expected = case.query.norm(dim=-1) * (rotary.scaling.magnitude if rotary.scaling else 1.0)
    torch.testing.assert_close(turned.norm(dim=-1), expected, rtol=1e-6, atol=0)


@every
def test_a_query_alone_or_none_and_no_keys(kind: str) -> None:
    positions = KINDS[kind]()
    case = make_case(batch=False)
    bias = positions.bias(case.query, *case.places)
    alone = positions.bias(case.query[0], *case.places)
    if bias is None:
        assert alone is None
    else:
        assert bias.shape == (2 if kind.startswith("shaw") else 1, HEADS, 5, 7)
        torch.testing.assert_close(alone, bias[0])
        assert positions.bias(case.query[:, :, :0], case.query_places[:0], case.key_places).shape[-2:] == (0, 7)
        assert positions.bias(case.query, case.query_places, case.key_places[:0]).shape[-2:] == (5, 0)
    torch.testing.assert_close(
        positions.rotate(case.query[0], case.query_places), positions.rotate(case.query, case.query_places)[0]
    )
    assert positions.rotate(case.query[:, :, :0], case.query_places[:0]).shape == (2, HEADS, 0, DIM)


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_rounded_once(kind: str, dtype: torch.dtype) -> None:
    positions, case = KINDS[kind]().to(dtype), make_case(far=3000)
    query = case.query.to(dtype)
    exact = copy.deepcopy(positions).double()
    eps = torch.finfo(dtype).eps
    turned = positions.rotate(query, case.query_places)
    assert turned.dtype == dtype
    expected = exact.rotate(query.double(), case.query_places)
    torch.testing.assert_close(turned.double(), expected, rtol=0.51 * eps, atol=1e-6)
    bias = positions.bias(query, *case.places)
    if bias is not None:
        assert bias.dtype == dtype
        expected = exact.bias(query.double(), *case.places)
        # The product of d numbers is torch's, in the given dtype.
        margin = (
            {"rtol": 2 * eps, "atol": 2 * eps} if isinstance(positions, Shaw) else {"rtol": 0.51 * eps, "atol": 1e-6}
        )
        torch.testing.assert_close(bias.double(), expected, **margin)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_add_in_half(dtype: torch.dtype) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"  # torch adds wide on a CPU in any case, not on a GPU
    keys = 3001
    at, to = torch.tensor([0], device=device), torch.arange(keys, device=device)
    shaw = Shaw(2, 1)
    nn.init.ones_(shaw.values)
    shaw = shaw.to(device, dtype)
    weights = torch.full((1, 1, keys), 1 / keys, dtype=dtype, device=device).requires_grad_()
    added = shaw.of_weights(weights, at, to)
    assert added.dtype == dtype
    torch.testing.assert_close(added.float().cpu(), torch.ones(1, 1, 2), rtol=0, atol=0.01)
    t5 = T5Bias(1).to(device, dtype)
    t5.bias(torch.zeros(1, 1, 2, dtype=dtype, device=device), at, to).sum().backward()
    assert t5.weight.grad.sum().item() == pytest.approx(keys, rel=0.01)
    query = torch.ones(1, 1, 2, dtype=dtype, device=device, requires_grad=True)
    nn.init.ones_(shaw.keys)
    shaw.bias(query, at, to).sum().backward()
    assert query.grad[0, 0, 0].item() == pytest.approx(keys / 2**0.5, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_slopes_are_not_rounded_before_they_are_multiplied(dtype: torch.dtype) -> None:
    at, to, alibi = torch.tensor([0]), torch.arange(3001), ALiBi(16)  # of 16 heads every second slope is no power of 2
    exact = alibi.bias(torch.zeros(16, 1, 1).double(), at, to)
    found = alibi.bias(torch.zeros(16, 1, 1, dtype=dtype), at, to)
    torch.testing.assert_close(found.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-6)


def test_a_half_model_keeps_its_tables() -> None:
    case = make_case(far=5000)
    for make in (KINDS["rotary"], KINDS["yarn"], KINDS["alibi"]):
        there_and_back = make().bfloat16().float()
        assert torch.equal(
            there_and_back.rotate(case.query, case.query_places), make().rotate(case.query, case.query_places)
        )
        ours, theirs = (x.bias(case.query, *case.places) for x in (there_and_back, make()))
        assert ours is theirs or torch.equal(ours, theirs)
    distances = torch.arange(-200, 200)
    assert torch.equal(T5Bias(2).bfloat16().bucket(distances), T5Bias(2).bucket(distances))


def test_angles_are_right_far_out() -> None:
    place = 100_003
    turned = Rotary(4).rotate(torch.tensor([[[1.0, 1.0, 0.0, 0.0]]]), torch.tensor([place]))
    slow = place / 100
    expected = [math.cos(place), math.cos(slow), math.sin(place), math.sin(slow)]
    assert turned.flatten().tolist() == pytest.approx(expected, abs=1e-7)


def test_what_is_saved() -> None:
    saved = {kind: list(make().state_dict()) for kind, make in KINDS.items()}
    assert saved.pop("t5") == saved.pop("t5-causal") == ["weight"]
    assert saved.pop("shaw") == ["keys", "values"]
    assert saved.pop("shaw-keys") == ["keys"]
    assert not any(saved.values())


@pytest.mark.parametrize("kind", ["t5", "shaw"])
def test_a_reset_draws_anew(kind: str) -> None:
    positions = KINDS[kind]()
    before = copy.deepcopy(positions.state_dict())
    positions.reset_parameters()
    assert all(not torch.equal(before[name], now) for name, now in positions.state_dict().items())


@pytest.mark.parametrize("kind", ["rotary", "interleaved", "t5", "shaw"])
def test_derivatives_of_both_orders(kind: str) -> None:
    case = make_case(sizes=(1, 2, 3))
    layer = Attend(KINDS[kind]()).double()
    names = [name for name, _ in layer.named_parameters()]

    def function(query: Tensor, key: Tensor, value: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, state, (query, key, value, *case.places))

    inputs = tuple(x.detach().requires_grad_() for x in (*case.all[:3], *layer.parameters()))
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("kind", ["yarn", "alibi", "t5", "shaw"])
def test_compiled_and_exported_for_any_size(kind: str, batch: bool) -> None:
    layer = Attend(KINDS[kind]()).double()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    first = make_case(0, batch)
    sizes = [{0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}] * 3
    sizes += [{0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO} if batch else {0: torch.export.Dim.AUTO}] * 2
    exported = torch.export.export(layer, first.all, dynamic_shapes=tuple(sizes), strict=False).module()
    for case in (first, make_case(1, batch, (3, 11, 13))):
        expected = layer(*case.all)
        torch.testing.assert_close(compiled(*case.all), expected)
        torch.testing.assert_close(exported(*case.all), expected)
