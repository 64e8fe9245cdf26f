"""BahdanauAttention and LuongAttention: the formula for each step, and one interface for both."""

from __future__ import annotations

import pytest
import torch

from by_hand import attend
from regard.errors import ArgumentError
from regard.functional import General, Observe, attention, padding
from regard.nn import BahdanauAttention, LuongAttention

B, TQ, TK, QUERY, MEMORY, HIDDEN = 3, 2, 5, 7, 11, 13
LAYERS = {
    "additive": lambda: BahdanauAttention(QUERY, MEMORY, HIDDEN),
    "dot": lambda: LuongAttention(MEMORY, MEMORY),
    "scaled_dot": lambda: LuongAttention(MEMORY, MEMORY, "scaled_dot"),
    "general": lambda: LuongAttention(QUERY, MEMORY, score="general"),
}
any_layer = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def inputs(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(B, TQ, MEMORY if name in ("dot", "scaled_dot") else QUERY), torch.randn(B, TK, MEMORY)


@any_layer
def test_a_step_is_its_formula(name: str) -> None:
    layer = LAYERS[name]()
    query, memory = inputs(name)
    keys = layer.project(memory)
    context, seen = layer(query, keys, memory, observe=Observe(weights=True))
    assert context.shape == (B, TQ, MEMORY)
    assert seen.weights.shape == (B, 1, TQ, TK)
    for row in range(B):
        if name == "additive":
            torch.nn.init.normal_(layer.W_k.bias)
            keys = layer.project(memory)
            context, seen = layer(query, keys, memory, observe=Observe(weights=True))
            q = query[row] @ layer.W_q.weight.T
            k = memory[row] @ layer.W_k.weight.T + layer.W_k.bias
            expected, weights = attend(q, k, memory[row], "additive", layer.w)
        elif name == "general":
            expected, weights = attend(query[row], memory[row], memory[row], "general", layer.W_a.weight)
        else:
            expected, weights = attend(query[row], memory[row], memory[row], name)
        torch.testing.assert_close(context[row], expected)
        torch.testing.assert_close(seen.weights[row, 0], weights)


@any_layer
def test_one_step_is_a_row_of_all_steps(name: str) -> None:
    layer = LAYERS[name]()
    query, memory = inputs(name)
    keys = layer.project(memory)
    mask = padding(lengths=torch.tensor([5, 1, 3]))
    together = layer(query, keys, memory, mask=mask)
    for step in range(TQ):
        context, seen = layer(query[:, step], keys, memory, mask=mask, observe=Observe(weights=True))
        assert context.shape == (B, MEMORY)
        assert seen.weights.shape == (B, 1, 1, TK)
        torch.testing.assert_close(context, together[:, step])
        torch.testing.assert_close(layer(query[:, step], keys, memory, mask=mask), context)
        assert not seen.weights[1, ..., 1:].any()


def test_general_is_the_operators_general_score() -> None:
    layer = LAYERS["general"]()
    query, memory = inputs("general")
    expected = attention(query[:, None], memory[:, None], memory[:, None], score=General(layer.W_a.weight))[:, 0]
    torch.testing.assert_close(layer(query, layer.project(memory), memory), expected)


def test_names_of_the_parameters() -> None:
    assert list(LAYERS["additive"]().state_dict()) == ["w", "W_q.weight", "W_k.weight", "W_k.bias"]
    assert list(LAYERS["general"]().state_dict()) == ["W_a.weight"]
    assert not LAYERS["dot"]().state_dict()
    assert LAYERS["dot"]().project(memory := torch.randn(B, TK, MEMORY)) is memory


@any_layer
def test_gradients_reach_every_parameter(name: str) -> None:
    layer = LAYERS[name]()
    query, memory = inputs(name)
    query.requires_grad_(True)
    layer(query, layer.project(memory), memory).square().sum().backward()
    assert query.grad.any()
    for label, parameter in layer.named_parameters():
        # A bias of all keys moves all scores, and not by the same amount: tanh bends.
        assert parameter.grad.any(), label
        assert parameter.grad.isfinite().all(), label


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LuongAttention(3, 4), 'query_dim=3 and memory_dim=4: use score="general"'),
        (lambda: LuongAttention(4, 4, "additive"), "got 'additive'"),
        (lambda: BahdanauAttention(3, 4, 5).project(torch.zeros(2, 6, 3)), r"memory .*size 4; got shape \(2, 6, 3\)"),
        (lambda: LuongAttention(4, 4).project(torch.zeros(6, 4)), "memory must have 3 axes"),
        (
            lambda: BahdanauAttention(3, 4, 5)(torch.zeros(2, 4), torch.zeros(2, 6, 5), torch.zeros(2, 6, 4)),
            r"query .*size 3; got shape \(2, 4\)",
        ),
        (
            lambda: BahdanauAttention(3, 4, 5)(torch.zeros(2, 3), torch.zeros(6, 5), torch.zeros(2, 6, 4)),
            r"keys \(B, Tk, H\).*\(6, 5\)",
        ),
        (
            lambda: BahdanauAttention(3, 4, 5)(torch.zeros(2, 3), torch.zeros(2, 6, 4), torch.zeros(2, 6, 4)),
            "4",
        ),
        (
            lambda: LuongAttention(4, 4)(torch.zeros(3, 4), torch.zeros(2, 6, 4), torch.zeros(2, 6, 4)),
            "3",
        ),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
