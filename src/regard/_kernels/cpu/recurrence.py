"""Recurrences as one operation each, with their gradients written out: products by torch's BLAS, the rest by Numba.

The graph of a plain loop has some thirty small operations a step, and a gradient of each weight at every step, to be
added up. Here arrays hold the states before all steps, so that each weight's gradient is one product in the end.

Sizes: B rows, T steps, D directions, G gates, H features, P parts of a state. Gates are those of `torch.nn.GRU` (r, z,
n) and `torch.nn.LSTM` (i, f, and the two that `Cell` places).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard._kernels.cpu.loops import additive_direct as direct
from regard._kernels.cpu.loops.cells import gru, gru_gradients, lstm, lstm_gradients
from regard._kernels.cpu.prepared_inputs import PreparedInputs, bits, reach
from regard._kernels.dropout_mask import NO_DROPOUT
from regard._kernels.mask_parts import MaskParts

__all__ = ["GRU", "LSTM", "LSTM_OUTPUT_FIRST", "Weights", "attentive_recurrence", "recurrence"]

# Nanoseconds, a quarter of which the loops take: torch's threads are awake, as there is a product before each of them.
_CELL_TERM, _ATTENTION_TERM = 8.0, 1.6


class Cell(NamedTuple):
    """The loops of a cell, forward and backward, and how many gates it has and parts of a state."""

    step: Callable[..., None]
    backward_step: Callable[..., None]
    gates: int
    parts: int
    order: tuple[int, ...]


GRU = Cell(gru, gru_gradients, 3, 1, ())
LSTM = Cell(lstm, lstm_gradients, 4, 2, (3, 2))  # i f g o
LSTM_OUTPUT_FIRST = Cell(lstm, lstm_gradients, 4, 2, (2, 3))  # i f o g


class Weights(NamedTuple):
    """The weights of a direction, as torch's layers order them: (G H, E), (G H, H), (G H,) and (G H,)."""

    W_input: Tensor
    W_hidden: Tensor
    bias: Tensor
    hidden_bias: Tensor


class _Forward:
    """The steps of a recurrence, and the arrays of all steps that they read and write."""

    def __init__(self, cell: Cell, rows: Tensor, state: Tensor, lengths: Tensor, weights: Sequence[Weights]) -> None:
        parts, directions, batch, size = state.shape
        self.cell, self.weights, self.steps, self.lengths = cell, weights, rows.shape[1], lengths
        self.state = state.clone(memory_format=torch.contiguous_format)
        self.x = rows.new_empty(batch, self.steps, directions * cell.gates * size)
        self.u = rows.new_empty(directions, batch, self.steps, cell.gates * size)
        self.before = rows.new_empty(parts, directions, batch, self.steps, size)
        self.output = rows.new_empty(batch, self.steps, directions * size)
        for gates, one in zip(_split(self.x, directions), weights, strict=True):
            torch.addmm(one.bias, rows.flatten(0, 1), one.W_input.t(), out=gates)
        self.work = _CELL_TERM * state.numel() * cell.gates
        arrays = (self.x, self.u, self.state, self.before, self.output, lengths)
        self.arrays = tuple(tensor.numpy() for tensor in arrays)

    def step(self, t: int) -> None:
        """Compute step t, for which x has what enters the gates."""
        for d, one in enumerate(self.weights):
            u = self.u[d].select(1, self.steps - 1 - t if d else t)
            torch.addmm(one.hidden_bias, self.state[0, d], one.W_hidden.t(), out=u)
        self.cell.step(self.work, *self.arrays, t, *self.cell.order)


