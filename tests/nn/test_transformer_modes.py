"""Encoder, decoder and steps through a cache where they are compiled, exported and cast."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.functional import Observe, causal, padding
from regard.nn import (
    BlockConfig,
    EncoderBlock,
    KeyValueCache,
    MultiHeadAttention,
    TransformerDecoder,
    TransformerEncoder,
)
from regard.positions import ALiBi, Rotary, Shaw, T5Bias

B, HEADS, SIZE, HIDDEN = 3, 2, 4, 13
DIM = HEADS * SIZE
PLAIN = BlockConfig(DIM, HEADS, HIDDEN, dropout=0.0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Masked(nn.Module):
    """A model with an encoder, a decoder, padding, and statistics."""

    def __init__(self, positions: Any) -> None:
        super().__init__()
        config = dataclasses.replace(PLAIN, positions=positions, norm_first=True)
        self.encoder, self.decoder = TransformerEncoder(config, 1), TransformerDecoder(config, 1)

    def forward(self, x: Tensor, source: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.encoder(source, mask=padding(keep))
        output, seen = self.decoder(x, memory, memory_mask=padding(keep), observe=Observe(entropy=True))
        return output, seen.cross_attention[0].entropy


class Step(nn.Module):
    """A step whose state is tensors, as a runtime outside Python has it."""

    def __init__(self, positions: Any) -> None:
        super().__init__()
        self.layer = MultiHeadAttention(DIM, HEADS, causal=True, positions=positions())

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        cache = KeyValueCache()
        cache.append(keys, values)
        return self.layer(x, cache=cache), cache.key, cache.value


def sequences(batch: int, queries: int, keys: int) -> tuple[Tensor, ...]:
    keep = torch.rand(batch, keys) < 0.6
    keep[0] = False
    return torch.randn(batch, queries, DIM), torch.randn(batch, keys, DIM), keep


def step_arguments(batch: int, queries: int, keys: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, queries, DIM), *torch.randn(2, batch, HEADS, keys, SIZE).unbind()


POSITIONS = {"rotary": lambda: Rotary(SIZE), "t5": lambda: T5Bias(HEADS), "shaw": lambda: Shaw(SIZE, 3)}


@pytest.mark.parametrize("positions", ["rotary", "shaw"])
def test_exported_with_free_sizes(positions: str) -> None:
    sizes = [torch.export.Dim(name, min=2, max=64) for name in ("B", "Tq", "Tk")]
    model = Masked(POSITIONS[positions]).eval()
    free = {"x": {0: sizes[0], 1: sizes[1]}, "source": {0: sizes[0], 1: sizes[2]}, "keep": {0: sizes[0], 1: sizes[2]}}
    program = torch.export.export(model, sequences(3, 5, 7), dynamic_shapes=free).module()
    for shape in [(4, 9, 5), (2, 3, 13)]:
        given = sequences(*shape)
        torch.testing.assert_close(program(*given), model(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_step_exported_with_free_sizes(recorded: bool) -> None:
    sizes = [torch.export.Dim(name, min=2, max=64) for name in ("B", "Tq", "Tk")]
    model = Step(lambda: ALiBi(HEADS))
    free = {"x": {0: sizes[0], 1: sizes[1]}, "keys": {0: sizes[0], 2: sizes[2]}, "values": {0: sizes[0], 2: sizes[2]}}
    with torch.set_grad_enabled(recorded):
        program = torch.export.export(model, step_arguments(3, 5, 7), dynamic_shapes=free).module()
        for shape in [(4, 9, 5), (2, 3, 13)]:
            given = step_arguments(*shape)
            torch.testing.assert_close(program(*given), model(*given), atol=1e-5, rtol=1e-5)


def test_compiled_whole() -> None:
    torch.compiler.reset()
    model = Masked(POSITIONS["shaw"])
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for shape in [(3, 5, 7), (4, 9, 6)]:
        given = sequences(*shape)
        torch.testing.assert_close(compiled(*given), model(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", [None, POSITIONS["shaw"]], ids=["none", "shaw"])
def test_gradients_of_what_is_compiled(positions: Any) -> None:
    torch.compiler.reset()
    block = EncoderBlock(dataclasses.replace(PLAIN, positions=positions))
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x, _, keep = sequences(3, 7, 7)
    results = []
    for function in (block, compiled):
        block.zero_grad()
        output = function(x, mask=causal() & padding(keep))
        output.square().sum().backward()
        results.append([output.detach(), *(p.grad for p in block.parameters())])
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_steps_compiled_whole_for_every_length() -> None:
    torch.compiler.reset()
    layer = MultiHeadAttention(DIM, HEADS, causal=True, positions=ALiBi(HEADS))
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda x, cache: layer(x, cache=cache), fullgraph=True, backend=counted)
    x, cache = torch.randn(B, 9, DIM), KeyValueCache()
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([step(token, cache) for token in x.split(1, 1)], 1), layer(x))
    assert counted.frame_count <= 3, "compiled anew with the length"


@pytest.mark.parametrize("name", ["none", *POSITIONS])
def test_under_autocast(name: str) -> None:
    model = Masked(POSITIONS.get(name)).eval()
    given = sequences(3, 5, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = model(*given)
        state = model.decoder.start(given[1])
        steps = [model.decoder(token, state) for token in given[0].split(1, 1)]
    torch.testing.assert_close(output.float(), model(*given)[0], rtol=0.1, atol=0.1)
    torch.testing.assert_close(torch.cat(steps, 1).float(), model.decoder(*given[:2]), rtol=0.1, atol=0.1)
    assert state.own[0].key.dtype == torch.bfloat16
