"""Faults that people reported of other libraries' positions within attention, by the ids of the list of cases."""

from __future__ import annotations

import pytest
import torch

from regard.errors import ArgumentError
from regard.positions import Rotary
from regard.positions._places import places


@pytest.mark.parametrize("dim", [1, 5])
def test_p2_rotary_of_odd_size(dim: int) -> None:
    with pytest.raises(ArgumentError, match=f"head_dim must be even and 2 or more, got {dim}"):
        Rotary(dim)


@pytest.mark.parametrize("interleaved", [False, True])
def test_p1_padding_does_not_turn_the_tokens(interleaved: bool) -> None:
    rotary, alone = Rotary(4, interleaved=interleaved), torch.randn(1, 3, 2, 4)
    keep = torch.tensor([[False, False, True, True]])
    padded = torch.cat([torch.randn(1, 3, 2, 4), alone], 2)
    turned = rotary.rotate(padded, places(padded[:, 0], keep, 0))
    torch.testing.assert_close(turned[:, :, 2:], rotary.rotate(alone, torch.arange(2)))
