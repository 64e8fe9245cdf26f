"""Models of transformers, watched: every statistic agrees with the weights that eager attention returns.

Nothing is loaded: the models are made from small configurations, with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import Observe
from regard.errors import UnsupportedError
from watched import EVERYTHING, agrees

pytest.importorskip("transformers", reason="transformers, whose models these tests watch, is not installed")

import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    flash_attention_mask,
    sdpa_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

SIZES = {"vocab_size": 31, "hidden_size": 36, "intermediate_size": 22, "num_hidden_layers": 2}
T5 = {"vocab_size": 31, "d_model": 24, "d_kv": 5, "d_ff": 26, "num_layers": 2, "num_heads": 3, "dropout_rate": 0.0}
BART = {
    "vocab_size": 31,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 10,
    "decoder_ffn_dim": 14,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
    "eos_token_id": None,
    "decoder_start_token_id": 2,
}
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", {**SIZES, "num_attention_heads": 4}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 31, "n_embd": 24, "n_layer": 2, "n_head": 3}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**SIZES, "num_attention_heads": 9, "num_key_value_heads": 3}),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": 5, "head_dim": 8},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0, "eos_token_id": None}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attn_logit_softcapping": 0.5},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **SIZES,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "hidden_size": 32,
            "intermediate_size": 16,
            "head_dim": 8,
        },
    ),
}
ENCODERS = ("bert",)
DECODERS = ("gpt2", "llama", "mistral")
PAIRS = ("bart", "t5")


def made(name: str, attention: str, **more: Any) -> Any:
    """Make a model with the same weights at each call, larger than by default, so that its attention is not even."""
    model, config, options = CONFIGS[name]
    torch.manual_seed(3)
    by_hand = attention == "flash_by_hand"  # a name which transformers would look for on the network
    options = {**options, **more, "attn_implementation": "sdpa" if by_hand else attention}
    made = getattr(transformers, model)(getattr(transformers, config)(**options))
    made.config._attn_implementation = attention
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(1.5 if name == "t5" else 4.0)
    return made.eval()


def inputs_of(name: str) -> dict[str, Tensor]:
    """Return a padded batch: on the left if the model generates, else on the right."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 31, (2, 11), generator=generator)
    mask = torch.ones_like(ids)
    if name in (*ENCODERS, *PAIRS):
        mask[1, 7:] = 0
    else:
        mask[1, :4] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name in PAIRS:
        inputs["decoder_input_ids"] = torch.randint(3, 31, (2, 7), generator=generator)
    return inputs


