"""Faults that people reported against other libraries, tried on the bare operator; ids as in the list of cases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regard
from regard import Additive, Dot, General, Mask, Observe, ScaledDot, attention, causal, dense, padding
from regard.errors import ArgumentError, UnsupportedError
from regard.functional import Score, from_torch

# torch's own forward-mode formulas are scripted, which torch 2.13 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
IMPLS = ["reference", "sdpa"]
SCORES: list[Callable[[], Score]] = [
    Dot,
    ScaledDot,
    lambda: General(torch.eye(4)),
    lambda: Additive(torch.tensor([1.0, -2.0, 0.5, 3.0])),
]


def inputs(*sizes: int, count: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*sizes, requires_grad=True) for _ in range(count)]


@pytest.mark.parametrize("observe", [None, Observe(weights=True)])
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("score", SCORES)
def test_m1_an_example_of_nothing_but_padding(score: Callable[[], Score], dropout_p: float, observe: Observe) -> None:
    """Loss from example 0 alone; its gradients are those of a batch without example 1."""
    query, key, value = inputs(2, 1, 3, 4)
    mask = padding(torch.tensor([[True, True, False], [False, False, False]]))
    results = []
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        for batch in (2, 1):
            torch.manual_seed(3)
            part = Mask(keeps=(mask.keeps[0][:batch],))
            output = attention(
                *(x[:batch] for x in (query, key, value)),
                score=score(),
                mask=part,
                dropout_p=dropout_p,
                observe=observe,
            )
            output, statistics = output if observe else (output, None)
            results.append(torch.autograd.grad(output[0].square().sum(), (query, key, value)))
            if batch == 2:
                assert not output[1].any()
                assert statistics is None or not statistics.weights[1].any()
    if dropout_p:  # the two batches draw other dropout
        assert all(gradient.isfinite().all() for gradient in results[0])
    else:
        for of_two, of_one in zip(*results, strict=True):
            torch.testing.assert_close(of_two, of_one)
    assert not any(gradient[1].any() for gradient in results[0])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", ["band and padding", "one head", "bias"])
def test_m1_other_ways_to_an_empty_row(kind: str, impl: str) -> None:
    query, key, value = inputs(2, 2, 3, 4)
    hidden = torch.zeros(2, 2, 3, 3, dtype=torch.bool)
    arguments = {}
    if kind == "band and padding":  # the first query sees the first key alone, which is padding
        arguments["mask"] = causal() & padding(torch.tensor([[False, True, True], [True, True, True]]))
        hidden[0] = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 0, 0]])
        hidden[1] = torch.ones(3, 3).triu(1)
    elif kind == "one head":
        hidden[1, 0] = True
        arguments["mask"] = ~hidden[:, :, :1, :1]
    else:
        hidden[0, 1, 2] = True
        arguments["bias"] = torch.zeros(2, 2, 3, 3).masked_fill(hidden, -torch.inf).requires_grad_()
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        output = attention(query, key, value, impl=impl, **arguments)
        gradients = torch.autograd.grad(output.square().sum(), (query, key, value))
    weights = torch.softmax((query @ key.mT / 2).masked_fill(hidden, -torch.inf), -1).nan_to_num(0.0)
    torch.testing.assert_close(output, weights @ value)
    assert not output[hidden.all(-1)].any()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_m2_one_convention_and_a_converter_from_torch() -> None:
    """The mask of torch's MultiheadAttention hides where True; ours lets attend, as the names say."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4)
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True, bias=False)
    above = torch.ones(3, 3, dtype=torch.bool).triu(1)
    pad = torch.tensor([[False, False, False], [False, False, True]])
    theirs, _ = layer(x, x, x, attn_mask=above, key_padding_mask=pad)
    query, key, value = ((x @ w.T).unflatten(-1, (2, 2)).transpose(1, 2) for w in layer.in_proj_weight.chunk(3))
    for mask in (from_torch(pad, above), from_torch(pad, above.expand(4, 3, 3), num_heads=2), causal() & padding(~pad)):
        ours = attention(query, key, value, mask=mask).transpose(1, 2).flatten(2)
        torch.testing.assert_close(layer.out_proj(ours), theirs)
    assert from_torch().allowed((2, 2)).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_m3_causal_stands_the_last_query_at_the_last_key(impl: str) -> None:
    def run(queries: int, keys: int) -> list[float]:
        zeros, value = torch.zeros(1, 1, 1, 1), torch.arange(float(keys)).view(1, 1, keys, 1)
        query, key = zeros.expand(1, 1, queries, 1), zeros.expand(1, 1, keys, 1)
        return attention(query, key, value, mask=causal(), impl=impl).flatten().tolist()

    assert run(1, 5) == [2.0]
    assert run(2, 5) == [1.5, 2.0]
    assert run(3, 2) == [0.0, 0.0, 0.5]
    assert run(4, 2) == [0.0, 0.0, 0.0, 0.5]
    assert causal().allowed((3, 2)).int().tolist() == [[0, 0], [1, 0], [1, 1]]


