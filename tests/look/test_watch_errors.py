"""Errors of `regard.watch` in one line; layers found by name, and asked for other statistics later."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import Observe, causal, padding
from regard.errors import ArgumentError, UnsupportedError
from regard.look.watching.functions import FUNCTIONS
from regard.nn import MultiHeadAttention

B, T, DIM, HEADS = 2, 7, 12, 3


class TorchsLayer(nn.Module):
    """Attention in a module that has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x)[0]


def by_hand() -> nn.Module:
    model = nn.Linear(DIM, DIM)
    model.forward = lambda x: (x @ x.mT).softmax(-1) @ x
    return model


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "bert"}, "expected a torch.nn.Module, got str"),
        ({"observe": "entropy"}, "expected an Observe"),
        ({"observe": Observe(received=torch.ones(3))}, "expected Observe\\(received=True\\) or False, got a tensor"),
        ({"layers": -1}, "expected names or numbers from 0, got -1"),
        ({"layers": [1.5]}, "expected names or numbers from 0, got 1.5"),
        ({"heads": ["a"]}, "expected numbers from 0, got 'a'"),
        ({"memory": 0}, "number of bytes, got 0"),
        ({"heads": 3}, "layer has 3 heads, from 0"),
        ({"layers": "*.attn"}, r"'\*\.attn' fits none of the 1 modules that attended: layer"),
        ({"layers": [0, 4]}, "4 fits none"),
    ],
)
def test_law_10_errors_in_one_line(arguments: dict[str, Any], said: str) -> None:
    options = {"model": TorchsLayer(), **arguments}
    with pytest.raises(ArgumentError, match=said) as caught, regard.watch(**options):
        options["model"](torch.randn(B, T, DIM))
    assert "\n" not in str(caught.value)


def test_attention_that_nobody_can_see_is_an_error() -> None:
    model = by_hand()
    with pytest.raises(UnsupportedError, match="no attention was recorded") as caught, regard.watch(model):
        model(torch.randn(B, T, DIM))
    assert all(function.name in str(caught.value) for function in FUNCTIONS.values() if function.name)
    with regard.watch(model) as record:
        pass
    assert record.layers == []


def test_what_was_not_kept_cannot_be_asked_later() -> None:
    model = TorchsLayer()
    with regard.watch(model) as record:
        model(torch.randn(B, T, DIM))
    with pytest.raises(UnsupportedError, match=re.escape("watch(model, keep_inputs=True)")):
        record.layers[0].observe(Observe(entropy=True))


def test_layers_are_found_by_name() -> None:
    model = TorchsLayer()
    with regard.watch(model) as record:
        model(torch.randn(B, T, DIM))
    assert record["layer"] is record.layers[0]
    with pytest.raises(ArgumentError, match="expected the name of a recorded layer, such as layer; got 'lay'"):
        record["lay"]


def test_our_masks_are_kept_as_they_are() -> None:
    layer = MultiHeadAttention(DIM, HEADS)
    with regard.watch(layer, keep_inputs=True) as record:
        layer(torch.randn(B, T, DIM), mask=causal() & padding(lengths=[7, 4]))
    mask = record.layers[0].inputs.mask
    assert len(mask.bands) == 1
    assert not mask.tables  # nothing of the size of the scores