@torch.no_grad()
def by_eager(name: str, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return all weights, in the order in which layers attend."""
    answer = made(name, "eager")(**inputs, output_attentions=True)
    if name not in PAIRS:
        return list(answer.attentions)
    pairs = zip(answer.decoder_attentions, answer.cross_attentions, strict=True)
    return [*answer.encoder_attentions, *(weights for pair in pairs for weights in pair)]


def kept_of(inputs: dict[str, Tensor], weights: Tensor, cross: bool) -> Tensor | None:
    """Return which queries are not padding; of a decoder here all."""
    mask = inputs["attention_mask"].bool()
    return mask if not cross and weights.shape[2] == mask.shape[1] else None


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = AttentionInterface.get_interface, dict(AttentionInterface._global_mapping)
    masks = dict(AttentionMaskInterface._global_mapping)
    yield
    assert before == (AttentionInterface.get_interface, AttentionInterface._global_mapping)
    assert masks == AttentionMaskInterface._global_mapping
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS, *PAIRS])
def test_statistics_are_those_of_eager_attention(name: str, attention: str) -> None:
    model, inputs = made(name, attention), inputs_of(name)
    with torch.no_grad():
        plain = model(**inputs)[0]
        with regard.watch(model, EVERYTHING) as record:
            output = model(**inputs)[0]
    assert torch.equal(output, plain)
    assert model.config._attn_implementation == attention
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    expected = by_eager(name, inputs)
    assert len(record.layers) == len(expected)
    for layer, weights in zip(record.layers, expected, strict=True):
        agrees(layer, weights, kept_of(inputs, weights, layer.cross))
    assert [layer.cross for layer in record.layers] == [False, False, *[False, True] * 2][: len(expected)]
    assert {key: value.tolist() for key, value in record.inputs.items()} == {k: v.tolist() for k, v in inputs.items()}


def test_layers_have_the_names_of_their_modules() -> None:
    names = {}
    for name in ("bert", "llama", "t5"):
        model = made(name, "sdpa")
        with torch.no_grad(), regard.watch(model) as record:
            model(**inputs_of(name))
        names[name] = [layer.name for layer in record.layers]
        assert all(isinstance(model.get_submodule(layer.name), nn.Module) for layer in record.layers)
    assert names["bert"] == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]
    assert names["llama"] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert names["t5"][3:5] == ["decoder.block.0.layer.1.EncDecAttention", "decoder.block.1.layer.0.SelfAttention"]


@pytest.mark.parametrize("keys", [None, "static"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", DECODERS)
def test_steps_of_a_generation_are_one_pass(name: str, attention: str, keys: str | None) -> None:
    model, inputs = made(name, attention), inputs_of(name)
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "cache_implementation": keys}
    with torch.no_grad():
        plain = model.generate(**inputs, **options, pad_token_id=0, disable_compile=True)
        with regard.watch(model, EVERYTHING) as record:
            tokens = model.generate(**inputs, **options, pad_token_id=0, disable_compile=True)
    assert torch.equal(tokens, plain)
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, 8, dtype=torch.int64)], 1)
    read = {"input_ids": tokens[:, :-1], "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    for layer, weights in zip(record.layers, by_eager(name, read), strict=True):
        agrees(layer, weights, mask.bool())
        assert (layer.first_query, layer.cross) == (0, False)
    assert torch.equal(record.inputs["input_ids"], read["input_ids"])
    if keys is None:  # for a static cache the model is given a mask with four axes
        assert torch.equal(record.inputs["attention_mask"], mask)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", PAIRS)
def test_steps_of_an_encoder_decoder_are_one_pass(name: str, attention: str) -> None:
    model, inputs = made(name, attention), inputs_of(name)
    del inputs["decoder_input_ids"]
    with torch.no_grad(), regard.watch(model, EVERYTHING) as record:
        tokens = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    inputs["decoder_input_ids"] = tokens[:, :-1]
    for layer, weights in zip(record.layers, by_eager(name, inputs), strict=True):
        agrees(layer, weights, kept_of(inputs, weights, layer.cross))
    assert torch.equal(record.inputs["decoder_input_ids"], tokens[:, :-1])
    assert torch.equal(record.inputs["input_ids"], inputs["input_ids"])


def test_two_texts_are_two_passes() -> None:
    model, inputs = made("llama", "sdpa"), inputs_of("llama")
    with torch.no_grad(), regard.watch(model, layers="*.0.self_attn") as record:
        model(**inputs)
        model(**inputs)
        model.generate(**inputs, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert [layer.shape[2] for layer in record.layers] == [11, 11, 13]


@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_what_is_kept_can_be_asked_later(name: str) -> None:
    model, inputs = made(name, "sdpa"), inputs_of(name)
    inputs = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    with torch.no_grad(), regard.watch(model, EVERYTHING, keep_inputs=True) as record:
        model.generate(**inputs, max_new_tokens=7, do_sample=False, pad_token_id=0, eos_token_id=None)
    for layer in record.layers:
        asked = layer.observe(Observe(weights=True, entropy=True))
        mask = inputs["attention_mask"].bool()
        kept = mask if layer.shape[2] == 11 else torch.cat([mask, torch.ones(2, 6, dtype=torch.bool)], 1)
        here = kept[:, None].expand(layer.shape[:3]) if layer.shape[2] == kept.shape[1] else slice(None)
        torch.testing.assert_close(asked.weights[here], layer.statistics.weights[here])
        torch.testing.assert_close(asked.entropy[here], layer.statistics.entropy[here])


# --- implementations that are not torch's


flex = pytest.mark.filterwarnings(
    "ignore:_compile flag on create_block_mask:DeprecationWarning",
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning",  # where torch compiles for the first time
    "ignore:flex_attention called without torch.compile:UserWarning",
)


@flex
@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_flex_attention(name: str) -> None:
    model, inputs = made(name, "flex_attention"), inputs_of(name)
    with torch.no_grad(), regard.watch(model, EVERYTHING) as record:
        model(**inputs)
    for layer, weights in zip(record.layers, by_eager(name, inputs), strict=True):
        agrees(layer, weights, inputs["attention_mask"].bool())


def flash_by_hand(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute what flash attention computes, which needs a GPU: the mask is (B, Tk), or None."""
    Tq, Tk = query.shape[2], key.shape[2]
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    away = torch.arange(Tk) - torch.arange(Tq)[:, None] - (Tk - Tq)
    allowed = (away <= 0) if module.is_causal else torch.ones(Tq, Tk, dtype=torch.bool)
    if options.get("sliding_window") is not None:
        allowed = allowed & (away.abs() < options["sliding_window"])
    if mask is not None:
        allowed = allowed & mask[:, None, None].bool()
    scores = (query @ key.mT * options["scaling"]).masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1).nan_to_num(0.0) @ value).transpose(1, 2), None


@pytest.fixture
def _flash() -> Iterator[None]:
    AttentionInterface.register("flash_by_hand", flash_by_hand)
    AttentionMaskInterface.register("flash_by_hand", flash_attention_mask)
    yield
    del AttentionInterface._global_mapping["flash_by_hand"]
    del AttentionMaskInterface._global_mapping["flash_by_hand"]


