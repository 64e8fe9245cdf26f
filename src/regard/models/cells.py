"""Recurrent cells whose gates take their input's share ready-made, so that it can be computed for all steps at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

__all__ = ["GRUCell", "LSTMCell"]


class _Cell(nn.Module):
    """The three products that enter the gates: of the input, of the context (if one does) and of the state before.

    The weights start as in `torch.nn.GRU`, uniform within ±1/√hidden_dim, and the recurrent ones orthogonal gate by
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
    """A gated recurrent unit over ready-made input gates.

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
        """The state after one step."""
        (hidden,) = state
        sizes = [2 * hidden.shape[-1], hidden.shape[-1]]
        input_rz, input_n = torch.split(gates, sizes, -1)
        hidden_rz, hidden_n = torch.split(self.from_hidden(hidden), sizes, -1)
        reset, update = torch.sigmoid(input_rz + hidden_rz).chunk(2, -1)
        return (torch.lerp(torch.tanh(torch.addcmul(input_n, reset, hidden_n)), hidden, update),)


class LSTMCell(_Cell):
    """A long short-term memory cell over ready-made input gates.

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
        """The state after one step."""
        hidden, memory = state
        pre = gates + self.from_hidden(hidden)
        ifo, candidate = torch.split(pre, [3 * hidden.shape[-1], hidden.shape[-1]], -1)
        write, forget, read = torch.sigmoid(ifo).chunk(3, -1)
        memory = torch.addcmul(forget * memory, write, torch.tanh(candidate))
        return read * torch.tanh(memory), memory
