"""Attention as it is taught, by hand: the example with two inputs, columns against rows, heads by a second projection.

a₁ = (1, 1), a₂ = (1, 0); W^q has the rows (1, 1) and (0, 1), and q₁ = a₁ W^q = (1, 2), q₂ = (1, 1). The keys
k₁ = (1, 0) and k₂ = (0, 1) come from W^k with the rows (0, 1) and (1, −1). As columns qⁱ = W aⁱ, and then W is W^q
transposed: that is what a layer's ``weight`` holds.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard import attention
from regard.functional import Dot, Observe
from regard.nn import MultiHeadAttention, SelfAttention

A = torch.tensor([[1.0, 1.0], [1.0, 0.0]])  # one input a row
W_Q = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
W_K = torch.tensor([[0.0, 1.0], [1.0, -1.0]])
W_V = torch.tensor([[1.0, 2.0], [3.0, -1.0]])


def layer_with(**options) -> SelfAttention:
    layer = SelfAttention(2, **options)
    with torch.no_grad():
        for projection, matrix in ((layer.q_proj, W_Q), (layer.k_proj, W_K), (layer.v_proj, W_V)):
            projection.weight.copy_(matrix.T)
    return layer


def test_the_numbers_of_the_example() -> None:
    layer = layer_with()
    assert layer.q_proj(A).tolist() == [[1, 2], [1, 1]]
    assert layer.k_proj(A).tolist() == [[1, 0], [0, 1]]
    scores = layer.q_proj(A) @ layer.k_proj(A).T / math.sqrt(2)
    assert scores.flatten().tolist() == pytest.approx([0.71, 1.41, 0.71, 0.71], abs=0.005)
    output, seen = layer(A, observe=Observe(weights=True))
    assert seen.weights.flatten().tolist() == pytest.approx([0.33, 0.67, 0.50, 0.50], abs=0.005)
    # v₁ = (1+3, 2−1) = (4, 1) and v₂ = (1, 2), weighted.
    first = math.exp(1 / math.sqrt(2)) / (math.exp(1 / math.sqrt(2)) + math.exp(2 / math.sqrt(2)))
    expected = [4 * first + 1 * (1 - first), 1 * first + 2 * (1 - first), 2.5, 1.5]
    assert output.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_the_example_by_the_operator() -> None:
    q, k = torch.tensor([[1.0, 2.0], [1.0, 1.0]]), torch.eye(2)
    output, seen = attention(q, k, k, observe=Observe(weights=True))  # with v = k = I the output is the weights
    torch.testing.assert_close(output, seen.weights)
    assert output.flatten().tolist() == pytest.approx([0.33, 0.67, 0.50, 0.50], abs=0.005)


def test_every_output_is_its_sum() -> None:
    """b^i = Σ_j α′_ij v^j with α_ij = q^i · k^j, one vector after another."""
    torch.manual_seed(0)
    a = [torch.randn(2) for _ in range(5)]
    outputs = []
    for here in a:
        alpha = torch.stack([(W_Q.T @ here) @ (W_K.T @ there) for there in a])
        weights = alpha.exp() / alpha.exp().sum()
        outputs.append(sum(weight * (W_V.T @ there) for weight, there in zip(weights, a, strict=True)))
    torch.testing.assert_close(layer_with(score="dot")(torch.stack(a)), torch.stack(outputs))


@pytest.mark.parametrize("bias", [False, True])
def test_columns_equal_rows(bias: bool) -> None:
    """Q = W^q I, K = W^k I, V = W^v I; A = KᵀQ; A′ = softmax down the columns; O = V A′."""
    torch.manual_seed(0)
    rows = torch.randn(5, 2)
    layer = layer_with(score="dot", bias=bias)
    offsets = [torch.zeros(2, 1)] * 3
    if bias:
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
            torch.nn.init.normal_(projection.bias)
        offsets = [projection.bias[:, None] for projection in (layer.q_proj, layer.k_proj, layer.v_proj)]
    columns = rows.T
    Q, K, V = (matrix.T @ columns + offset for matrix, offset in zip((W_Q, W_K, W_V), offsets, strict=True))
    alphas = torch.softmax(K.T @ Q, dim=0)
    output, seen = layer(rows, observe=Observe(weights=True))
    torch.testing.assert_close(output, (V @ alphas).T)
    torch.testing.assert_close(seen.weights, alphas.T)


def test_heads_by_a_second_projection() -> None:
    """q^{i,h} = W^{q,h} q^i and so on: one projection more, which the layer holds multiplied out."""
    torch.manual_seed(0)
    heads, dim, size = 3, 6, 2
    first = {name: torch.randn(dim, dim) for name in "qkv"}
    second = {name: torch.randn(heads, size, dim) for name in "qkv"}
    W_o, x = torch.randn(dim, dim), torch.randn(5, dim)

    def of_head(name: str, head: int) -> Tensor:
        return x @ first[name].T @ second[name][head].T

    per_head = [attention(*(of_head(name, head) for name in "qkv"), score=Dot()) for head in range(heads)]
    expected = torch.cat(per_head, -1) @ W_o.T

    layer = MultiHeadAttention(dim, heads, score="dot", bias=False)
    with torch.no_grad():
        for name, projection in (("q", layer.q_proj), ("k", layer.k_proj), ("v", layer.v_proj)):
            projection.weight.copy_((second[name] @ first[name]).flatten(0, 1))
        layer.out_proj.weight.copy_(W_o)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)

    # All heads in one call of the operator: heads are an axis.
    q, k, v = (torch.stack([of_head(name, head) for head in range(heads)]) for name in "qkv")
    torch.testing.assert_close(attention(q, k, v, score=Dot()), torch.stack(per_head))