@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("impl", IMPLS)
def test_m4_causal_on_every_path(impl: str, axes: int) -> None:
    query, key, value = (x.detach().reshape(*([2, 3, 5, 4] if axes == 4 else [6, 5, 4])) for x in inputs(2, 3, 5, 4))
    keep = torch.ones(query.shape[0], 5, dtype=torch.bool)
    keep[:, 1] = False
    below = torch.ones(5, 5, dtype=torch.bool).tril()
    padded = below.clone()
    padded[:, 1] = False
    for mask, expected in ((causal(), below), (causal() & padding(keep), padded)):
        _, statistics = attention(query, key, value, mask=mask, impl=impl, observe=Observe(weights=True))
        assert torch.equal(statistics.weights > 0, expected.expand_as(statistics.weights))
        torch.manual_seed(1)
        before = attention(query, key, value, mask=mask, impl=impl, dropout_p=0.5)
        torch.manual_seed(1)
        after = attention(
            query, key, torch.cat([value[..., :4, :], value[..., 4:, :] + 9], -2), mask=mask, impl=impl, dropout_p=0.5
        )
        torch.testing.assert_close(after[..., :4, :], before[..., :4, :])
    with pytest.raises(ArgumentError):
        attention(query, key, value, mask=causal() & dense(torch.ones(3, 1, dtype=torch.bool)), impl=impl)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("impl", IMPLS)
def test_n1_masks_are_combined_as_booleans_in_every_dtype(impl: str, dtype: torch.dtype) -> None:
    query, key, value = (x.detach().to(dtype) for x in inputs(2, 1, 4, 4))
    keep = torch.tensor([[False, False, True, True], [True, True, True, True]])
    mask = causal() & padding(keep)
    output, statistics = attention(query, key, value, mask=mask, impl=impl, observe=Observe(weights=True))
    allowed = mask.allowed(statistics.weights.shape)
    assert output.isfinite().all()
    assert not output[0, 0, :2].any()
    assert not statistics.weights[~allowed].any()
    assert (statistics.weights[allowed] > 0).all()
    lowest = torch.full((1, 1, 4, 4), torch.finfo(dtype).min, dtype=dtype)  # as some fill instead of masking
    biased = attention(query, key, value, bias=lowest, mask=mask, impl=impl)
    assert biased.isfinite().all()


@pytest.mark.parametrize("impl", IMPLS)
def test_d1_dropout_of_one_gives_zeros_and_of_nothing_gives_the_same_twice(impl: str) -> None:
    query, key, value = inputs(2, 3, 5, 4)
    for mask in (None, causal()):
        once, again = (attention(query, key, value, mask=mask, impl=impl, dropout_p=0.0) for _ in range(2))
        assert torch.equal(once, again)
        nothing = attention(query, key, value, mask=mask, impl=impl, dropout_p=1.0)
        assert not nothing.any()
        assert all(g.isfinite().all() for g in torch.autograd.grad(nothing.sum(), (query, key, value)))


@pytest.mark.parametrize("impl", IMPLS)
def test_d2_weights_are_probabilities_before_dropout(impl: str) -> None:
    query, key, value = inputs(2, 3, 5, 4)
    torch.manual_seed(1)
    output, statistics = attention(query, key, value, impl=impl, dropout_p=0.5, observe=Observe(weights=True))
    torch.testing.assert_close(statistics.weights.sum(-1), torch.ones(2, 3, 5))
    assert not torch.allclose(output, statistics.weights @ value)


@pytest.mark.parametrize("impl", IMPLS)
def test_d2_dropout_keeps_the_mean(impl: str) -> None:
    query, key, value = (x.detach() for x in inputs(1, 1, 3, 4))
    many = [x.expand(4000, -1, -1, -1) for x in (query, key, value)]
    torch.manual_seed(1)
    mean = attention(*many, impl=impl, dropout_p=0.3).mean(0, keepdim=True)
    torch.testing.assert_close(mean, attention(query, key, value), atol=0.06, rtol=0.0)


