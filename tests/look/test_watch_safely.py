"""A watched model computes the same and is left unchanged; the laws hold for its record."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend
from torch.utils.checkpoint import checkpoint

import regard
from regard import Observe
from regard.errors import UnsupportedError
from regard.nn import MultiHeadAttention

EVERYTHING = Observe(
    weights=True, entropy=True, received=True, top=3, position=True, max=True, distance=True, offsets=(0, -1)
)
B, T, DIM, HEADS = 2, 7, 12, 3
pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


class Torchs(nn.Module):
    """Attention by torch's function."""

    def __init__(self, dropout_p: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.dropout_p = dropout_p

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(-3, -2) for f in (self.q, self.k, self.v))
        attended = attend(q, k, v, attn_mask=allowed, dropout_p=self.dropout_p)
        return attended.transpose(-3, -2).flatten(-2)


class TorchsLayer(nn.Module):
    """Attention by torch's layer."""

    def __init__(self, dropout_p: float = 0.0, need_weights: bool = False) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(DIM, HEADS, dropout=dropout_p, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        hidden = None if allowed is None else ~allowed.expand(len(x), HEADS, *allowed.shape[-2:]).flatten(0, 1)
        return self.layer(x, x, x, attn_mask=hidden, need_weights=self.need_weights)[0]


class Ours(nn.Module):
    """Attention by `regard.nn`."""

    def __init__(self, dropout_p: float = 0.0, score: str = "scaled_dot") -> None:
        super().__init__()
        self.layer = MultiHeadAttention(DIM, HEADS, dropout=dropout_p, score=score)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        return self.layer(x, mask=allowed)


def with_weights(dropout_p: float = 0.0) -> nn.Module:
    return TorchsLayer(dropout_p, need_weights=True)


def additive(dropout_p: float = 0.0) -> nn.Module:
    return Ours(dropout_p, score="additive")


MODELS = [Torchs, TorchsLayer, with_weights, Ours, additive]
every_model = pytest.mark.parametrize("make", MODELS)


def watched(model: nn.Module, *args: Any, **options: Any) -> regard.look.Layer:
    with regard.watch(model, EVERYTHING, **options) as record:
        model(*args)
    return record.layers[0]


def same_seen(one: regard.look.Layer, other: regard.look.Layer, at: Any = slice(None)) -> None:
    for name, value in vars(one.statistics).items():
        if value is not None and name != "received":
            pairs = (
                zip(value, getattr(other.statistics, name), strict=True)
                if name == "top"
                else [(value, getattr(other.statistics, name))]
            )
            for a, b in pairs:
                torch.testing.assert_close(a[at], b[at], msg=lambda text, name=name: f"{name}: {text}")


# --- law 1


@every_model
@given(st.sampled_from([0.0, 0.4]), st.booleans(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_law_1_output_gradients_and_random_numbers_are_the_same_bits(
    make: Callable[[float], nn.Module], dropout_p: float, masked: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    model = make(dropout_p).to(dtype)
    x = torch.randn(B, T, DIM, dtype=dtype, requires_grad=True)
    allowed = (torch.rand(B, 1, T, T) > 0.3) | torch.eye(T, dtype=torch.bool) if masked else None

    def run() -> list[Tensor]:
        torch.manual_seed(2)
        output = model(x, allowed)
        gradients = torch.autograd.grad(output.square().sum(), [x, *model.parameters()], allow_unused=True)
        return [output, *(g for g in gradients if g is not None), torch.rand(3)]

    plain = run()
    with regard.watch(model, EVERYTHING, keep_inputs=True) as record:
        watched = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert len(record.layers) == 1
    weights = record.layers[0].statistics.weights  # of the probabilities before dropout
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, HEADS, T), atol=1e-3, rtol=0)


@every_model
def test_grad_mode_and_inference_mode_are_the_users(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(B, T, DIM)
    with regard.watch(model):
        assert model(x).requires_grad
        with torch.no_grad():
            assert not model(x).requires_grad
        with torch.inference_mode():
            assert model(x).is_inference()
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16


# --- laws 2 to 5


@every_model
def test_law_2_a_row_that_may_attend_to_nothing(make: Callable[[], nn.Module]) -> None:
    model, x = make().eval(), torch.randn(B, T, DIM)
    allowed = torch.rand(B, 1, T, T) > 0.3
    allowed[0, 0, 2] = False
    statistics = watched(model, x, allowed).statistics
    assert not statistics.weights[0, :, 2].any()
    assert not statistics.entropy[0, :, 2].any()
    assert (statistics.top.keys[0, :, 2] == -1).all()
    same_seen(watched(model, x[1:], allowed[1:]), layer_of(watched(model, x, allowed), 1))


def layer_of(layer: regard.look.Layer, row: int) -> regard.look.Layer:
    statistics = {
        name: type(value)(*(x[row : row + 1] for x in value)) if name == "top" else value[row : row + 1]
        for name, value in vars(layer.statistics).items()
        if value is not None
    }
    return regard.look.Layer(layer.name, type(layer.statistics)(**statistics), (1, *layer.shape[1:]), layer.heads)


@every_model
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_law_3_what_is_masked_has_no_influence(make: Callable[[], nn.Module], value: float) -> None:
    model, x = make().eval(), torch.randn(B, T, DIM)
    allowed = torch.rand(B, 1, T, T) > 0.3
    allowed[..., 3] = False
    allowed[..., 0] = True
    spoilt = x.clone()
    spoilt[:, 3] = value
    others = (slice(None), slice(None), [0, 1, 2, 4, 5, 6])
    same_seen(watched(model, x, allowed), watched(model, spoilt, allowed), others)


@every_model
def test_law_4_what_comes_later_has_no_influence(make: Callable[[], nn.Module]) -> None:
    model, x = make().eval(), torch.randn(B, T, DIM)
    allowed = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
    changed = x.clone()
    changed[:, 4:] = torch.randn(B, T - 4, DIM)
    same_seen(watched(model, x, allowed), watched(model, changed, allowed), (slice(None), slice(None), slice(4)))


@every_model
@pytest.mark.parametrize("left", [True, False])
def test_law_5_an_example_alone_is_itself_in_a_padded_batch(make: Callable[[], nn.Module], left: bool) -> None:
    model, x = make().eval(), torch.randn(B, T, DIM)
    at = slice(3, T) if left else slice(0, 4)
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool)
    allowed[1] = False
    allowed[1, ..., at] = True
    alone, padded = watched(model, x[1:, at]).statistics, watched(model, x, allowed).statistics
    torch.testing.assert_close(padded.weights[1:, :, at, at], alone.weights)
    for name in ("entropy", "max", "distance"):
        torch.testing.assert_close(getattr(padded, name)[1:, :, at], getattr(alone, name))
    if make is not Torchs:  # which does not tell whether it attends to itself
        torch.testing.assert_close(padded.received[1:, :, at], alone.received)


# --- settings, faults, nesting, threads


def test_a_fault_within_leaves_nothing_behind() -> None:
    class Faulty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Torchs()

        def forward(self, x: Tensor, fails: bool) -> Tensor:
            try:
                return self.inner(x, torch.ones(5) if fails else None)
            except IndexError:
                return self.inner(x)

    model, x = Faulty(), torch.randn(B, T, DIM)
    with regard.watch(model) as record:
        model(x, True)
        model(x, False)
    assert [layer.name for layer in record.layers] == ["inner", "inner"]
    with pytest.raises(TypeError, match="fails"), regard.watch(model) as record:
        model.inner(x), model(x)
    assert len(record.layers) == 1  # what was seen before the fault
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_fast_path_is_as_the_user_had_it() -> None:
    model = TorchsLayer()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with regard.watch(model):
            model(torch.randn(B, T, DIM))
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@every_model
def test_nested_watches_both_see(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(B, T, DIM)
    whole = nn.Sequential(model, nn.Identity())
    with regard.watch(whole, EVERYTHING) as outer:
        whole(x)
        with regard.watch(model, EVERYTHING, heads=1) as inner:
            whole(x)
        whole(x)
    assert (len(outer.layers), len(inner.layers)) == (3, 1)
    torch.testing.assert_close(inner.layers[0].statistics.entropy, outer.layers[1].statistics.entropy[:, 1:2])
    assert [outer.layers[0].name.split(".")[0], inner.layers[0].heads] == ["0", (1,)]


def test_only_the_thread_that_watches_is_seen() -> None:
    model, x, both = TorchsLayer(), torch.randn(B, T, DIM), threading.Barrier(2)
    found: dict[str, list[int]] = {}

    def work(name: str, times: int) -> None:
        with regard.watch(model) as record:
            both.wait(30)
            for _ in range(times):
                model(x)
            both.wait(30)
        found[name] = [layer.shape[0] for layer in record.layers]

    threads = [threading.Thread(target=work, args=(f"thread {n}", n)) for n in (2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"thread 2": [B] * 2, "thread 5": [B] * 5}


def test_a_module_at_work_in_another_thread_gives_no_name() -> None:
    class Waiting(Torchs):
        def forward(self, x: Tensor) -> Tensor:
            self.meets()
            return super().forward(x)

    model, x = nn.ModuleList([Waiting(), Waiting()]), torch.randn(B, T, DIM)
    inside, done = threading.Event(), threading.Event()
    other = threading.Thread(target=model[1], args=(x,))

    def meets() -> None:
        other.start()
        inside.wait(30)

    model[0].meets = meets
    model[1].meets = lambda: (inside.set(), done.wait(30))
    with regard.watch(model) as record:
        model[0](x)
        done.set()
        other.join()
    assert [layer.name for layer in record.layers] == ["0"]


def test_another_thread_is_not_disturbed() -> None:
    model, x = Ours(), torch.randn(B, T, DIM)
    with regard.watch(model) as record:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        model(x)
    assert len(record.layers) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_seen_once(reentrant: bool) -> None:
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Torchs()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model, x = Saving(), torch.randn(B, T, DIM, requires_grad=True)
    with regard.watch(model) as record:
        model(x).sum().backward()
    assert len(record.layers) == 1


# --- compiled, traced, exported


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_watched_uncompiled() -> None:
    model, x = TorchsLayer(), torch.randn(B, T, DIM)
    times = []

    def backend(graph: Any, _: Any) -> Any:
        times.append(1)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        with regard.watch(compiled) as record:
            compiled(x)
        assert not times
        assert [layer.name for layer in record.layers] == ["layer"]
        compiled(x)
    assert times


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:There is a performance drop:UserWarning")
def test_scripted_traced_exported_and_transformed_models_are_refused() -> None:
    model, x = Torchs().eval(), torch.randn(B, T, DIM)
    with pytest.raises(UnsupportedError, match="scripted"), regard.watch(torch.jit.trace(model, x)):
        pass
    with regard.watch(model), pytest.raises(UnsupportedError, match="being traced"):
        torch.jit.trace(model, x)
    with regard.watch(model), pytest.raises(UnsupportedError, match="export"):
        torch.export.export(model, (x,))
    with regard.watch(model), pytest.raises(UnsupportedError, match="transformed"):
        torch.vmap(model)(x[:, None])
