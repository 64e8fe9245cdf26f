"""Models as ONNX graphs: one of the encoder, and one of a step of the decoder.

A graph is made from a model alone. The files that a run adds for its users are written by `regard.tasks.onnx_folder`.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.functional import padding
from regard.models.recurrent import Memory, RecurrentSeq2Seq
from regard.models.transformer import TransformerMemory, TransformerSeq2Seq
from regard.nn import BahdanauAttention, DecoderBlock, DecoderState, KeyValueCache, LuongAttention
from regard.positions import Learned

try:
    import onnx  # noqa: F401
    import onnxruntime  # type: ignore[import-untyped]
    import onnxscript  # noqa: F401
except ModuleNotFoundError as error:
    raise RegardError(f"export needs {error.name}, which is not installed: pip install 'regard[export]'") from error

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from regard.functional import Mask
    from regard.models import Seq2Seq

    Shape = tuple[str | int, ...]  # a size by its name is free

__all__ = ["Graph", "dtype_of", "graphs", "largest_error", "write_graph"]

# Sizes to trace with: all different, and never 1, which the exporter takes for a constant.
_TRACED = {"batch": 3, "length": 5, "hypotheses": 2, "steps": 4}
# Others to check with, the least among them: batch, length, hypotheses, steps.
_CHECKED = ((1, 1, 1, 2), (4, 7, 3, 5), (2, 13, 1, 9))
# Torch's gates r z n and i f g o, in the order in which ONNX has them: z r n and i o f g.
_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}


class Graph(NamedTuple):
    """A module to export, with the names and shapes of its inputs and outputs, in their order."""

    module: nn.Module
    inputs: dict[str, Shape]
    outputs: dict[str, Shape]


def graphs(model: Seq2Seq) -> dict[str, Graph]:
    """Return the two graphs of a model, "encoder" and "decoder".

    The encoder returns the memory, which does not change later, and the state before the first step, of one hypothesis
    for each source. The decoder takes both with the last tokens, and returns logits and the next state. The first axis
    of every tensor is the batch, and of the state's parts the second is the hypotheses.

    >>> from regard.models import RecurrentConfig
    >>> decoder = graphs(RecurrentSeq2Seq(RecurrentConfig(11, 13, hidden_dim=6, score="dot")))["decoder"]
    >>> list(decoder.inputs), decoder.outputs["logits"]
    (['tokens', 'memory_states', 'memory_keep', 'state_hidden'], ('batch', 'hypotheses', 13))
    """
    model = copy.deepcopy(model).cpu().float().eval()
    stepwise = _stepwise(model)
    start: dict[str, Shape] = {
        name: (shape[0], 1, *(0 if size == "steps" else size for size in shape[2:]))
        for name, shape in stepwise.state.items()
    }
    after: dict[str, Shape] = {
        f"next_{name}": tuple("steps + 1" if size == "steps" else size for size in shape)
        for name, shape in stepwise.state.items()
    }
    logits: Shape = ("batch", "hypotheses", model.config.target_size)
    source: dict[str, Shape] = {"source": ("batch", "length"), "lengths": ("batch",)}
    tokens: dict[str, Shape] = {"tokens": ("batch", "hypotheses")}
    return {
        "encoder": Graph(_Encoder(stepwise), source, {**stepwise.memory, **start}),
        "decoder": Graph(
            _Decoder(stepwise), {**tokens, **stepwise.memory, **stepwise.state}, {"logits": logits, **after}
        ),
    }


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of an input or output."""
    if name in ("source", "lengths", "tokens"):
        return torch.int64
    return torch.bool if name == "memory_keep" else torch.float32


