"""GRUCell and LSTMCell: the states of torch's layers, and how the weights begin."""

from __future__ import annotations

import pytest
import torch

from regard.nn._recurrent import GRUCell, LSTMCell


def torch_weights(cell: GRUCell | LSTMCell, gates: list[int]) -> dict[str, torch.Tensor]:
    """The cell's weights as torch.nn's recurrent layers name and order them."""

    def ordered(tensor: torch.Tensor) -> torch.Tensor:
        chunks = tensor.chunk(len(gates))
        return torch.cat([chunks[gate] for gate in gates])

    entering = torch.cat((cell.from_input.weight, cell.from_context.weight), 1)
    return {
        "weight_ih_l0": ordered(entering),
        "weight_hh_l0": ordered(cell.from_hidden.weight),
        "bias_ih_l0": ordered(cell.from_input.bias),
        "bias_hh_l0": ordered(cell.from_hidden.bias),
    }


@pytest.mark.parametrize(
    ("kind", "theirs", "gates"),
    [(GRUCell, torch.nn.GRU, [0, 1, 2]), (LSTMCell, torch.nn.LSTM, [0, 1, 3, 2])],  # torch: i f g o, ours: i f o g
)
def test_cells_equal_torch(kind: type[GRUCell | LSTMCell], theirs: type[torch.nn.RNNBase], gates: list[int]) -> None:
    torch.manual_seed(0)
    cell = kind(input_dim=5, context_dim=7, hidden_dim=3)
    layer = theirs(5 + 7, 3, batch_first=True)
    layer.load_state_dict(torch_weights(cell, gates))
    y, c = torch.randn(2, 4, 5), torch.randn(2, 4, 7)
    state = tuple(torch.randn(2, 3) for _ in range(kind.parts))
    begin = tuple(part[None] for part in state)
    expected, _ = layer(torch.cat((y, c), -1), begin if kind.parts == 2 else begin[0])
    for step in range(4):
        state = cell(cell.from_input(y[:, step]) + cell.from_context(c[:, step]), state)
        torch.testing.assert_close(state[0], expected[:, step])


@pytest.mark.parametrize("kind", [GRUCell, LSTMCell])
def test_cells_begin_orthogonal_gate_by_gate(kind: type[GRUCell | LSTMCell]) -> None:
    cell = kind(input_dim=5, context_dim=7, hidden_dim=6)
    for gate in cell.from_hidden.weight.chunk(kind.gates):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6))
    forget = cell.from_hidden.bias[6:12]
    assert bool((forget == 1).all()) == (kind is LSTMCell)
