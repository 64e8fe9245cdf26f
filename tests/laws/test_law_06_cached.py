"""Law 6: cached = chunked = full, for every position encoding, score, grouping of heads, padding and window."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard import Mask, causal, padding, window
from regard.nn import BlockConfig, KeyValueCache, MultiHeadAttention, TransformerDecoder, TransformerEncoder
from regard.positions import ALiBi, Learned, Rotary, Shaw, Sinusoidal, T5Bias

B, HEADS, SIZE = 3, 6, 4
DIM = HEADS * SIZE
RELATIVE = {
    "none": lambda: None,
    "rotary": lambda: Rotary(SIZE),
    "alibi": lambda: ALiBi(HEADS),
    "t5": lambda: T5Bias(HEADS, buckets=6, max_distance=9, bidirectional=False),
    "shaw": lambda: Shaw(SIZE, 2),
    "shaw-keys": lambda: Shaw(SIZE, 3, values=False),
}
ABSOLUTE = {"none": lambda: None, "sinusoidal": lambda: Sinusoidal(DIM), "learned": lambda: Learned(17, DIM)}
SCORES = ["dot", "scaled_dot", "general", "additive", ["additive", "dot", "general", "additive", "scaled_dot", "dot"]]
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@st.composite
def pieces(draw: st.DrawFn) -> list[int]:
    """Draw the lengths of the pieces of a sequence; now and then single tokens."""
    return draw(st.one_of(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.just([1] * 7)))


@st.composite
def keeps(draw: st.DrawFn, length: int) -> Tensor | None:
    """Draw a padding mask of B sequences: None, or padding on one side."""
    side = draw(st.sampled_from(["none", "left", "right"]))
    lengths = torch.tensor([[length], [draw(st.integers(1, length))], [draw(st.integers(1, length))]])
    at = torch.arange(length)
    return None if side == "none" else at >= length - lengths if side == "left" else at < lengths


def embedded(x: Tensor, positions: nn.Module | None, keep: Tensor | None, start: int = 0) -> Tensor:
    """The tokens from ``start`` on with their absolute positions, as a caller adds them who reads in pieces."""
    if positions is None:
        return x
    if keep is None:
        return positions(x, offset=start)
    return positions(x, keep=keep[:, start : start + x.shape[1]], offset=keep[:, :start].sum(1))


def mask_of(keep: Tensor | None, end: int, size: int | None = None) -> Mask:
    mask = causal() if size is None else causal() & window(size)
    return mask if keep is None else mask & padding(keep[:, :end])


def kept(output: Tensor, keep: Tensor | None) -> Tensor:
    """Return the outputs to compare: without those of padding, whose positions are arbitrary."""
    return output if keep is None else output[keep]


@given(st.data(), pieces(), st.booleans())
def test_a_layer_of_attention(data: st.DataObject, cut: list[int], recorded: bool) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99), "seed"))
    keep = data.draw(keeps(sum(cut)), "keep")
    size = data.draw(st.sampled_from([None, None, 1, 3, 4]), "window")
    layer = MultiHeadAttention(
        DIM,
        HEADS,
        kv_heads=data.draw(st.sampled_from([1, 2, 3, 6]), "kv_heads"),
        score=data.draw(st.sampled_from(SCORES), "score"),
        positions=RELATIVE[data.draw(st.sampled_from(list(RELATIVE)), "relative")](),
        causal=data.draw(st.booleans(), "causal"),
    )
    positions = ABSOLUTE[data.draw(st.sampled_from(list(ABSOLUTE)), "absolute")]()
    x = torch.randn(B, sum(cut), DIM)
    full = layer(embedded(x, positions, keep), mask=mask_of(keep, sum(cut), size))
    cache, outputs = KeyValueCache(size), []
    with torch.set_grad_enabled(recorded):
        for piece in x.split(cut, 1):
            start = cache.length
            given_mask = mask_of(keep, start + piece.shape[1])  # the cache knows its window
            outputs.append(layer(embedded(piece, positions, keep, start), mask=given_mask, cache=cache))
    torch.testing.assert_close(kept(torch.cat(outputs, 1), keep), kept(full, keep), **CLOSE)
    assert len(cache) == sum(cut)
    assert cache.key.shape == (B, layer.kv_heads, min(sum(cut), size or sum(cut)), SIZE)


@given(st.sampled_from(list(RELATIVE)), pieces(), st.booleans(), st.integers(0, 99))
def test_gradients_through_the_cache(name: str, cut: list[int], padded: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(DIM, HEADS, kv_heads=2, positions=RELATIVE[name](), causal=True)
    x, length = torch.randn(B, sum(cut), DIM, requires_grad=True), sum(cut)
    keep = torch.arange(length) >= torch.tensor([[0], [length // 2], [length - 1]]) if padded else None
    inputs, weight = [x, *layer.parameters()], torch.randn(B, length, DIM)
    full = torch.autograd.grad((layer(x, mask=mask_of(keep, length)) * weight).sum(), inputs)
    cache, outputs = KeyValueCache(), []
    for piece in x.split(cut, 1):
        outputs.append(layer(piece, mask=mask_of(keep, cache.length + piece.shape[1]), cache=cache))
    cached = torch.autograd.grad((torch.cat(outputs, 1) * weight).sum(), inputs)
    torch.testing.assert_close(cached, full, **CLOSE)


@given(st.sampled_from(list(RELATIVE)), pieces(), st.data())
def test_an_encoder_that_is_causal(name: str, cut: list[int], data: st.DataObject) -> None:
    """A language model's decoder: blocks without a memory."""
    torch.manual_seed(0)
    keep = data.draw(keeps(sum(cut)), "keep")
    positions = None if name == "none" else RELATIVE[name]
    config = BlockConfig(DIM, HEADS, 11, kv_heads=2, positions=positions, norm_first=data.draw(st.booleans()))
    encoder, x = TransformerEncoder(config, 2).eval(), torch.randn(B, sum(cut), DIM)
    full = encoder(x, mask=mask_of(keep, sum(cut)))
    caches, outputs = [KeyValueCache() for _ in range(2)], []
    with torch.no_grad():
        for piece in x.split(cut, 1):
            end = caches[0].length + piece.shape[1]
            outputs.append(encoder(piece, mask=mask_of(keep, end), caches=caches))
    torch.testing.assert_close(kept(torch.cat(outputs, 1), keep), kept(full, keep), **CLOSE)