class _StepwiseModel(nn.Module):
    """A model whose memory and state are plain tensors, with their names and shapes, in their order."""

    memory: dict[str, Shape]
    state: dict[str, Shape]

    def tensors(self, memory: Any, state: Any) -> tuple[Tensor, ...]:
        """Return the tensors of a memory and a state of the model."""
        raise NotImplementedError

    def encode(self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]) -> tuple[Tensor, ...]:
        """Compute the encoder's graph."""
        raise NotImplementedError

    def step(self, tokens: Int[Tensor, "B K"], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute the decoder's graph."""
        raise NotImplementedError


def _stepwise(model: Seq2Seq) -> _StepwiseModel:
    return _Recurrent(model) if isinstance(model, RecurrentSeq2Seq) else _Transformer(model)


class _Encoder(nn.Module):
    def __init__(self, stepwise: _StepwiseModel) -> None:
        super().__init__()
        self.stepwise = stepwise

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.stepwise.encode(*inputs)


class _Decoder(nn.Module):
    def __init__(self, stepwise: _StepwiseModel) -> None:
        super().__init__()
        self.stepwise = stepwise

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.stepwise.step(*inputs)


class _Recurrent(_StepwiseModel):
    def __init__(self, model: RecurrentSeq2Seq) -> None:
        super().__init__()
        self.model = model
        if isinstance(model.attention, BahdanauAttention):
            model.attention.impl = "reference"  # plain operators: ONNX has no operator for additive scores
        size = model.config.hidden_dim
        self.memory = {"memory_last": ("batch", 1, size)}
        if model.attention is not None:
            self.memory = {"memory_states": ("batch", "length", size), "memory_keys": ("batch", "length", size)}
            self.memory["memory_keep"] = ("batch", "length")
            if isinstance(model.attention, LuongAttention) and model.attention.W_a is None:
                del self.memory["memory_keys"]  # the states are the keys
        names = ("state_hidden", "state_cell")[: model.cell.parts]
        self.state = dict.fromkeys(names, ("batch", "hypotheses", size))

    def tensors(self, memory: Memory, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = {"memory_states": memory.states, "memory_keys": memory.keys, "memory_last": memory.last}
        if "memory_keep" in self.memory:
            found["memory_keep"] = _keep(memory.mask, memory.states)
        return tuple(tensor for name in self.memory if (tensor := found[name]) is not None) + state

    def encode(self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]) -> tuple[Tensor, ...]:
        states = self.model.source_embedding(source)
        for layer in range(self.model.encoder.num_layers):
            states, last = _recurrence(self.model.encoder, layer, states, lengths)
        memory = self.model.remember(states, last, lengths)
        return self.tensors(memory, self.model.start(memory))

    def step(self, tokens: Int[Tensor, "B K"], *tensors: Tensor) -> tuple[Tensor, ...]:
        found = dict(zip([*self.memory, *self.state], tensors, strict=True))
        state = tuple(found[name] for name in self.state)
        if "memory_last" in found:
            memory = Memory(found["memory_last"], None, padding(lengths=[]), found["memory_last"])
        else:
            states = found["memory_states"]
            memory = Memory(states, found.get("memory_keys", states), padding(found["memory_keep"]), states[:, :1])
        logits, state, _ = self.model.step(tokens, state, memory)
        return logits, *state


def _recurrence(
    encoder: nn.RNNBase, layer: int, rows: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "2 B half"]]:
    """Run one layer in both directions by ONNX's own operator, which takes lengths; torch would unroll all steps."""
    order = _GATES[encoder.mode]

    def ordered(gates: Tensor) -> Tensor:
        chunks = gates.chunk(len(order))
        return torch.cat([chunks[gate] for gate in order])

    directions = [[ordered(part) for part in parts] for parts in encoder.all_weights[2 * layer : 2 * layer + 2]]
    of_input, of_hidden, bias, other_bias = (torch.stack(parts) for parts in zip(*directions, strict=True))
    batch, length, size = rows.shape[0], rows.shape[1], encoder.hidden_size
    states, last = torch.onnx.ops.symbolic_multi_out(
        encoder.mode,
        [rows.transpose(0, 1), of_input, of_hidden, torch.cat((bias, other_bias), -1), lengths.int()],
        {
            "direction": "bidirectional",
            "hidden_size": size,
            **({"linear_before_reset": 1} if encoder.mode == "GRU" else {}),
        },
        dtypes=(rows.dtype, rows.dtype),
        shapes=((length, 2, batch, size), (2, batch, size)),
    )
    return states.permute(2, 0, 1, 3).flatten(2), last


