"""Positions beside those of Hugging Face's transformers: the same numbers from modules with the same weights.

Nothing is loaded: the modules are made from small configurations, with random weights.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import Dot, causal
from regard.positions import (
    ALiBi,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Relative,
    Rotary,
    Scaling,
    Shaw,
    T5Bias,
    YarnScaling,
)
from regard.positions._places import frequencies, places

pytest.importorskip("transformers", reason="transformers, which these tests compare with, is not installed")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.t5 import modeling_t5 as t5
from transformers.models.vits import modeling_vits as vits
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as w2v

B, T, HEADS, KV_HEADS, DIM = 2, 11, 6, 2, 8
WIDTH = HEADS * DIM


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def heads_of(projected: Tensor) -> Tensor:
    return projected.unflatten(-1, (-1, DIM)).transpose(-3, -2)


def attend(q: Tensor, k: Tensor, v: Tensor, positions: Relative, **options: Any) -> Tensor:
    """(B, T, width): our attention between heads, at places 0, 1, 2, …"""
    at = torch.arange(q.shape[-2])
    q, k = positions.rotate(q, at), positions.rotate(k, at)
    output = regard.attention(q, k, v, bias=positions.bias(q, at, at), **options)
    if positions.needs_weights:
        _, seen = regard.attention(
            q, k, v, bias=positions.bias(q, at, at), observe=regard.Observe(weights=True), **options
        )
        output = output + positions.of_weights(seen.weights, at, at)
    return output.transpose(-3, -2).flatten(-2)


def llama_config(rope: dict[str, Any], head_dim: int = DIM, trained: int = 64) -> llama.LlamaConfig:
    config = llama.LlamaConfig(
        hidden_size=WIDTH,
        head_dim=head_dim,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=trained,
        rope_parameters=rope,
    )
    config._attn_implementation = "eager"
    return config


# Theirs, ours, size of a head, base, the length trained on: the settings of models that people use, and small ones.
SCALINGS = {
    "none": ({"rope_type": "default"}, None, 8, 10000.0, 64),
    "linear": ({"rope_type": "linear", "factor": 4.0}, LinearScaling(4.0), 8, 10000.0, 64),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        YarnScaling(4.0, original_length=64),
        8,
        10000.0,
        256,
    ),
    "yarn of Qwen 2.5": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        YarnScaling(4.0, original_length=32768),
        128,
        1000000.0,
        131072,
    ),
    "yarn, other turns": (
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
        },
        YarnScaling(16.0, original_length=4096, beta_fast=8.0, beta_slow=2.0),
        64,
        10000.0,
        65536,
    ),
    "llama 3.1": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        Llama3Scaling(),
        128,
        500000.0,
        131072,
    ),
    "llama 3, small": (
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 5.0,
            "original_max_position_embeddings": 1000,
        },
        Llama3Scaling(32.0, low_freq_factor=2.0, high_freq_factor=5.0, original_length=1000),
        32,
        10000.0,
        32000,
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_is_llamas_with_every_scaling(name: str) -> None:
    theirs, scaling, head_dim, base, trained = SCALINGS[name]
    module = llama.LlamaRotaryEmbedding(llama_config({"rope_theta": base, **theirs}, head_dim, trained))
    speeds = frequencies(head_dim, base, torch.device("cpu"))
    ours = speeds if scaling is None else scaling.frequencies(speeds, base)
    torch.testing.assert_close(ours.float(), module.inv_freq, rtol=3e-6, atol=0)
    assert module.attention_scaling == pytest.approx(1.0 if scaling is None else scaling.magnitude)
    q, k = torch.randn(B, HEADS, T, head_dim), torch.randn(B, KV_HEADS, T, head_dim)
    at = torch.stack([torch.arange(T), 7 * torch.arange(T) + 3])
    expected = llama.apply_rotary_pos_emb(q, k, *module(q, at))
    rotary = Rotary(head_dim, base=base, scaling=scaling)
    for x, turned in zip((q, k), expected, strict=True):
        torch.testing.assert_close(rotary.rotate(x, at), turned, rtol=0, atol=5e-5)  # their angles are float32


@pytest.mark.parametrize("length", [64, 100, 1000])
def test_ntk_is_what_the_dynamic_kind_comes_to_at_each_length(length: int) -> None:
    config = llama_config({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0}, trained=64)
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=length)
    speeds = frequencies(DIM, 10000.0, torch.device("cpu"))
    ours = NTKScaling(length / 64).frequencies(speeds, 10000.0)
    torch.testing.assert_close(ours.float(), theirs, rtol=3e-6, atol=0)


@pytest.mark.parametrize("scaling", [None, YarnScaling(4.0, original_length=64)], ids=["none", "yarn"])
def test_llamas_attention_with_its_weights(scaling: Scaling | None) -> None:
    rope = {"rope_theta": 10000.0, **SCALINGS["yarn" if scaling else "none"][0]}
    config = llama_config(rope)
    module, embedding = llama.LlamaAttention(config, layer_idx=0).eval(), llama.LlamaRotaryEmbedding(config)
    x = torch.randn(B, T, WIDTH)
    hidden = torch.full((T, T), -torch.inf).triu(1)[None, None]
    expected, _ = module(x, position_embeddings=embedding(x, torch.arange(T)[None]), attention_mask=hidden)
    q, k, v = (heads_of(projection(x)) for projection in (module.q_proj, module.k_proj, module.v_proj))
    found = module.o_proj(attend(q, k, v, Rotary(DIM, scaling=scaling), mask=causal()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_interleaved_rotary_is_that_of_gpt_j() -> None:
    config = gptj.GPTJConfig(n_embd=WIDTH, n_head=HEADS, rotary_dim=4, n_positions=64)
    at = torch.stack([torch.arange(T), 5 * torch.arange(T)])
    x = torch.randn(B, HEADS, T, DIM)
    first, rest = x.transpose(1, 2).split(4, -1)
    turned = gptj.apply_rotary_pos_emb(first, *gptj.GPTJRotaryEmbedding(config)(x, at))
    expected = torch.cat([turned, rest], -1).transpose(1, 2)
    found = Rotary(DIM, interleaved=True, features=4).rotate(x, at)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_partial_rotary_is_that_of_gpt_neox() -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = neox.GPTNeoXConfig(hidden_size=WIDTH, num_attention_heads=HEADS, rope_parameters=rope)
    module, at = neox.GPTNeoXRotaryEmbedding(config), 9 * torch.arange(T)
    q, k = torch.randn(2, B, HEADS, T, DIM)
    expected, _ = neox.apply_rotary_pos_emb(q, k, *module(q, at[None]))
    torch.testing.assert_close(Rotary(DIM, features=4).rotate(q, at), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 40, 71])
def test_alibi_is_blooms_up_to_a_constant_of_each_query(heads: int) -> None:
    keep = torch.tensor([[True] * T, [False] * 3 + [True] * (T - 3)])
    theirs = bloom.build_alibi_tensor(keep.long(), heads, torch.float32).view(B, heads, 1, T)
    at = places(torch.zeros(B, T, 1), keep, 0)
    ours = ALiBi(heads).bias(torch.zeros(B, heads, T, 1), at, at)
    for row, first in enumerate((0, 3)):
        for query in range(first, T):
            seen = slice(first, query + 1)
            found = ours[row, :, query, seen] - ours[row, :, query, first : first + 1]
            torch.testing.assert_close(found, theirs[row, :, 0, seen], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5s_attention_with_its_weights(bidirectional: bool) -> None:
    config = t5.T5Config(d_model=WIDTH, d_kv=DIM, num_heads=HEADS, is_decoder=not bidirectional)
    config._attn_implementation = "eager"
    module = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    length = 300  # longer than the largest distance that has a bucket
    x = torch.randn(B, length, WIDTH) / 4
    hidden = None if bidirectional else torch.full((length, length), -torch.inf).triu(1)[None, None]
    expected, bias, *_ = module(x, mask=hidden)
    ours = T5Bias(HEADS, bidirectional=bidirectional)
    ours.load_state_dict(module.relative_attention_bias.state_dict())
    at = torch.arange(length)
    q, k, v = (heads_of(projection(x)) for projection in (module.q, module.k, module.v))
    assert torch.equal(ours.bias(q, at, at), bias)
    found = module.o(attend(q, k, v, ours, score=Dot(), mask=None if bidirectional else causal()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (320, 800), (16, 32), (8, 20), (6, 1000)])
def test_t5s_buckets(buckets: int, max_distance: int, bidirectional: bool) -> None:
    distances = torch.arange(-1500, 1501)
    expected = t5.T5Attention._relative_position_bucket(distances, bidirectional, buckets, max_distance)
    if max_distance > buckets // 2 // (1 + bidirectional):
        ours = T5Bias(1, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
        assert torch.equal(ours.bucket(distances), expected)


def test_shaws_vectors_of_keys_and_values_are_those_of_vits() -> None:
    window = T - 1  # beyond its window VITS adds nothing, where Shaw goes on with the last vector
    config = vits.VitsConfig(hidden_size=WIDTH, num_attention_heads=HEADS, window_size=window)
    module, ours = vits.VitsAttention(config).eval(), Shaw(DIM, window)
    with torch.no_grad():
        ours.keys.copy_(module.emb_rel_k[0])
        ours.values.copy_(module.emb_rel_v[0])
    x = torch.randn(B, T, WIDTH)
    expected, _ = module(x)
    q, k, v = (heads_of(projection(x)) for projection in (module.q_proj, module.k_proj, module.v_proj))
    torch.testing.assert_close(module.out_proj(attend(q, k, v, ours)), expected, rtol=0, atol=1e-5)


def test_shaws_vectors_of_keys_are_those_of_wav2vec2_bert() -> None:
    config = w2v.Wav2Vec2BertConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=3,
        right_max_position_embeddings=3,
    )
    config._attn_implementation = "eager"
    module, ours = w2v.Wav2Vec2BertSelfAttention(config).eval(), Shaw(DIM, 3, values=False)
    with torch.no_grad():
        nn.init.normal_(module.distance_embedding.weight)
        ours.keys.copy_(module.distance_embedding.weight)
    x = torch.randn(B, T, WIDTH)
    expected, _ = module(x)
    q, k, v = (heads_of(projection(x)) for projection in (module.linear_q, module.linear_k, module.linear_v))
    torch.testing.assert_close(module.linear_out(attend(q, k, v, ours)), expected, rtol=0, atol=1e-5)
