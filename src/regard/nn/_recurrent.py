"""Recurrences: cells, bidirectional layers over padded batches, and the steps of a decoder, run fused or one by one.

Fused, a loop over the steps is one operation of `regard._kernels.cpu.recurrence` with a backward pass of its own.
Compiled code, forward-mode and functional transforms, autocast, and other types and devices run step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard._eager import accepts_cpu_loop
from regard.functional import Additive
from regard.functional.reporting import is_watched, report_attention
from regard.nn._dropout import Dropout

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from regard._kernels.cpu.recurrence import Cell, Weights
    from regard.functional import Mask
    from regard.nn._decoder_attention import BahdanauAttention

__all__ = ["GRUCell", "LSTMCell", "fusible", "run_bidirectional", "run_fused", "run_fused_with_attention", "unroll"]


class _Cell(nn.Module):
    """The products that enter the gates: of the input, of the context if there is one, and of the previous state.

    The weights begin as in `torch.nn.GRU`, uniform within ±1/√hidden_dim, and the recurrent ones orthogonal gate by
    gate.
    """

    gates: int
    parts: int  # tensors in a state

    def __init__(self, input_dim: int, context_dim: int | None, hidden_dim: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(input_dim, self.gates * hidden_dim)
        if context_dim is not None:
            self.from_context = nn.Linear(context_dim, self.gates * hidden_dim, bias=False)
        self.from_hidden = nn.Linear(hidden_dim, self.gates * hidden_dim)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_dim**-0.5), hidden_dim**-0.5)
        for gate in self.from_hidden.weight.chunk(self.gates):
            nn.init.orthogonal_(gate)


class GRUCell(_Cell):
    """A gated recurrent unit whose input gates are computed beforehand, for all steps at once.

    r = σ(x_r + U_r h),  z = σ(x_z + U_z h),  n = tanh(x_n + r ⊙ (U_n h)),  h′ = (1 − z) ⊙ n + z ⊙ h,

    where x = [x_r; x_z; x_n] is ``from_input(y) + from_context(c)``, without the latter when ``context_dim`` is None.

    Source: Cho et al. 2014, arXiv 1406.1078, in the form of `torch.nn.GRU` (the reset gate after the product).

    >>> cell = GRUCell(input_dim=5, context_dim=7, hidden_dim=3)
    >>> gates = cell.from_input(torch.ones(2, 5)) + cell.from_context(torch.ones(2, 7))
    >>> (state,) = cell(gates, (torch.zeros(2, 3),))
    >>> state.shape
    torch.Size([2, 3])
    """

    gates = 3
    parts = 1

    def forward(self, gates: Float[Tensor, "*rows 3H"], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the state after one step."""
        (hidden,) = state
        sizes = [2 * hidden.shape[-1], hidden.shape[-1]]
        input_rz, input_n = torch.split(gates, sizes, -1)
        hidden_rz, hidden_n = torch.split(self.from_hidden(hidden), sizes, -1)
        reset, update = torch.sigmoid(input_rz + hidden_rz).chunk(2, -1)
        return (torch.lerp(torch.tanh(torch.addcmul(input_n, reset, hidden_n)), hidden, update),)