class _Transformer(_StepwiseModel):
    def __init__(self, model: TransformerSeq2Seq) -> None:
        super().__init__()
        self.model = model
        config = model.config
        if isinstance(model.target_positions, Learned):
            model.target_positions = _UncheckedLearned(model.target_positions)
        for block in model.decoder.layers:
            if isinstance(block, DecoderBlock):
                block.self_attn.causal = False  # a step has one token, which attends to all before it
        layers, heads, size = config.decoder_layers, config.heads, config.dim // config.heads
        self.memory = dict.fromkeys(("memory_keys", "memory_values"), ("batch", layers, heads, "length", size))
        self.memory["memory_keep"] = ("batch", "length")
        own = ("batch", "hypotheses", layers, heads, "steps", size)
        self.state = dict.fromkeys(("state_keys", "state_values"), own)

    def tensors(self, memory: TransformerMemory, state: DecoderState) -> tuple[Tensor, ...]:
        keys, values = _stacked(state.cross)
        _, layers, heads, _, size = keys.shape
        batch = keys.shape[0]
        if state.own[0].key is None:
            own = [keys.new_zeros(batch, 1, layers, heads, 0, size) for _ in range(2)]
        else:
            own = [part.view(batch, -1, *part.shape[1:]) for part in _stacked(state.own)]
        return keys, values, _keep(memory.mask, memory.states), *own

    def encode(self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"]) -> tuple[Tensor, ...]:
        memory = self.model.encode(source, lengths)
        return self.tensors(memory, self.model.start(memory))

    def step(self, tokens: Int[Tensor, "B K"], *tensors: Tensor) -> tuple[Tensor, ...]:
        keys, values, keep, own_keys, own_values = tensors
        cross = (KeyValueCache.of_memory(*layer) for layer in zip(keys.unbind(1), values.unbind(1), strict=True))
        own = []
        for layer in zip(own_keys.flatten(0, 1).unbind(1), own_values.flatten(0, 1).unbind(1), strict=True):
            own.append(KeyValueCache())
            own[-1].append(*layer)
        state = DecoderState(tuple(own), tuple(cross), padding(keep))
        # A step does not use the memory's states: their keys and values are computed already.
        logits, state, _ = self.model.step(tokens, state, TransformerMemory(keys, padding(keep)))
        return logits, *(part.view(*tokens.shape, *part.shape[1:]) for part in _stacked(state.own))


class _UncheckedLearned(Learned):
    """Learned positions without the check of their range, which reads values; the runtime rejects others."""

    def __init__(self, positions: Learned) -> None:
        super().__init__(*positions.weight.shape)
        self.weight = positions.weight

    def _check_length(self, *_: object) -> None:
        """Skip the check: a graph has no values to read."""


def _stacked(caches: tuple[KeyValueCache, ...]) -> tuple[Float[Tensor, "N L H T d"], Float[Tensor, "N L H T d"]]:
    """Stack the keys and the values of all layers."""
    keys = [cache.key for cache in caches if cache.key is not None]
    values = [cache.value for cache in caches if cache.value is not None]
    return torch.stack(keys, 1), torch.stack(values, 1)


def _keep(mask: Mask, states: Float[Tensor, "B Tk D"]) -> Tensor:
    """Return a mask (B, Tk) of the states that are not padding."""
    return mask.table((states.shape[0], 1, states.shape[1]), states.device)[:, 0]


def write_graph(graph: Graph, path: Path) -> None:
    """Write a graph as an ONNX file for any batch, lengths, number of hypotheses and steps."""
    inputs = []
    for name, shape in graph.inputs.items():
        sizes = [_TRACED[size] if isinstance(size, str) else size for size in shape]
        # Ones are valid ids, lengths, masks and numbers
        inputs.append(torch.ones(sizes, dtype=dtype_of(name)))
    free = [{axis: size for axis, size in enumerate(shape) if isinstance(size, str)} for shape in graph.inputs.values()]
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph.module,
            tuple(inputs),
            dynamo=True,
            verbose=False,
            dynamic_shapes=(tuple(free),),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
        )
    if program is None:
        raise RegardError(f"torch made no graph for {path.name}; upgrade with: pip install -U torch onnxscript")
    for node in program.model.graph:
        node.metadata_props.clear()  # source files and lines of this machine
    program.save(path, external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's log messages and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def largest_error(model: Seq2Seq, encoder: Path, decoder: Path) -> float:
    """Return the largest difference between outputs of the graphs in onnxruntime and the model's, for several sizes."""
    model = copy.deepcopy(model).cpu().float().eval()
    stepwise = _stepwise(copy.deepcopy(model))
    sessions = _session(encoder), _session(decoder)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return max(error for sizes in _CHECKED for error in _errors(model, stepwise, *sessions, sizes, random))


def _session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _errors(
    model: Seq2Seq,
    stepwise: _StepwiseModel,
    encoder: Any,
    decoder: Any,
    sizes: tuple[int, ...],
    random: torch.Generator,
) -> Iterator[float]:
    """Yield the error of each tensor of the encoder and of some steps, which continue from the graph's own state."""
    batch, length, hypotheses, steps = sizes
    if isinstance(model, TransformerSeq2Seq) and model.config.positions == "learned":
        length, steps = min(length, model.config.max_length), min(steps, model.config.max_length)
    lengths = torch.randint(1, length + 1, (batch,), generator=random)
    source = torch.randint(model.config.source_size, (batch, length), generator=random)
    memory: Any = model.encode(source, lengths)
    state: Any = model.start(memory)
    answers = encoder.run(None, {"source": source.numpy(), "lengths": lengths.numpy()})
    yield from map(_error, answers, stepwise.tensors(memory, state))
    feeds = dict(zip([*stepwise.memory, *stepwise.state], answers, strict=True))
    state = model.select(state, torch.zeros(batch, hypotheses, dtype=torch.int64))
    feeds.update({name: feeds[name].repeat(hypotheses, 1) for name in stepwise.state})
    for _ in range(steps):
        tokens = torch.randint(model.config.target_size, (batch, hypotheses), generator=random)
        logits, state, _ = model.step(tokens, state, memory)
        answers = decoder.run(None, {"tokens": tokens.numpy(), **feeds})
        yield from map(_error, answers, (logits, *stepwise.tensors(memory, state)[len(stepwise.memory) :]))
        feeds.update(zip(stepwise.state, answers[1:], strict=True))


def _error(found: np.ndarray[Any, Any], expected: Tensor) -> float:
    """Return the largest difference, which is infinite if the shapes differ or a number is not finite."""
    if found.shape != expected.shape:
        return math.inf
    error = float(np.abs(found.astype(np.float64) - expected.numpy()).max(initial=0.0))
    return error if math.isfinite(error) else math.inf
