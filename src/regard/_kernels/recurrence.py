"""Recurrences as one operation each, with their gradients written out: products by torch's BLAS, the rest by Numba.

The graph of a plain loop has some thirty small operations a step, and each of its weights gets a gradient of its own
at every step, to be added up. Here the steps before are kept in arrays of all steps, so that each weight's gradient is
one product in the end.

Sizes: B rows, T steps, D directions, G gates, H features, P parts of a state. Gates are those of `torch.nn.GRU` (r, z,
n) and `torch.nn.LSTM` (i, f, and the two that `Cell` places).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard._kernels import cpu, numba_cells
from regard._kernels import numba_direct as direct

__all__ = ["GRU", "LSTM", "LSTM_OUTPUT_FIRST", "attentive_recurrence", "recurrence"]

_TERM = 2.0  # nanoseconds for a feature, about
_NO_DROP = cpu.dropout(0.0, None)


class Cell(NamedTuple):
    """The loops of a cell, and how many gates it has and parts of a state."""

    step: Callable[..., None]
    pull: Callable[..., None]
    gates: int
    parts: int
    order: tuple[int, ...]


GRU = Cell(numba_cells.gru, numba_cells.gru_gradients, 3, 1, ())
LSTM = Cell(numba_cells.lstm, numba_cells.lstm_gradients, 4, 2, (3, 2))  # i f g o
LSTM_OUTPUT_FIRST = Cell(numba_cells.lstm, numba_cells.lstm_gradients, 4, 2, (2, 3))  # i f o g


class _Loop:
    """What the steps of one recurrence work in; ``x`` (B, T, D G H) is theirs to write into."""

    def __init__(self, cell: Cell, x: Tensor, state: Tensor, lengths: Tensor) -> None:
        parts, directions, rows, size = state.shape
        self.cell, self.x, self.steps, self.lengths = cell, x, x.shape[1], lengths
        self.state = state.clone(memory_format=torch.contiguous_format)
        self.u = x.new_empty(directions, rows, self.steps, cell.gates * size)
        self.before = x.new_empty(parts, directions, rows, self.steps, size)
        self.output = x.new_empty(rows, self.steps, directions * size)
        self.work = _TERM * state.numel() * cell.gates
        arrays = (self.x, self.u, self.state, self.before, self.output, lengths)
        self.arrays = tuple(tensor.numpy() for tensor in arrays)

    def step(self, t: int, weights: Tensor, biases: Tensor) -> None:
        """The t-th step, where x has the rest of the gates."""
        for d, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            torch.addmm(bias, self.state[0, d], weight.t(), out=self.u[d][:, self.steps - 1 - t if d else t])
        self.cell.step(self.work, *self.arrays, t, *self.cell.order)


class _Pull:
    """The way back through a recurrence: from the gradients of its output and last state to those before its gates."""

    def __init__(self, cell: Cell, kept: tuple[Tensor, ...], of_output: Tensor, of_state: Tensor) -> None:
        x, u, before, lengths = kept
        self.cell, self.before, self.steps = cell, before, x.shape[1]
        self.state = of_state.clone(memory_format=torch.contiguous_format)
        self.x, self.u = torch.empty_like(x), torch.empty_like(u)
        self.work = _TERM * of_state.numel() * cell.gates
        arrays = (x, u, before, of_output.contiguous(), self.state, self.x, self.u, lengths)
        self.arrays = tuple(tensor.numpy() for tensor in arrays)

    def step(self, t: int, weights: Tensor) -> None:
        """The t-th step, the last one first."""
        self.cell.pull(self.work, *self.arrays, t, *self.cell.order)
        for d, weight in enumerate(weights):
            self.state[0, d].addmm_(self.u[d][:, self.steps - 1 - t if d else t], weight)

    def weights(self) -> tuple[Tensor, Tensor]:
        """The gradients of weights (D, G H, H) and biases (D, G H)."""
        u, before = self.u.flatten(1, 2), self.before[0].flatten(1, 2)
        return torch.stack([a.t() @ b for a, b in zip(u, before, strict=True)]), u.sum(1)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, biases: Tensor, state: Tensor, lengths: Tensor, cell: Cell
    ) -> tuple[Tensor, Tensor]:
        loop = _Loop(cell, x.clone(memory_format=torch.contiguous_format), state, lengths)
        for t in range(loop.steps):
            loop.step(t, weights, biases)
        ctx.save_for_backward(loop.x, loop.u, loop.before, lengths, weights)
        ctx.cell = cell
        return loop.output, loop.state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_state: Tensor) -> tuple[Tensor | None, ...]:
        *kept, weights = ctx.saved_tensors
        pull = _Pull(ctx.cell, tuple(kept), of_output, of_state)
        for t in reversed(range(pull.steps)):
            pull.step(t, weights)
        return pull.x, *pull.weights(), pull.state, None, None


def recurrence(
    cell: Cell, x: Tensor, weights: Tensor, biases: Tensor, state: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, D H), 0 behind the lengths (B,), and the last state (P, D, B, H), of a state before all steps.

    ``x`` (B, T, D G H) is the input's share of the gates; weights (D, G H, H) and biases (D, G H) make the rest of the
    hidden state. The second direction runs from each row's end to its beginning.
    """
    return _Recurrence.apply(x, weights, biases, state, lengths, cell)  # type: ignore[no-any-return, no-untyped-call]