class LSTMCell(_Cell):
    """A long short-term memory cell whose input gates are computed beforehand, for all steps at once.

    i, f, o = σ(x + U h),  g = tanh(x_g + U_g h),  c′ = f ⊙ c + i ⊙ g,  h′ = o ⊙ tanh(c′); the forget gate's bias
    starts at 1.

    Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000 (forget gate).

    >>> cell = LSTMCell(input_dim=5, context_dim=7, hidden_dim=3)
    >>> hidden, memory = cell(cell.from_input(torch.ones(2, 5)), (torch.zeros(2, 3), torch.zeros(2, 3)))
    >>> hidden.shape, memory.shape
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """

    gates = 4
    parts = 2

    def __init__(self, input_dim: int, context_dim: int | None, hidden_dim: int) -> None:
        super().__init__(input_dim, context_dim, hidden_dim)
        nn.init.ones_(self.from_hidden.bias[hidden_dim : 2 * hidden_dim])

    def forward(self, gates: Float[Tensor, "*rows 4H"], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the state after one step."""
        hidden, memory = state
        pre = gates + self.from_hidden(hidden)
        ifo, candidate = torch.split(pre, [3 * hidden.shape[-1], hidden.shape[-1]], -1)
        write, forget, read = torch.sigmoid(ifo).chunk(3, -1)
        memory = torch.addcmul(forget * memory, write, torch.tanh(candidate))
        return read * torch.tanh(memory), memory


def fusible(x: Tensor) -> bool:
    """Return True where a loop over x can run as one operation: float32 or float64 on a CPU, eager, no autocast."""
    return accepts_cpu_loop(x) and not torch.is_autocast_enabled("cpu")


def run_bidirectional(
    layers: nn.GRU | nn.LSTM, rows: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "L2 B half"]]:
    """Run bidirectional layers; return their states, 0 behind each row's length, and the last of all directions.

    Padding has no influence. The result is that of packed sequences, which take longer.

    >>> layers = nn.GRU(3, 2, batch_first=True, bidirectional=True)
    >>> states, last = run_bidirectional(layers, torch.ones(2, 5, 3), torch.tensor([5, 2]))
    >>> states.shape, last.shape, states[1, 2:].any().item()
    (torch.Size([2, 5, 4]), torch.Size([2, 2, 2]), False)
    """
    if not fusible(rows):
        packed = pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, final = layers(packed)
        states, _ = pad_packed_sequence(output, batch_first=True, total_length=rows.shape[1])
        return states, final if isinstance(final, torch.Tensor) else final[0]
    from regard._kernels.cpu.recurrence import GRU, LSTM, recurrence

    cell, last = GRU if isinstance(layers, nn.GRU) else LSTM, []
    dropout = Dropout(layers.dropout).train(layers.training)
    for layer in range(layers.num_layers):
        if layer:
            rows = dropout(rows)
        weights = (weight for direction in layers.all_weights[2 * layer : 2 * layer + 2] for weight in direction)
        state = rows.new_zeros(cell.parts, 2, len(rows), layers.hidden_size)
        rows, state = recurrence(cell, rows, state, lengths, *weights)
        last.append(state[0])
    return rows, torch.cat(last)


def unroll(
    cell: GRUCell | LSTMCell,
    rows: Float[Tensor, "B T E"],
    state: tuple[Float[Tensor, "B 1 H"], ...],
    attend: Callable[[Float[Tensor, "B 1 H"]], Float[Tensor, "B 1 M"]] | None = None,
) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B T M"] | None]:
    """Run a cell step by step; return the hidden states and the contexts, which are None without ``attend``.

    ``attend`` makes the context that enters the gates of a step from the hidden state before it.

    >>> rows, state = torch.ones(2, 5, 3), (torch.zeros(2, 1, 4),)
    >>> hidden, contexts = unroll(GRUCell(3, 4, 4), rows, state, attend=lambda query: 2 * query)
    >>> hidden.shape, torch.equal(contexts[:, 1:], 2 * hidden[:, :-1])
    (torch.Size([2, 5, 4]), True)
    """
    hiddens, contexts = [], []
    # split, not indexing: the backward pass of each indexed step would fill a tensor of all steps with zeros
    for gates in cell.from_input(rows).split(1, 1):
        if attend is not None:
            context = attend(state[0])
            contexts.append(context)
            gates = gates + cell.from_context(context)
        state = cell(gates, state)
        hiddens.append(state[0])
    return torch.cat(hiddens, 1), torch.cat(contexts, 1) if contexts else None


def run_fused(
    cell: GRUCell | LSTMCell, rows: Float[Tensor, "B T E"], state: tuple[Float[Tensor, "B 1 H"], ...]
) -> Float[Tensor, "B T H"]:
    """Compute the hidden states of `unroll` without contexts as one operation; only if `fusible`."""
    from regard._kernels.cpu.recurrence import recurrence

    kernel, weights = _kernel(cell)
    ends = torch.full((len(rows),), rows.shape[1])
    return recurrence(kernel, rows, torch.stack(state).transpose(1, 2), ends, *weights)[0]


def run_fused_with_attention(
    cell: GRUCell | LSTMCell,
    rows: Float[Tensor, "B T E"],
    state: tuple[Float[Tensor, "B 1 H"], ...],
    attention: BahdanauAttention,
    keys: Float[Tensor, "B Tk A"],
    memory: Float[Tensor, "B Tk M"],
    mask: Mask,
) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B T M"]]:
    """Compute `unroll` with contexts by additive attention as one operation; only if `fusible`."""
    from regard._kernels.cpu.recurrence import attentive_recurrence

    kernel, weights = _kernel(cell)
    hidden, contexts = attentive_recurrence(
        kernel,
        mask.parts((len(rows), 1, rows.shape[1], keys.shape[1]), rows.device),
        rows,
        torch.stack(state).squeeze(2),
        (keys, memory),
        (attention.W_q.weight, cell.from_context.weight, attention.w),
        weights,
    )
    if is_watched():
        before = torch.cat((state[0], hidden[:, :-1]), 1)
        query = nn.functional.linear(before, attention.W_q.weight)
        report_attention(query[:, None], keys[:, None], score=Additive(attention.w), mask=mask, layer=attention)
    return hidden, contexts


def _kernel(cell: GRUCell | LSTMCell) -> tuple[Cell, Weights]:
    """Return the kernel's loops for a cell, and the cell's weights as the kernel orders them."""
    from regard._kernels.cpu.recurrence import GRU, LSTM_OUTPUT_FIRST, Weights

    x, h = cell.from_input, cell.from_hidden
    return GRU if isinstance(cell, GRUCell) else LSTM_OUTPUT_FIRST, Weights(x.weight, h.weight, x.bias, h.bias)
