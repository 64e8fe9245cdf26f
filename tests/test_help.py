"""`help()` and `repr()` of every public class: its own words and signature, an example, its options and parameters."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from torch import nn

import regard.functional
import regard.models
import regard.nn
import regard.positions
from every_layer import EXAMPLES
from regard.errors import UnsupportedError
from regard.models import ClassifierConfig, RecurrentConfig, TaggerConfig
from regard.nn import (
    AttentionPooling,
    BahdanauAttention,
    BlockConfig,
    CrossAttention,
    EncoderBlock,
    LuongAttention,
    MultiHeadAttention,
    SelfAttention,
)
from regard.positions import ALiBi, Relative, Rotary


def classes(*modules: ModuleType) -> list[type]:
    found = (getattr(module, name) for module in modules for name in module.__all__)
    return [thing for thing in found if isinstance(thing, type)]


PUBLIC = classes(regard.functional, regard.nn, regard.models, regard.positions)
by_name = pytest.mark.parametrize("name", EXAMPLES)


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.__name__)
def test_a_class_has_words_and_an_example_of_its_own(public: type) -> None:
    own = public.__dict__["__doc__"]
    assert own, "its docstring is that of a base class"
    assert ">>>" in own
    assert not inspect.signature(public).parameters.keys() & {"args", "kwargs"}
    for name, member in vars(public).items():
        if not name.startswith("_") and inspect.isroutine(member):
            assert inspect.getdoc(getattr(public, name)), name


MODULES = [public for public in PUBLIC if issubclass(public, nn.Module)]


@pytest.mark.parametrize("public", MODULES, ids=lambda public: public.__name__)
def test_a_module_says_what_it_is_made_of_and_what_a_call_returns(public: type[nn.Module]) -> None:
    methods = ["forward"] if issubclass(public, nn.MultiheadAttention) else ["__init__", "forward"]  # torch's own
    for name in methods:
        words = inspect.getdoc(getattr(public, name))
        assert words, name
        assert words != inspect.getdoc(getattr(nn.Module, name)), name


@by_name
def test_every_parameter_of_a_layer_is_in_its_repr(name: str) -> None:
    for path, layer in EXAMPLES[name]().named_modules():
        if type(layer).__module__.startswith(("regard.nn", "regard.models")):
            text = layer.extra_repr()
            for parameter, tensor in layer.named_parameters(recurse=False):
                assert f"{parameter}={tuple(tensor.shape)}" in text, path


@by_name
def test_the_repr_of_an_encoding_makes_the_same_one(name: str) -> None:
    for layer in EXAMPLES[name]().modules():
        if type(layer).__module__.startswith("regard.positions"):
            again = eval(repr(layer), vars(regard.positions))
            assert type(again) is type(layer)
            assert repr(again) == repr(layer)
            assert [x.shape for x in again.state_dict().values()] == [x.shape for x in layer.state_dict().values()]


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (SelfAttention(5), []),
        (SelfAttention(5, causal=True, dropout=0.25, impl="sdpa"), ["causal=True", "dropout=0.25", "impl='sdpa'"]),
        (CrossAttention(5, 7, dropout=0.25), ["dropout=0.25"]),
        (MultiHeadAttention(6, 3), ["num_heads=3"]),
        (MultiHeadAttention(6, 3, kv_heads=1, impl="reference"), ["num_heads=3", "kv_heads=1", "impl='reference'"]),
        (BahdanauAttention(5, 7, 3), ["w=(3,)"]),
        (BahdanauAttention(5, 7, 3, impl="cpu"), ["impl='cpu'", "w=(3,)"]),
        (LuongAttention(5, 5, "dot"), ["query_dim=5", "memory_dim=5", "score='dot'"]),
        (AttentionPooling(6, heads=3, key_dim=5), ["query=(3, 5)"]),
        (EncoderBlock(BlockConfig(6, 2)), []),
        (EncoderBlock(BlockConfig(6, 2, activation="gelu", norm_first=True)), ["activation='gelu'", "norm_first=True"]),
    ],
    ids=str,
)
def test_options_that_are_not_the_default_are_in_the_repr(layer: nn.Module, options: list[str]) -> None:
    assert layer.extra_repr() == ", ".join(options)


@pytest.mark.parametrize(
    "config",
    [RecurrentConfig(7, 11, 5, 6, input_feeding=False), TaggerConfig(7, 11, 5), ClassifierConfig(7, 5)],
    ids=lambda config: config.kind,
)
def test_a_model_shows_its_config(config: RecurrentConfig | TaggerConfig | ClassifierConfig) -> None:
    assert repr(config) in repr(config.build())


@pytest.mark.parametrize("encoding", [Relative(), Rotary(4), ALiBi(3)])
def test_an_encoding_within_attention_is_not_called(encoding: Relative) -> None:
    with pytest.raises(UnsupportedError, match=f"^{type(encoding).__name__} acts within attention .* positions=$"):
        encoding(None)