class _Backward:
    """The steps of the backward pass: x, u and state are the gradients of what `_Forward` calls so."""

    def __init__(
        self, cell: Cell, kept: Sequence[Tensor], grad_output: Tensor, grad_state: Tensor, weights: Sequence[Weights]
    ) -> None:
        x, u, before, lengths = kept
        self.cell, self.weights, self.before, self.steps = cell, weights, before, x.shape[1]
        self.state = grad_state.clone(memory_format=torch.contiguous_format)
        self.x, self.u = torch.empty_like(x), torch.empty_like(u)
        self.work = _CELL_TERM * grad_state.numel() * cell.gates
        arrays = (x, u, before, grad_output.contiguous(), self.state, self.x, self.u, lengths)
        self.arrays = tuple(tensor.numpy() for tensor in arrays)

    def step(self, t: int) -> None:
        """Go back through step t, the last one first."""
        self.cell.backward_step(self.work, *self.arrays, t, *self.cell.order)
        for d, one in enumerate(self.weights):
            self.state[0, d].addmm_(self.u[d].select(1, self.steps - 1 - t if d else t), one.W_hidden)

    def gradients(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of the rows, and of the weights of all directions, in their order."""
        inputs, grad_rows, grad_weights = rows.flatten(0, 1), torch.zeros_like(rows), []
        for d, (x, one) in enumerate(zip(_split(self.x, len(self.weights)), self.weights, strict=True)):
            grad_rows.view(inputs.shape).addmm_(x, one.W_input)
            u, hidden = self.u[d].flatten(0, 1), self.before[0, d].flatten(0, 1)
            grad_weights += [x.t() @ inputs, u.t() @ hidden, x.sum(0), u.sum(0)]
        return grad_rows, grad_weights


def _split(x: Tensor, directions: int) -> Sequence[Tensor]:
    """Return the gates (B T, G H) of each direction."""
    return x.flatten(0, 1).chunk(directions, 1)


def _by_direction(weights: Sequence[Tensor]) -> list[Weights]:
    return [Weights(*weights[i : i + 4]) for i in range(0, len(weights), 4)]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: Cell, rows: Tensor, state: Tensor, lengths: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(rows.shape[1]) >= lengths[:, None]
        rows = rows.masked_fill(beyond[..., None], 0.0)  # as 0 times NaN would be in the weights' gradients
        forward = _Forward(cell, rows, state, lengths, _by_direction(weights))
        for t in range(forward.steps):
            forward.step(t)
        ctx.save_for_backward(rows, forward.x, forward.u, forward.before, lengths, *weights)
        ctx.cell = cell
        return forward.output, forward.state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor) -> tuple[Tensor | None, ...]:
        rows, *kept = ctx.saved_tensors
        backward = _Backward(ctx.cell, kept[:4], grad_output, grad_state, _by_direction(kept[4:]))
        for t in reversed(range(backward.steps)):
            backward.step(t)
        grad_rows, grad_weights = backward.gradients(rows)
        return None, grad_rows, backward.state, None, *grad_weights


def recurrence(cell: Cell, rows: Tensor, state: Tensor, lengths: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, T, D H), 0 behind the lengths (B,), and the last state (P, D, B, H), from the first state.

    Rows are (B, T, E); each direction has four weights, see `Weights`. The second direction runs from each row's end to
    its beginning. Steps behind the lengths have no influence.
    """
    return _Recurrence.apply(cell, rows, state, lengths, *weights)  # type: ignore[no-any-return, no-untyped-call]


class _Attention:
    """Additive attention of one step after the other, by the loops of `loops.additive_direct`."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, score_vector: Tensor, mask: MaskParts) -> None:
        rows, steps, _ = query.shape
        keys = key.shape[1]
        reached = reach(None, mask, (rows, 1, steps, keys), 1, 1, query.dtype)
        inputs = PreparedInputs(query, key, value, score_vector[None], reached, None)
        self.arrays, self.reach = tuple(tensor.detach().numpy() for tensor in inputs[:4]), reached
        self.work = rows * keys * (key.shape[2] + 0.25 * value.shape[2]) * _ATTENTION_TERM
        self.logsumexp = query.new_empty(rows, steps).numpy()
        self.blocks = [inputs.block((0, rows), (t, 1), (0, keys)) for t in range(steps)]

    def step(self, t: int, weights: Any, output: Any) -> None:
        """Compute weights (T, B Tk) and context (B, T, M) of step t."""
        outputs = (weights[t], bits(weights[t]), self.logsumexp, output)
        direct.attend(self.work, *self.arrays, *outputs, self.blocks[t], self.reach, NO_DROPOUT)

    def backward_step(self, t: int, weights: Any, grad_output: Any, grad_scores: Any, sums: tuple[Any, ...]) -> None:
        """Set the gradient of query t, and add to those of keys, values and score vector: these are ``sums``."""
        arrays = (weights[t], grad_scores, grad_output, *sums)
        direct.gradients(1.5 * self.work, *self.arrays, *arrays, self.blocks[t], NO_DROPOUT)


class _AttentiveRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: Cell, mask: MaskParts, rows: Tensor, state: Tensor, key: Tensor, value: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor]:
        (batch, steps, _), (W_q, W_c, w, *of_cell) = rows.shape, rest
        rows, key, value = rows.contiguous(), key.contiguous(), value.contiguous()
        lengths = torch.full((batch,), steps)
        forward = _Forward(cell, rows, state[:, None], lengths, _by_direction(of_cell))
        query, context = (rows.new_empty(batch, steps, size) for size in (len(W_q), value.shape[2]))
        weights = rows.new_empty(steps, batch * key.shape[1])
        attention = _Attention(query, key, value, w, mask)
        for t in range(steps):
            torch.mm(forward.state[0, 0], W_q.t(), out=query.select(1, t))
            attention.step(t, weights.numpy(), context.numpy())
            forward.x.select(1, t).addmm_(context.select(1, t), W_c.t())
            forward.step(t)
        kept = (forward.x, forward.u, forward.before, lengths)
        ctx.save_for_backward(rows, query, key, value, context, weights, *kept, *rest)
        ctx.mask, ctx.cell = mask, cell
        return forward.output, context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_context: Tensor) -> tuple[Tensor | None, ...]:
        rows, query, key, value, context, weights, *kept = ctx.saved_tensors
        W_q, W_c, w, *of_cell = kept[4:]
        parts, _, batch, steps, size = kept[2].shape
        grad_state = grad_output.new_zeros(parts, 1, batch, size)
        backward = _Backward(ctx.cell, kept[:4], grad_output, grad_state, _by_direction(of_cell))
        attention = _Attention(query, key, value, w, ctx.mask)
        grad_context = grad_context.clone(memory_format=torch.contiguous_format)
        grad_query, grad_key, grad_value = (torch.zeros_like(tensor) for tensor in (query, key, value))
        grad_w = w.new_zeros(batch, len(w))
        sums = tuple(tensor.numpy() for tensor in (grad_query, grad_key, grad_value, grad_w))
        grad_scores = weights.new_empty(weights.shape[1]).numpy()
        for t in reversed(range(steps)):
            backward.step(t)
            grad_context.select(1, t).addmm_(backward.x.select(1, t), W_c)
            attention.backward_step(t, weights.numpy(), grad_context.numpy(), grad_scores, sums)
            backward.state[0, 0].addmm_(grad_query.select(1, t), W_q)
        grad_rows, grad_weights = backward.gradients(rows)
        grad_W_q = grad_query.flatten(0, 1).t() @ backward.before[0, 0].flatten(0, 1)
        grad_W_c = backward.x.flatten(0, 1).t() @ context.flatten(0, 1)
        grad_rest = (grad_W_q, grad_W_c, grad_w.sum(0), *grad_weights)
        return None, None, grad_rows, backward.state[:, 0], grad_key, grad_value, *grad_rest


def attentive_recurrence(
    cell: Cell,
    mask: MaskParts,
    rows: Tensor,
    state: Tensor,
    memory: tuple[Tensor, Tensor],
    attention: tuple[Tensor, Tensor, Tensor],
    weights: Weights,
) -> tuple[Tensor, Tensor]:
    """Return hidden states (B, T, H) and contexts (B, T, M) of a decoder whose context enters its gates.

    c_t = Σ_j softmax_j(wᵀ tanh(W_q s_{t−1} + k_j)) h_j;  W_c c_t is added to the gates of rows (B, T, E) and states.
    ``state`` is s_0 (P, B, H), ``memory`` the keys k (B, Tk, A) and states h (B, Tk, M), ``attention`` W_q (A,
    H), W_c (G H, M) and w (A,).
    """
    return _AttentiveRecurrence.apply(  # type: ignore[no-any-return, no-untyped-call]
        cell, mask, rows, state, *memory, *attention, *weights
    )