@pytest.mark.usefixtures("_flash")
@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_flash_attention(name: str) -> None:
    model, inputs = made(name, "flash_by_hand"), inputs_of(name)
    with torch.no_grad(), regard.watch(model, EVERYTHING) as record:
        if name == "bert":
            model(**inputs)
        else:
            tokens = model.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
            more = torch.ones(2, 5, dtype=torch.int64)
            inputs = {"input_ids": tokens[:, :-1], "attention_mask": torch.cat([inputs["attention_mask"], more], 1)}
    for layer, weights in zip(record.layers, by_eager(name, inputs), strict=True):
        agrees(layer, weights, inputs["attention_mask"].bool())


@pytest.mark.usefixtures("_flash")
def test_sequences_packed_into_one_row_are_refused() -> None:
    model = made("llama", "flash_by_hand")
    packed = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad(), regard.watch(model), pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn.*position"):
        model(input_ids=torch.arange(3, 10)[None], position_ids=packed)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_capped_scores_and_sinks_are_read_from_eager_weights(name: str) -> None:
    model, inputs = made(name, "eager"), inputs_of(name)
    with torch.no_grad(), regard.watch(model, EVERYTHING) as record:
        model(**inputs)
    for layer, weights in zip(record.layers, by_eager(name, inputs), strict=True):
        agrees(layer, weights, inputs["attention_mask"].bool())


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_what_cannot_be_exact_is_refused_by_name(name: str) -> None:
    model, inputs = made(name, "eager"), inputs_of(name)
    with (
        torch.no_grad(),
        regard.watch(model, keep_inputs=True),
        pytest.raises(UnsupportedError, match=r"model\.layers\.0\.self_attn: .* not the softmax of scaled products"),
    ):
        model(**inputs)


@flex
def test_scores_that_flex_attention_caps_are_refused_by_name() -> None:
    model, inputs = made("gemma2", "flex_attention"), inputs_of("gemma2")
    with torch.no_grad(), regard.watch(model), pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn.*softcap"):
        model(**inputs)


def test_weights_after_dropout_are_refused() -> None:
    model, inputs = made("llama", "eager", attention_dropout=0.2).train(), inputs_of("llama")
    with regard.watch(model), pytest.raises(UnsupportedError, match=r"model\.eval\(\)"):
        model(**inputs)


def test_a_function_that_tells_nothing_is_refused() -> None:
    def silent(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any
    ) -> tuple[Tensor, None]:
        return torch.zeros_like(query).transpose(1, 2), None

    AttentionInterface.register("silent", silent)
    try:
        model = made("bert", "silent")
        with torch.no_grad(), regard.watch(model), pytest.raises(UnsupportedError, match="neither ends in torch's"):
            model(**inputs_of("bert"))
    finally:
        del AttentionInterface._global_mapping["silent"]


def test_steps_of_a_function_of_the_users_own() -> None:
    def mine(module: nn.Module, *given: Any, **options: Any) -> tuple[Tensor, None]:
        return sdpa_attention_forward(module, *given, **options)  # which packs the queries of a single token

    AttentionInterface.register("mine", mine)
    AttentionMaskInterface.register("mine", sdpa_mask)
    try:
        model, inputs = made("llama", "mine"), inputs_of("llama")
        with torch.no_grad(), regard.watch(model, EVERYTHING) as record:
            tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    finally:
        del AttentionInterface._global_mapping["mine"]
        del AttentionMaskInterface._global_mapping["mine"]
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, 3, dtype=torch.int64)], 1)
    read = {"input_ids": tokens[:, :-1], "attention_mask": mask}
    for layer, weights in zip(record.layers, by_eager("llama", read), strict=True):
        agrees(layer, weights, mask.bool())


def test_a_function_that_ends_in_ours_is_recorded_once() -> None:
    def ours(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        return regard.attention(query, key, value).transpose(1, 2), None

    AttentionInterface.register("ours", ours)
    try:
        model = made("bert", "ours")
        with torch.no_grad(), regard.watch(model) as record:
            model(**inputs_of("bert"))
    finally:
        del AttentionInterface._global_mapping["ours"]
    assert [layer.name.split(".")[2] for layer in record.layers] == ["0", "1"]


def test_a_decoder_with_cross_attention_of_its_own_arguments() -> None:
    model = made("bert", "sdpa", is_decoder=True, add_cross_attention=True)
    inputs = {**inputs_of("bert"), "encoder_hidden_states": torch.randn(2, 11, 36)}
    with torch.no_grad(), regard.watch(model) as record:
        model(**inputs)
    assert [layer.cross for layer in record.layers] == [False, True, False, True]


def test_interfaces_are_the_librarys_own_again() -> None:
    model = made("llama", "sdpa")
    before = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)
    with pytest.raises(KeyError), regard.watch(model), regard.watch(model):
        raise KeyError
    assert ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None) is before
    assert "sdpa" in ALL_MASK_ATTENTION_FUNCTIONS
