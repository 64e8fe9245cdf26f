"""Cases from public bug reports on inspecting attention, for `regard.watch`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import Observe

pytest.importorskip("transformers", reason="transformers, whose models these tests watch, is not installed")

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

IDS = torch.tensor([[5, 7, 3, 8, 2, 9], [0, 0, 4, 6, 6, 1]])
KEPT = (IDS != 0).long()


def llama(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 24, "intermediate_size": 10, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=6, num_key_value_heads=2, attn_implementation=attention)
    return LlamaForCausalLM(config).eval()


def weights_of(model: nn.Module) -> list[Tensor]:
    with torch.no_grad(), regard.watch(model, Observe(weights=True)) as record:
        model(IDS, attention_mask=KEPT)
    return [layer.statistics.weights for layer in record.layers]


@torch.no_grad()
def by_eager() -> tuple[Tensor, ...]:
    return llama("eager")(IDS, attention_mask=KEPT, output_attentions=True).attentions


def same_where_kept(found: list[Tensor]) -> None:
    expected = by_eager()
    assert len(found) == len(expected) == 2
    here = KEPT.bool()[:, None].expand(2, 6, 6)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[here], theirs[here], atol=1e-4, rtol=0)
        assert not ours[1, :, 2:, :2].any()  # nothing falls on padding


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_h1_a_model_tells_its_attentions_whatever_its_implementation(attention: str) -> None:
    model = llama(attention)
    same_where_kept(weights_of(model))
    assert model.config._attn_implementation == attention
    assert AttentionInterface.get_interface.__qualname__ == "AttentionInterface.get_interface"


def test_h1_a_registered_attention_with_a_mask_function() -> None:
    def mine(module: nn.Module, *given: Any, **options: Any) -> tuple[Tensor, None]:
        return sdpa_attention_forward(module, *given, **options)

    AttentionInterface.register("mine", mine)
    AttentionMaskInterface.register("mine", sdpa_mask)
    try:
        same_where_kept(weights_of(llama("mine")))
    finally:
        del AttentionInterface._global_mapping["mine"]
        del AttentionMaskInterface._global_mapping["mine"]


@pytest.mark.filterwarnings("ignore")
def test_h1_a_registered_attention_without_one_is_told_as_it_is_computed() -> None:
    masks = []

    def mine(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        masks.append(mask)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    AttentionInterface.register("mine", mine)
    try:
        found = weights_of(llama("mine"))
    finally:
        del AttentionInterface._global_mapping["mine"]
    assert masks == [None, None]  # the padding is silently lost, and the weights say so
    assert found[0][1, :, 5, :2].all()
