"""Law 5: an example alone equals the same example in any padded batch, whichever side the padding is on."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from drawn import Call, calls

LONG = [(3, 2, 1, 7, 7, 5, 11), (2, 1, 3, 11, 11, 5, 5)]


@given(
    calls(shapes=LONG, masks=["none"], biases=["none"], ranks=(4,)),
    st.lists(st.integers(1, 7), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_alone_equals_padded(call: Call, lengths: list[int], left: bool, causal: bool) -> None:
    size = call.shape[-1]
    lengths = lengths[: call.shape[0]]
    count = torch.tensor(lengths)[:, None]
    keep = torch.arange(size) >= size - count if left else torch.arange(size) < count
    base = regard.causal() if causal else regard.Mask()
    padded = replace(call, mask=base & regard.padding(keep))
    if not left:
        by_lengths = replace(call, mask=base & regard.padding(lengths=lengths))
        assert torch.equal(padded.run(), by_lengths.run())
    output = padded.run()
    for example, length in enumerate(lengths):
        real = slice(size - length, size) if left else slice(0, length)

        def only(tensor: Tensor, example: int = example, real: slice = real) -> Tensor:
            return tensor[example : example + 1, :, real]

        alone = replace(call, query=only(call.query), key=only(call.key), value=only(call.value), mask=base).run()
        torch.testing.assert_close(only(output), alone, atol=1e-5, rtol=1e-5)


@given(calls(shapes=[(3, 2, 2, 5, 7, 5, 5)], ranks=(4,)))
def test_permuting_the_batch_permutes_the_output(call: Call) -> None:
    order = torch.tensor([2, 0, 1])
    mask = regard.dense(call.allowed[order])
    permuted = replace(
        call,
        query=call.query[order],
        key=call.key[order],
        value=call.value[order],
        bias=None if call.bias is None else call.bias.expand(call.shape)[order],
        mask=mask,
    )
    torch.testing.assert_close(permuted.run(), call.run()[order])
