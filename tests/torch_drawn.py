"""Calls of torch's multi-head attention, drawn by Hypothesis, and what they are compared by."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

B, L, S, SIZE, KDIM, VDIM = 3, 5, 7, 4, 11, 13
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
GRADIENTS = 4  # times that: over 1,500 examples torch's own float32 gradients were up to 1.8e-6 from those in float64
SEEDS = st.integers(0, 2**20)

options = st.fixed_dictionaries(
    {
        "num_heads": st.sampled_from([1, 2, 3]),
        "bias": st.booleans(),
        "add_bias_kv": st.booleans(),
        "add_zero_attn": st.booleans(),
        "kdim": st.sampled_from([None, None, KDIM]),
        "vdim": st.sampled_from([None, None, VDIM]),
        "batch_first": st.booleans(),
        "dtype": st.sampled_from([torch.float32, torch.float64]),
    }
)
requests = st.fixed_dictionaries(
    {
        "key_padding_mask": st.sampled_from([None, "bool", "float", "-inf"]),
        "attn_mask": st.sampled_from([None, "bool", "float", "-inf", "causal", "causal bool"]),
        "rank": st.sampled_from([2, 3]),
        "need_weights": st.booleans(),
        "average_attn_weights": st.booleans(),
        "batched": st.sampled_from([True, True, False]),
        "inputs": st.sampled_from(["one", "two", "three", "values"]),
    }
)


def close(found: Tensor, expected: Tensor, times: float = 1) -> None:
    """Equal to 1e-6 in float32, of the largest number in sight where that is more than 1."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if expected.numel():
        scale = max(1.0, expected.abs().max().item())
        assert (found - expected).abs().max().item() <= times * TOLERANCE[expected.dtype] * scale


def drawn_layer(embed: dict[str, Any], seed: int) -> nn.MultiheadAttention:
    torch.manual_seed(seed)
    layer = nn.MultiheadAttention(SIZE * embed["num_heads"], **embed)
    for parameter in layer.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return layer


def drawn_mask(kind: str | None, shape: tuple[int, ...], dtype: torch.dtype, empty: bool = False) -> Tensor | None:
    """A mask of torch's polarity; it leaves the first key of each query, unless rows may be empty."""
    if kind is None:
        return None
    hidden = torch.rand(shape) < 0.4
    if kind.startswith("causal"):
        hidden = torch.ones(shape, dtype=torch.bool).triu(1)
    if not empty:
        hidden[..., 0] = False
    if "bool" in kind:
        return hidden
    added = torch.zeros(shape, dtype=dtype) if kind == "causal" else torch.randn(shape, dtype=dtype)
    return added if kind == "float" else added.masked_fill(hidden, -math.inf)


def drawn_call(layer: nn.MultiheadAttention, asked: dict[str, Any], empty: bool = False) -> dict[str, Any]:
    """The arguments of one call that a layer can serve."""
    dtype, heads = layer.out_proj.weight.dtype, layer.num_heads
    inputs = asked["inputs"]
    if layer.kdim != layer.embed_dim or layer.vdim != layer.embed_dim:
        inputs = "three"
    length = L if inputs in ("one", "values") else S

    def drawn(length: int, size: int) -> Tensor:
        lead = (length,) if not asked["batched"] else (B, length) if layer.batch_first else (length, B)
        return torch.randn(*lead, size, dtype=dtype, requires_grad=True)

    query = drawn(L, layer.embed_dim)
    key = query if inputs in ("one", "values") else drawn(length, layer.kdim)
    value = drawn(length, layer.vdim) if inputs in ("three", "values") else key
    batch = B if asked["batched"] else 1
    shape = (L, length) if asked["rank"] == 2 else (batch * heads, L, length)
    padding = (batch, length) if asked["batched"] else (length,)
    return {
        "query": query,
        "key": key,
        "value": value,
        "key_padding_mask": drawn_mask(asked["key_padding_mask"], padding, dtype, empty),
        "attn_mask": drawn_mask(asked["attn_mask"], shape, dtype, empty),
        "need_weights": asked["need_weights"],
        "average_attn_weights": asked["average_attn_weights"],
    }


def leaves(call: dict[str, Any]) -> dict[str, Any]:
    """The same call on tensors of its own; what is one tensor stays one."""
    kept: dict[int, Any] = {}
    for name, x in call.items():
        if isinstance(x, Tensor):
            # With the hint torch does not look into the mask, and gives it no gradient.
            wanted = x.is_floating_point() and not (name == "attn_mask" and "is_causal" in call)
            kept[id(x)] = x.detach().clone().requires_grad_(wanted)
    return {name: kept.get(id(x), x) for name, x in call.items()}


def with_gradients(layer: nn.Module, call: dict[str, Any]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Output and weights, and the gradients of a loss on both for parameters, inputs and float masks."""
    call = leaves(call)
    layer.zero_grad()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Support for mismatched")  # torch prefers masks of one kind, and serves both
        answers = [x for x in layer(**call) if x is not None]
    loss = sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape)).sum() for x in answers)
    assert isinstance(loss, Tensor)
    loss.backward()
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    found |= {name: x.grad for name, x in call.items() if isinstance(x, Tensor) and x.requires_grad}
    assert all(gradient is not None for gradient in found.values())
    return [x.detach() for x in answers], {name: x.clone() for name, x in found.items() if x is not None}


def same(ours: nn.Module, theirs: nn.Module, call: dict[str, Any]) -> None:
    (outputs, gradients), (expected, expected_gradients) = with_gradients(ours, call), with_gradients(theirs, call)
    assert len(outputs) == len(expected)
    for found, right in zip(outputs, expected, strict=True):
        close(found, right)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        close(gradient, expected_gradients[name], GRADIENTS)


def by_formula(layer: nn.MultiheadAttention, call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Output and weights of each head, batch first, with weights of 0 where there is nothing to attend to."""
    query, key, value = (call[name] for name in ("query", "key", "value"))
    if query.dim() == 2:
        query, key, value = query[None], key[None], value[None]
    elif not layer.batch_first:
        query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
    separate = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = separate if layer.in_proj_weight is None else layer.in_proj_weight.chunk(3)
    biases = (0, 0, 0) if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    q, k, v = (x @ w.T + b for x, w, b in zip((query, key, value), weights, biases, strict=True))
    if layer.bias_k is not None:
        k, v = (
            torch.cat([k, layer.bias_k.expand(len(k), -1, -1)], 1),
            torch.cat([v, layer.bias_v.expand(len(v), -1, -1)], 1),
        )
    if layer.add_zero_attn:
        k, v = (torch.cat([x, torch.zeros_like(x[:, :1])], 1) for x in (k, v))
    q, k, v = (x.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    table = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    added = torch.zeros_like(table)
    for name, lead in (("key_padding_mask", (len(q), 1, 1)), ("attn_mask", (-1, layer.num_heads, L))):
        mask = call[name]
        if mask is not None:
            mask = (
                mask.to(table.dtype)
                if mask.is_floating_point()
                else torch.zeros_like(mask, dtype=table.dtype).masked_fill(mask, -math.inf)
            )
            shape = (1, 1, *mask.shape) if name == "attn_mask" and mask.dim() == 2 else (*lead, mask.shape[-1])
            added[..., : mask.shape[-1]] += mask.view(shape)
    empty = (added == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax((table + added).masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    output = layer.out_proj((weights @ v).transpose(1, 2).flatten(-2))
    if call["query"].dim() == 2:
        return output[0], weights[0]
    return output if layer.batch_first else output.transpose(0, 1), weights
