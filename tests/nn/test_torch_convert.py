"""convert: what becomes of a model, and what stays as it was."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils import parametrizations

import regard
from regard.errors import ArgumentError, UnsupportedError
from regard.nn import TorchMultiheadAttention

B, T, SIZE = 3, 5, 12


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def encoder(**options: Any) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(SIZE, 2, 17, batch_first=True, **options), 2)


def padded(batch: int = B, length: int = T) -> tuple[Tensor, Tensor]:
    """An input, and what of it is padding, at the right; of the last example all is."""
    return torch.randn(batch, length, SIZE), torch.arange(length) >= torch.tensor([[length], [2], [0]])[:batch]


def layers(model: nn.Module) -> list[type]:
    return [type(module) for module in model.modules() if isinstance(module, nn.MultiheadAttention)]


def test_every_layer_in_any_tree_is_converted_in_place_and_back() -> None:
    shared = nn.MultiheadAttention(SIZE, 3, kdim=7)
    model = nn.ModuleDict(
        {
            "transformer": nn.Transformer(SIZE, 2, 1, 2, 17, batch_first=True),
            "list": nn.ModuleList([shared, nn.Sequential(shared), nn.MultiheadAttention(SIZE, 3, bias=False)]),
        }
    ).to(torch.float64)
    model["list"].eval()
    before = copy.deepcopy(model)
    modules, parameters, keys = dict(model.named_modules()), dict(model.named_parameters()), list(model.state_dict())
    modes = {name: module.training for name, module in modules.items()}
    for back, expected in [(False, TorchMultiheadAttention), (True, nn.MultiheadAttention)]:
        for _ in range(2):  # the second time there is nothing left to do
            assert regard.convert(model, back=back) is model
        assert layers(model) == [expected] * 7
        assert all(module is modules[name] for name, module in model.named_modules())
        assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
        assert list(model.state_dict()) == keys
        assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(vars(a).keys() == vars(b).keys() for a, b in zip(model.modules(), before.modules(), strict=True))
    flags = ("_qkv_same_embed_dim", "use_nested_tensor")
    for module, other in zip(model.modules(), before.modules(), strict=True):
        assert [getattr(module, flag, None) for flag in flags] == [getattr(other, flag, None) for flag in flags]


def test_a_layer_by_itself_is_the_root() -> None:
    layer = nn.MultiheadAttention(SIZE, 2)
    assert type(regard.convert(layer)) is TorchMultiheadAttention
    assert type(regard.convert(layer, back=True)) is nn.MultiheadAttention


def test_optimizers_hooks_and_tied_weights_go_on() -> None:
    model = encoder(dropout=0.0)
    one, other = (layer.self_attn for layer in model.layers)
    other.out_proj.weight = one.out_proj.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[nn.Module] = []
    one.register_forward_hook(lambda module, *_: calls.append(module))
    before = copy.deepcopy(model)
    regard.convert(model)
    model(torch.randn(B, T, SIZE)).square().sum().backward()
    optimizer.step()
    assert calls == [one]
    assert one.out_proj.weight is other.out_proj.weight
    for name, parameter in before.named_parameters():
        if "norm" not in name:
            assert not torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.parametrize("layer_norm_first", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
def test_evaluation_takes_the_path_of_training(layer_norm_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder(norm_first=layer_norm_first).eval()
    x, padding = padded()
    layer = model.layers[0]
    fused = []
    for name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_nested_tensor_from_mask"):
        kernel = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *args, name=name, kernel=kernel, **more: fused.append(name) or kernel(*args, **more)
        )

    def call_all() -> list[Tensor]:
        with torch.no_grad():
            return [
                model(x),
                model(x, src_key_padding_mask=padding),
                layer(x, src_key_padding_mask=padding),
                layer.self_attn(x, x, x)[0],
            ]

    before = call_all()
    assert set(fused) >= {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}
    fused.clear()
    regard.convert(model)
    after = call_all()
    assert not fused
    for found, expected in zip(after, before, strict=True):
        torch.testing.assert_close(found[:1], expected[:1])  # the example without padding: torch zeroes what is padded
        assert found.isfinite().all()
    with_gradient = model(x, src_key_padding_mask=padding)
    assert torch.equal(after[1], with_gradient)
    with torch.inference_mode():
        assert torch.equal(model(x, src_key_padding_mask=padding), with_gradient)
    call_all()
    regard.convert(model, back=True)
    call_all()
    assert set(fused) >= {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"}


def test_an_encoder_of_which_one_layer_was_converted_says_so() -> None:
    model = encoder().eval()
    regard.convert(model.layers[0])
    x, padding = padded()
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"convert a .*TransformerEncoder as a whole"):
        model(x, src_key_padding_mask=padding)
    assert regard.convert(model)(x, src_key_padding_mask=padding).isfinite().all()


def test_copies_pickles_and_files_give_the_same(tmp_path) -> None:
    model = regard.convert(encoder()).eval()
    x, padding = padded()
    expected = model(x, src_key_padding_mask=padding)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert layers(other) == layers(model)
        assert torch.equal(other(x, src_key_padding_mask=padding), expected)
    save_model(model, str(tmp_path / "model.safetensors"))
    plain = encoder().eval()
    load_model(plain, str(tmp_path / "model.safetensors"))
    assert torch.equal(regard.convert(plain)(x, src_key_padding_mask=padding), expected)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(x, src_key_padding_mask=padding), expected)


def test_a_converted_encoder_compiles_whole() -> None:
    model = regard.convert(encoder()).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for batch, length in [(3, 5), (2, 7)]:
        x, padding = padded(batch, length)
        band = nn.Transformer.generate_square_subsequent_mask(length)
        added = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        for call in [{}, {"mask": band, "is_causal": True, "src_key_padding_mask": added}]:
            torch.testing.assert_close(compiled(x, **call), model(x, **call))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch.compile itself
def test_weights_and_their_gradients_compile() -> None:
    layer = regard.convert(nn.MultiheadAttention(SIZE, 3))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(T, B, SIZE)
    found = []
    for one in (compiled, layer):
        layer.zero_grad()
        output, weights = one(x, x, x)
        (output.sum() + weights.square().sum()).backward()
        found.append((output, weights, layer.in_proj_weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("strict", [True, False])
def test_a_converted_encoder_is_exported_for_any_batch_and_length(strict: bool) -> None:
    model = regard.convert(encoder()).eval()
    x, padding = padded()
    sizes = {0: Dim("batch", min=2), 1: Dim("length", min=2)}
    shapes = {"src": sizes, "src_key_padding_mask": sizes}
    exported = torch.export.export(model, (x,), {"src_key_padding_mask": padding}, dynamic_shapes=shapes, strict=strict)
    for batch, length in [(3, 5), (2, 11)]:
        x, padding = padded(batch, length)
        expected = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(exported.module()(x, src_key_padding_mask=padding), expected)


def test_gradients_of_each_example_by_vmap() -> None:
    layer = regard.convert(nn.MultiheadAttention(SIZE, 3))
    parameters, x = dict(layer.named_parameters()), torch.randn(B, T, SIZE)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output, weights = torch.func.functional_call(layer, parameters, (x, x, x))
        return output.sum() + weights.square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for row in range(B):
        alone = torch.func.grad(loss)(parameters, x[row])
        for name, gradient in alone.items():
            torch.testing.assert_close(found[name][row], gradient, rtol=1e-5, atol=1e-5)


def test_a_layer_of_ours_can_be_built_and_drawn_anew() -> None:
    layer = TorchMultiheadAttention(SIZE, 2, kdim=7, add_bias_kv=True, dropout=0.1, device="cpu", dtype=torch.float64)
    other = nn.MultiheadAttention(SIZE, 2, kdim=7, add_bias_kv=True)
    assert layer.state_dict().keys() == other.state_dict().keys()
    for made in (layer, TorchMultiheadAttention(SIZE, 2)):
        before = copy.deepcopy(made.state_dict())
        made._reset_parameters()
        changed = {name for name, x in made.state_dict().items() if not torch.equal(x, before[name])}
        assert changed == {
            name for name in before if name.endswith(("in_proj_weight", "_proj_weight", "bias_k", "bias_v"))
        }
        assert made._qkv_same_embed_dim is False


class Own(nn.MultiheadAttention):
    """A layer whose forward may be its own."""


def test_a_subclass_is_left_alone_and_said_to_be() -> None:
    model = nn.ModuleDict({"own": Own(SIZE, 2), "theirs": nn.MultiheadAttention(SIZE, 2)})
    with pytest.warns(UserWarning, match="own is left alone: Own is a subclass"):
        regard.convert(model)
    assert layers(model) == [Own, TorchMultiheadAttention]
    regard.convert(regard.convert(model, back=True)["theirs"])
    parametrizations.weight_norm(model["theirs"], "in_proj_weight")
    with pytest.warns(UserWarning, match="theirs is left alone: ParametrizedTorchMultiheadAttention is a subclass"):
        regard.convert(nn.ModuleDict({"theirs": model["theirs"]}), back=True)
    assert model["theirs"](*[torch.randn(T, SIZE)] * 3)[0].isfinite().all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "found none in Linear"),
        (regard.nn.MultiHeadAttention(4, 2), "found none in MultiHeadAttention"),
        ({"query": 1}, "must be a torch.nn.Module, got dict"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(model: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        regard.convert(model)
    assert "\n" not in str(caught.value)