@pytest.mark.parametrize("impl", IMPLS)
def test_a1_bool_masks_under_autocast_and_no_others(impl: str) -> None:
    query, key, value = (x.detach() for x in inputs(2, 3, 5, 4))
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attention(query, key, value, mask=allowed, impl=impl)
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(
            output.float(),
            attention(*(x.double() for x in (query, key, value)), mask=allowed).float(),
            atol=0.03,
            rtol=0.03,
        )
        for dtype in (torch.float16, torch.float32, torch.int64):
            with pytest.raises(ArgumentError, match=r"bias=|\.bool\(\)"):
                attention(query, key, value, mask=allowed.to(dtype), impl=impl)


def test_e1_a_fused_kernel_says_which_switch_to_use() -> None:
    query, key, value = inputs(2, 3, 5, 4)
    (gradient,) = torch.autograd.grad(
        attention(query, key, value, impl="sdpa").square().sum(), query, create_graph=True
    )
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        gradient.sum().backward()
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        torch.vmap(lambda q: attention(q, key[0], value[0], impl="sdpa"))(query)
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        torch.func.grad(lambda q: attention(q, key, value, impl="sdpa").sum())(query.detach())
    for forward in (torch.func.jvp, lambda f, x, v: torch.func.hessian(f)(*x)):
        with pytest.raises(UnsupportedError, match='impl="reference"'):
            forward(lambda q: attention(q, key, value, impl="sdpa").sum(), (query.detach(),), (query.detach(),))


def test_e1_auto_finds_a_kernel_that_can() -> None:
    query, key, value = (x.detach()[:1, :1] for x in inputs(2, 3, 5, 4))

    def energy(q: Tensor) -> Tensor:
        return attention(q, key, value, mask=causal()).square().sum()

    hessian = torch.func.hessian(energy)(query)
    gradient = torch.func.grad(energy)
    step = 1e-2 * torch.randn(query.shape, generator=torch.Generator().manual_seed(1))
    expected = gradient(query + step) - gradient(query - step)
    torch.testing.assert_close((hessian * step).sum((-1, -2, -3, -4)) * 2, expected, atol=1e-4, rtol=1e-2)


@pytest.mark.parametrize("observe", [None, Observe(weights=True)])
@pytest.mark.parametrize("impl", IMPLS)
def test_e2_modes_and_ranks_of_masks_agree(impl: str, observe: Observe | None) -> None:
    query, key, value = inputs(2, 3, 5, 4)
    table = torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) > 0.4
    outputs = []
    for mask in (
        dense(table),
        dense(table[None, None]),
        table[None, None].expand(2, 3, 5, 5),
        table.expand(2, 1, 5, 5),
    ):
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                output = attention(query, key, value, mask=mask, impl=impl, observe=observe)
            outputs.append((output[0] if observe else output).detach())
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], atol=1e-5, rtol=1e-5)


class Step(torch.nn.Module):
    def forward(self, query: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
        return attention(query, key, key, mask=padding(lengths=lengths) & causal(), score=Dot())


def test_e3_export_runs_at_other_sizes_and_lengths() -> None:
    B, T = torch.export.Dim("B"), torch.export.Dim("T")
    x = torch.randn(3, 2, 5, 4)
    shapes = {"query": {0: B, 2: T}, "key": {0: B, 2: T}, "lengths": {0: B}}
    program = torch.export.export(Step(), (x, x, torch.tensor([5, 3, 0])), dynamic_shapes=shapes)
    y = torch.randn(2, 2, 8, 4)
    for lengths in ([8, 1], [0, 0]):
        torch.testing.assert_close(program.module()(y, y, torch.tensor(lengths)), Step()(y, y, torch.tensor(lengths)))


def test_e3_compile_does_not_recompile_for_other_values() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Step(), fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 2, 5, 4)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ([5, 3, 0], [0, 0, 0], [1, 2, 3]):
            torch.testing.assert_close(compiled(x, x, torch.tensor(lengths)), Step()(x, x, torch.tensor(lengths)))


def test_b1_batch_and_time_of_equal_size_are_told_apart() -> None:
    query, key, value = (x.detach() for x in inputs(3, 1, 3, 4))
    keep = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    output = attention(query, key, value, mask=padding(keep))
    for example in range(3):
        row = attention(*(x[example : example + 1] for x in (query, key, value)), mask=padding(keep[example][None]))
        torch.testing.assert_close(output[example : example + 1], row)
    with pytest.raises(ArgumentError, match="padding"):
        attention(query, key, value, mask=keep)
    assert not torch.allclose(output, attention(query, key, value, mask=regard.dense(keep)))
