"""Recurrences over padded batches: bidirectional layers, and what they run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard._eager import accepts_cpu_loop
from regard.nn import Dropout

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

__all__ = ["fusible", "read"]


def fusible(x: Tensor) -> bool:
    """Whether a loop over x may run as one operation, whose gradients are written out.

    That is float32 and float64 on a CPU; where code is compiled, and for forward-mode and functional transforms, the
    plain loop serves.
    """
    return accepts_cpu_loop(x) and not torch.is_autocast_enabled("cpu")


def read(
    layers: nn.GRU | nn.LSTM, rows: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "L2 B half"]]:
    """The states of bidirectional layers, ``lengths`` of each row and 0 behind, and the last of all directions.

    What lies behind the lengths has no influence. The result is that of packed sequences, which take longer.

    >>> layers = nn.GRU(3, 2, batch_first=True, bidirectional=True)
    >>> states, last = read(layers, torch.ones(2, 5, 3), torch.tensor([5, 2]))
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
