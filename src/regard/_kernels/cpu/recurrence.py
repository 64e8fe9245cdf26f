"""Recurrences as one operation each, with their gradients written out: products by torch's BLAS, the rest by Numba.

The graph of a plain loop has some thirty small operations a step, and each of its weights gets a gradient of its own
at every step, to be added up. Here the steps before are kept in arrays of all steps, so that each weight's gradient is
one product in the end.

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
    """The loops of a cell, and how many gates it has and parts of a state."""

    step: Callable[..., None]
    pull: Callable[..., None]
    gates: int
    parts: int
    order: tuple[int, ...]


GRU = Cell(gru, gru_gradients, 3, 1, ())
LSTM = Cell(lstm, lstm_gradients, 4, 2, (3, 2))  # i f g o
LSTM_OUTPUT_FIRST = Cell(lstm, lstm_gradients, 4, 2, (2, 3))  # i f o g


class Weights(NamedTuple):
    """Those of a direction, as torch's layers order them: (G H, E), (G H, H), (G H,) and (G H,)."""

    of_input: Tensor
    of_hidden: Tensor
    bias: Tensor
    hidden_bias: Tensor


class _Loop:
    """What the steps of one recurrence work in."""

    def __init__(self, cell: Cell, rows: Tensor, state: Tensor, lengths: Tensor, weights: Sequence[Weights]) -> None:
        parts, directions, batch, size = state.shape
        self.cell, self.weights, self.steps, self.lengths = cell, weights, rows.shape[1], lengths
        self.state = state.clone(memory_format=torch.contiguous_format)
        self.x = rows.new_empty(batch, self.steps, directions * cell.gates * size)
        self.u = rows.new_empty(directions, batch, self.steps, cell.gates * size)
        self.before = rows.new_empty(parts, directions, batch, self.steps, size)
        self.output = rows.new_empty(batch, self.steps, directions * size)
        for gates, some in zip(_split(self.x, directions), weights, strict=True):
            torch.addmm(some.bias, rows.flatten(0, 1), some.of_input.t(), out=gates)
        self.work = _CELL_TERM * state.numel() * cell.gates
        arrays = (self.x, self.u, self.state, self.before, self.output, lengths)
        self.arrays = tuple(tensor.numpy() for tensor in arrays)

    def step(self, t: int) -> None:
        """The t-th step, where x has what enters the gates."""
        for d, some in enumerate(self.weights):
            u = self.u[d].select(1, self.steps - 1 - t if d else t)
            torch.addmm(some.hidden_bias, self.state[0, d], some.of_hidden.t(), out=u)
        self.cell.step(self.work, *self.arrays, t, *self.cell.order)