class _Attention:
    """Additive attention of the steps, one after the other, by the loops of `regard._kernels.numba_direct`."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, weight: Tensor, masked: cpu.Masked) -> None:
        rows, steps, _ = query.shape
        keys = key.shape[1]
        reach = cpu.reach(masked, (rows, 1, steps, keys), 1, 1, query.dtype)
        self.problem = cpu.Problem(query, key, value, weight[None], reach, None)
        self.numbers, self.steps = rows * keys, steps
        self.inputs = tuple(tensor.detach().numpy() for tensor in self.problem[:4])
        self.work = rows * keys * (0.4 * key.shape[2] + 0.1 * value.shape[2])
        self.logsumexp = query.new_empty(rows, steps).numpy()
        self.blocks = [self.problem.block((0, rows), (t, 1), (0, keys)) for t in range(steps)]

    def step(self, t: int, weights: Any, output: Any) -> None:
        """Weights (T, B Tk) and context (B, T, M) of the t-th step."""
        arrays = (weights[t], cpu.bits(weights[t]), self.logsumexp, output)
        direct.attend(self.work, *self.inputs, *arrays, self.blocks[t], self.problem.reach, _NO_DROP)

    def pull(self, t: int, weights: Any, of_output: Any, pulls: Any, found: tuple[Any, ...]) -> None:
        """Set the gradient of the t-th query, and add to those of keys, values and weight."""
        arrays = (weights[t], pulls, of_output, *found)
        direct.gradients(1.5 * self.work, *self.inputs, *arrays, self.blocks[t], _NO_DROP)


class _AttentiveRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        of_query: Tensor,
        of_context: Tensor,
        of_hidden: Tensor,
        bias: Tensor,
        state: Tensor,
        key: Tensor,
        value: Tensor,
        score: Tensor,
        masked: cpu.Masked,
        cell: Cell,
    ) -> tuple[Tensor, Tensor]:
        rows, steps, _ = x.shape
        lengths = torch.full((rows,), steps)
        loop = _Loop(cell, x.clone(memory_format=torch.contiguous_format), state[:, None], lengths)
        key, value = key.contiguous(), value.contiguous()
        query, context = x.new_empty(rows, steps, len(of_query)), x.new_empty(rows, steps, value.shape[2])
        weights = x.new_empty(steps, rows * key.shape[1])
        attention = _Attention(query, key, value, score, masked)
        for t in range(steps):
            torch.mm(loop.state[0, 0], of_query.t(), out=query[:, t])
            attention.step(t, weights.numpy(), context.numpy())
            loop.x[:, t].addmm_(context[:, t], of_context.t())
            loop.step(t, of_hidden[None], bias[None])
        kept = (loop.x, loop.u, loop.before, lengths)
        ctx.save_for_backward(*kept, query, key, value, score, weights, context, of_query, of_context, of_hidden)
        ctx.masked, ctx.cell = masked, cell
        return loop.output, context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_contexts: Tensor) -> tuple[Tensor | None, ...]:
        *kept, query, key, value, score, weights, context, of_query, of_context, of_hidden = ctx.saved_tensors
        parts, _, rows, steps, size = kept[2].shape
        pull = _Pull(ctx.cell, tuple(kept), of_output, of_output.new_zeros(parts, 1, rows, size))
        attention = _Attention(query, key, value, score, ctx.masked)
        of_contexts = of_contexts.clone(memory_format=torch.contiguous_format)
        found = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        found.append(score.new_zeros(rows, len(score)))
        arrays, pulls = tuple(tensor.numpy() for tensor in found), weights.new_empty(weights.shape[1]).numpy()
        for t in reversed(range(steps)):
            pull.step(t, of_hidden[None])
            of_contexts[:, t].addmm_(pull.x[:, t], of_context)
            attention.pull(t, weights.numpy(), of_contexts.numpy(), pulls, arrays)
            pull.state[0, 0].addmm_(found[0][:, t], of_query)
        hidden, of_x = pull.before[0, 0].flatten(0, 1), pull.x.flatten(0, 1)
        to_weights, to_bias = pull.weights()
        return (
            pull.x,
            found[0].flatten(0, 1).t() @ hidden,
            of_x.t() @ context.flatten(0, 1),
            to_weights[0],
            to_bias[0],
            pull.state[:, 0],
            found[1],
            found[2],
            found[3].sum(0),
            None,
            None,
        )


def attentive_recurrence(*inputs: Tensor, masked: cpu.Masked, cell: Cell) -> tuple[Tensor, Tensor]:
    """Hidden states (B, T, H) and contexts (B, T, M) of a decoder whose context enters its gates.

    c_t = Σ_j softmax_j(wᵀ tanh(W_q s_{t−1} + k_j)) h_j,  gates_t = x_t + W_c c_t and U s_{t−1} + b. The inputs: x (B,
    T, G H), W_q (A, H), W_c (G H, M), U (G H, H), b (G H,), s_0 (P, B, H), keys k (B, Tk, A), memory h (B, Tk, M), w
    (A,).
    """
    return _AttentiveRecurrence.apply(*inputs, masked, cell)  # type: ignore[no-any-return, no-untyped-call]
