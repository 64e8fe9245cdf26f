"""RecurrentSeq2Seq: the paper's equations worked out again in NumPy, and what reaches what."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from regard._symbols import BOS
from regard.errors import ArgumentError
from regard.functional import Observe
from regard.models import RecurrentConfig, RecurrentSeq2Seq

SCORES = ["additive", "dot", "scaled_dot", "general", None]
B, TK, TQ, SOURCES, TARGETS, EMBED, HIDDEN = 3, 7, 4, 11, 13, 5, 6
KINDS = list(itertools.product(SCORES, ["gru", "lstm"], [True, False]))
every_kind = pytest.mark.parametrize(("score", "cell", "feeding"), KINDS)


def build(score: str | None, cell: str, feeding: bool, **options: object) -> RecurrentSeq2Seq:
    torch.manual_seed(0)
    options = {"encoder_layers": 2, "dropout": 0.4, **options}
    return RecurrentSeq2Seq(
        RecurrentConfig(SOURCES, TARGETS, EMBED, HIDDEN, cell=cell, score=score, input_feeding=feeding, **options)
    )


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    lengths = torch.tensor([TK, 3, 5])
    source = torch.randint(4, SOURCES, (B, TK)).masked_fill(torch.arange(TK) >= lengths[:, None], 0)
    target = torch.randint(4, TARGETS, (B, TQ))
    target[:, 0] = BOS
    return source, lengths, target


@every_kind
def test_shapes_and_a_gradient_for_every_parameter(score: str | None, cell: str, feeding: bool) -> None:
    model = build(score, cell, feeding)
    source, lengths, target = batch()
    logits = model(source, lengths, target)
    assert logits.shape == (B, TQ, TARGETS)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@every_kind
def test_shapes_of_a_step_for_several_hypotheses(score: str | None, cell: str, feeding: bool) -> None:
    model = build(score, cell, feeding).eval()
    source, lengths, _ = batch()
    memory = model.encode(source, lengths)
    start = model.start(memory)
    assert [part.shape for part in start] == [(B, 1, HIDDEN)] * (1 if cell == "gru" else 2)
    state = tuple(part.expand(-1, 2, -1) for part in start)
    logits, after, seen = model.step(torch.full((B, 2), BOS), state, memory, Observe(weights=True))
    assert logits.shape == (B, 2, TARGETS)
    assert [part.shape for part in after] == [(B, 2, HIDDEN)] * len(start)
    if score is None:
        assert seen is None
    else:
        assert seen.weights.shape == (B, 1, 2, TK)
    assert torch.equal(logits, model.step(torch.full((B, 2), BOS), state, memory)[0])


@every_kind
def test_dropout_is_of_training_alone(score: str | None, cell: str, feeding: bool) -> None:
    model = build(score, cell, feeding)
    inputs = batch()
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    plain = build(score, cell, feeding, dropout=0.0)
    assert torch.equal(model(*inputs), model(*inputs))
    assert torch.equal(model(*inputs), plain(*inputs))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class ByHand:
    """The equations of the two papers for one sentence, vector by vector, from a model's weights in float64."""

    def __init__(self, model: RecurrentSeq2Seq) -> None:
        self.p = {name: tensor.numpy() for name, tensor in model.double().state_dict().items()}
        self.score, self.feeding = model.config.score, model.config.input_feeding

    def gru(self, gates: np.ndarray, h: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        n = len(h)
        x, u = np.split(gates, 3), np.split(weight @ h + bias, 3)
        r, z = sigmoid(x[0] + u[0]), sigmoid(x[1] + u[1])
        assert len(r) == n
        return (1 - z) * np.tanh(x[2] + r * u[2]) + z * h

    def direction(self, embedded: list[np.ndarray], suffix: str) -> list[np.ndarray]:
        p, states, h = self.p, [], np.zeros(HIDDEN // 2)
        for x in embedded:
            gates = p[f"encoder.weight_ih_l0{suffix}"] @ x + p[f"encoder.bias_ih_l0{suffix}"]
            h = self.gru(gates, h, p[f"encoder.weight_hh_l0{suffix}"], p[f"encoder.bias_hh_l0{suffix}"])
            states.append(h)
        return states

    def weights(self, s: np.ndarray, memory: list[np.ndarray]) -> np.ndarray:
        p = self.p
        if self.score == "additive":
            inner = [p["attention.W_q.weight"] @ s + p["attention.W_k.weight"] @ h for h in memory]
            e = np.array([p["attention.w"] @ np.tanh(x + p["attention.W_k.bias"]) for x in inner])
        else:
            matrix = p["attention.W_a.weight"] if self.score == "general" else np.eye(HIDDEN)
            e = np.array([s @ matrix @ h for h in memory]) / (math.sqrt(HIDDEN) if self.score == "scaled_dot" else 1)
        return np.exp(e - e.max()) / np.exp(e - e.max()).sum()

    def logits(self, source: list[int], target: list[int]) -> np.ndarray:
        p = self.p
        embedded = [p["source_embedding.weight"][i] for i in source]
        forward, backward = self.direction(embedded, ""), self.direction(embedded[::-1], "_reverse")
        memory = [np.concatenate(pair) for pair in zip(forward, backward[::-1], strict=True)]
        last = np.concatenate((forward[-1], backward[-1]))

        def context(s: np.ndarray) -> np.ndarray:
            return last if self.score is None else self.weights(s, memory) @ np.stack(memory)

        s = np.tanh(p["initial.weight"] @ last + p["initial.bias"])
        rows = []
        for i in target:
            y = p["target_embedding.weight"][i]
            gates = p["cell.from_input.weight"] @ y + p["cell.from_input.bias"]
            if self.feeding:
                c = context(s)
                gates = gates + p["cell.from_context.weight"] @ c
            s = self.gru(gates, s, p["cell.from_hidden.weight"], p["cell.from_hidden.bias"])
            if not self.feeding:
                c = context(s)
            read = np.tanh(p["readout.weight"] @ np.concatenate((s, c, y)) + p["readout.bias"])
            rows.append(p["output.weight"] @ read + p["output.bias"])
        return np.stack(rows)


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("score", SCORES)
def test_the_equations_by_hand(score: str | None, feeding: bool) -> None:
    model = build(score, "gru", feeding, encoder_layers=1).eval()
    for parameter in model.parameters():  # biases that begin at zero would hide their absence
        torch.nn.init.normal_(parameter, std=0.7)
    source, lengths, target = batch()
    single = model(source, lengths, target)
    expected = ByHand(model)
    double = model(source, lengths, target).detach()
    for row in range(B):
        by_hand = torch.from_numpy(expected.logits(source[row, : lengths[row]].tolist(), target[row].tolist()))
        torch.testing.assert_close(double[row], by_hand, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(single[row].double(), by_hand, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hidden_dim", 5),
        ("hidden_dim", 0),
        ("source_size", 0),
        ("target_size", 0),
        ("embed_dim", 0),
        ("encoder_layers", 0),
        ("cell", "rnn"),
        ("score", "cosine"),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", math.nan),
    ],
)
def test_a_wrong_config_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=rf"{option}: expected .*, got '?{value}'?$"):
        RecurrentConfig(**{"source_size": 11, "target_size": 13, option: value})


def test_config_survives_a_round_trip() -> None:
    config = RecurrentConfig(11, 13, score=None, cell="lstm", input_feeding=False)
    assert RecurrentConfig(**dataclasses.asdict(config)) == config
    assert RecurrentConfig.for_data(11, 13, 19, score=None, cell="lstm", input_feeding=False) == config
    assert config.build().config is config


@pytest.mark.parametrize("lengths", [[3, 0], [3, 4], [3], [[3, 2]]])
def test_wrong_lengths_are_refused(lengths: list[int]) -> None:
    model = build("additive", "gru", True)
    with pytest.raises(ArgumentError, match="lengths"):
        model.encode(torch.full((2, 3), 5), torch.tensor(lengths))