@given(st.sampled_from(list(RELATIVE)), pieces(), st.booleans(), st.data())
def test_a_decoder_and_its_state(name: str, cut: list[int], recorded: bool, data: st.DataObject) -> None:
    torch.manual_seed(0)
    keep = data.draw(keeps(sum(cut)), "keep")
    positions = None if name == "none" else RELATIVE[name]
    config = BlockConfig(DIM, HEADS, 11, positions=positions, norm_first=data.draw(st.booleans(), "norm_first"))
    decoder = TransformerDecoder(config, 2, memory_dim=5).eval()
    x, memory = torch.randn(B, sum(cut), DIM), torch.randn(B, 7, 5)
    memory_mask = data.draw(st.sampled_from([None, padding(lengths=[7, 2, 5])]), "memory_mask")
    full = decoder(x, memory, mask=mask_of(keep, sum(cut)), memory_mask=memory_mask)
    outputs = []
    with torch.set_grad_enabled(recorded):
        state = decoder.start(memory, mask=memory_mask)
        for piece in x.split(cut, 1):
            mask = None if keep is None else padding(keep[:, : state.length + piece.shape[1]])
            outputs.append(decoder(piece, state, mask=mask))
    assert state.length == sum(cut)
    torch.testing.assert_close(kept(torch.cat(outputs, 1), keep), kept(full, keep), **CLOSE)


@given(st.sampled_from(list(RELATIVE)), st.integers(1, 3), st.integers(1, 3), st.data())
def test_the_hypotheses_of_a_beam(name: str, before: int, after: int, data: st.DataObject) -> None:
    """Hypotheses that go on from others, K for each source, are what they are when read from their beginning."""
    torch.manual_seed(0)
    positions = None if name == "none" else RELATIVE[name]
    decoder = TransformerDecoder(BlockConfig(DIM, HEADS, 11, kv_heads=3, positions=positions), 2).eval()
    memory, mask = torch.randn(B, 7, DIM), padding(lengths=[7, 2, 5])
    sizes = [data.draw(st.integers(1, 3), "beam") for _ in range(2)]
    history = torch.randn(B, sizes[0], before, DIM)
    parents = torch.tensor([[data.draw(st.integers(0, sizes[0] - 1)) for _ in range(sizes[1])] for _ in range(B)])
    sources = torch.tensor(data.draw(st.permutations(range(B)), "sources")[: data.draw(st.integers(1, B))])
    with torch.no_grad():
        state = decoder.start(memory, mask=mask)
        decoder(history.flatten(0, 1), state)
        state = state.select(parents).select(sources)
        new = torch.randn(len(sources), sizes[1], after, DIM)
        output = decoder(new.flatten(0, 1), state).unflatten(0, (-1, sizes[1]))
    for row, source in enumerate(sources.tolist()):
        for slot in range(sizes[1]):
            whole = torch.cat([history[source, parents[source, slot]], new[row, slot]])[None]
            only = padding(lengths=mask.lengths[0][source : source + 1])
            alone = decoder(whole, memory[source : source + 1], memory_mask=only)
            torch.testing.assert_close(output[row, slot], alone[0, before:], **CLOSE)