class _Pull:
    """The way back through a recurrence: from the gradients of its output and last state to all others."""

    def __init__(
        self, cell: Cell, kept: Sequence[Tensor], of_output: Tensor, of_state: Tensor, weights: Sequence[Weights]
    ) -> None:
        x, u, before, lengths = kept
        self.cell, self.weights, self.before, self.steps = cell, weights, before, x.shape[1]
        self.state = of_state.clone(memory_format=torch.contiguous_format)
        self.x, self.u = torch.empty_like(x), torch.empty_like(u)
        self.work = _CELL_TERM * of_state.numel() * cell.gates
        arrays = (x, u, before, of_output.contiguous(), self.state, self.x, self.u, lengths)
        self.arrays = tuple(tensor.numpy() for tensor in arrays)

    def step(self, t: int) -> None:
        """The t-th step, the last one first."""
        self.cell.pull(self.work, *self.arrays, t, *self.cell.order)
        for d, some in enumerate(self.weights):
            self.state[0, d].addmm_(self.u[d].select(1, self.steps - 1 - t if d else t), some.of_hidden)

    def gradients(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Those of the rows, and of the weights of all directions, in their order."""
        inputs, of_rows, found = rows.flatten(0, 1), torch.zeros_like(rows), []
        for d, (x, some) in enumerate(zip(_split(self.x, len(self.weights)), self.weights, strict=True)):
            of_rows.view(inputs.shape).addmm_(x, some.of_input)
            u, hidden = self.u[d].flatten(0, 1), self.before[0, d].flatten(0, 1)
            found += [x.t() @ inputs, u.t() @ hidden, x.sum(0), u.sum(0)]
        return of_rows, found


def _split(x: Tensor, directions: int) -> Sequence[Tensor]:
    """The gates (B T, G H) of each direction."""
    return x.flatten(0, 1).chunk(directions, 1)


def _sets(weights: Sequence[Tensor]) -> list[Weights]:
    return [Weights(*weights[i : i + 4]) for i in range(0, len(weights), 4)]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: Cell, rows: Tensor, state: Tensor, lengths: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        beyond = torch.arange(rows.shape[1]) >= lengths[:, None]
        rows = rows.masked_fill(beyond[..., None], 0.0)  # as 0 times NaN would be in the weights' gradients
        loop = _Loop(cell, rows, state, lengths, _sets(weights))
        for t in range(loop.steps):
            loop.step(t)
        ctx.save_for_backward(rows, loop.x, loop.u, loop.before, lengths, *weights)
        ctx.cell = cell
        return loop.output, loop.state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_state: Tensor) -> tuple[Tensor | None, ...]:
        rows, *kept = ctx.saved_tensors
        pull = _Pull(ctx.cell, kept[:4], of_output, of_state, _sets(kept[4:]))
        for t in reversed(range(pull.steps)):
            pull.step(t)
        of_rows, of_weights = pull.gradients(rows)
        return None, of_rows, pull.state, None, *of_weights


def recurrence(cell: Cell, rows: Tensor, state: Tensor, lengths: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, D H), 0 behind the lengths (B,), and the last state (P, D, B, H), of a state before all steps.

    Rows are (B, T, E); for each direction there are four weights, see `Weights`. The second direction runs from each
    row's end to its beginning. What lies behind the lengths has no influence.
    """
    return _Recurrence.apply(cell, rows, state, lengths, *weights)  # type: ignore[no-any-return, no-untyped-call]


class _Attention:
    """Additive attention of the steps, one after the other, by the loops of `loops.additive_direct`."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, score_vector: Tensor, mask: MaskParts) -> None:
        rows, steps, _ = query.shape
        keys = key.shape[1]
        of_rows = reach(None, mask, (rows, 1, steps, keys), 1, 1, query.dtype)
        self.prepared = PreparedInputs(query, key, value, score_vector[None], of_rows, None)
        self.numbers, self.steps = rows * keys, steps
        self.inputs = tuple(tensor.detach().numpy() for tensor in self.prepared[:4])
        self.work = rows * keys * (key.shape[2] + 0.25 * value.shape[2]) * _ATTENTION_TERM
        self.logsumexp = query.new_empty(rows, steps).numpy()
        self.blocks = [self.prepared.block((0, rows), (t, 1), (0, keys)) for t in range(steps)]

    def step(self, t: int, weights: Any, output: Any) -> None:
        """Weights (T, B Tk) and context (B, T, M) of the t-th step."""
        arrays = (weights[t], bits(weights[t]), self.logsumexp, output)
        direct.attend(self.work, *self.inputs, *arrays, self.blocks[t], self.prepared.reach, NO_DROPOUT)

    def pull(self, t: int, weights: Any, of_output: Any, pulls: Any, found: tuple[Any, ...]) -> None:
        """Set the gradient of the t-th query, and add to those of keys, values and weight."""
        arrays = (weights[t], pulls, of_output, *found)
        direct.gradients(1.5 * self.work, *self.inputs, *arrays, self.blocks[t], NO_DROPOUT)


class _AttentiveRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: Cell, mask: MaskParts, rows: Tensor, state: Tensor, key: Tensor, value: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor]:
        (batch, steps, _), (of_query, of_context, score, *weights) = rows.shape, rest
        rows, key, value = rows.contiguous(), key.contiguous(), value.contiguous()
        lengths = torch.full((batch,), steps)
        loop = _Loop(cell, rows, state[:, None], lengths, _sets(weights))
        query, context = (rows.new_empty(batch, steps, size) for size in (len(of_query), value.shape[2]))
        scored = rows.new_empty(steps, batch * key.shape[1])
        attention = _Attention(query, key, value, score, mask)
        for t in range(steps):
            torch.mm(loop.state[0, 0], of_query.t(), out=query.select(1, t))
            attention.step(t, scored.numpy(), context.numpy())
            loop.x.select(1, t).addmm_(context.select(1, t), of_context.t())
            loop.step(t)
        kept = (loop.x, loop.u, loop.before, lengths)
        ctx.save_for_backward(rows, query, key, value, context, scored, *kept, *rest)
        ctx.mask, ctx.cell = mask, cell
        return loop.output, context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_contexts: Tensor) -> tuple[Tensor | None, ...]:
        rows, query, key, value, context, scored, *kept = ctx.saved_tensors
        of_query, of_context, score, *weights = kept[4:]
        parts, _, batch, steps, size = kept[2].shape
        pull = _Pull(ctx.cell, kept[:4], of_output, of_output.new_zeros(parts, 1, batch, size), _sets(weights))
        attention = _Attention(query, key, value, score, ctx.mask)
        of_contexts = of_contexts.clone(memory_format=torch.contiguous_format)
        found = [torch.zeros_like(tensor) for tensor in (query, key, value)]
        found.append(score.new_zeros(batch, len(score)))
        arrays, pulls = tuple(tensor.numpy() for tensor in found), scored.new_empty(scored.shape[1]).numpy()
        for t in reversed(range(steps)):
            pull.step(t)
            of_contexts.select(1, t).addmm_(pull.x.select(1, t), of_context)
            attention.pull(t, scored.numpy(), of_contexts.numpy(), pulls, arrays)
            pull.state[0, 0].addmm_(found[0].select(1, t), of_query)
        of_rows, of_weights = pull.gradients(rows)
        to_query = found[0].flatten(0, 1).t() @ pull.before[0, 0].flatten(0, 1)
        to_context = pull.x.flatten(0, 1).t() @ context.flatten(0, 1)
        of_rest = (to_query, to_context, found[3].sum(0), *of_weights)
        return None, None, of_rows, pull.state[:, 0], found[1], found[2], *of_rest


def attentive_recurrence(
    cell: Cell,
    mask: MaskParts,
    rows: Tensor,
    state: Tensor,
    memory: tuple[Tensor, Tensor],
    attention: tuple[Tensor, Tensor, Tensor],
    weights: Weights,
) -> tuple[Tensor, Tensor]:
    """Hidden states (B, T, H) and contexts (B, T, M) of a decoder whose context enters its gates.

    c_t = Σ_j softmax_j(wᵀ tanh(W_q s_{t−1} + k_j)) h_j;  the gates get W_c c_t beside what rows (B, T, E) and states
    bring. ``state`` is s_0 (P, B, H), ``memory`` the keys k (B, Tk, A) and states h (B, Tk, M), ``attention`` W_q (A,
    H), W_c (G H, M) and w (A,).
    """
    return _AttentiveRecurrence.apply(  # type: ignore[no-any-return, no-untyped-call]
        cell, mask, rows, state, *memory, *attention, *weights
    )
