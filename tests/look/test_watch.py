"""`regard.watch` on any PyTorch model: which attentions it records, under which names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

import regard
from regard import Additive, Observe, causal, padding, window
from regard.models import RecurrentConfig, RecurrentSeq2Seq, TransformerConfig, TransformerSeq2Seq, beam_search
from regard.nn import CrossAttention, KeyValueCache, MultiHeadAttention, SelfAttention
from watched import EVERYTHING, agrees

WEIGHTS = Observe(weights=True)
B, T, DIM, HEADS = 2, 7, 12, 3
PADDING = torch.zeros(B, T, dtype=torch.bool)
PADDING[1, 4:] = True
pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
    pytest.mark.usefixtures("nothing_is_left_behind"),
]


class Own(nn.Module):
    """A model that calls torch's attention itself."""

    def __init__(self, dropout_p: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.dropout_p = dropout_p
        self.options = options

    def forward(self, x: Tensor, **more: Any) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(-3, -2) for f in (self.q, self.k, self.v))
        attended = attend(q, k, v, dropout_p=self.dropout_p, **self.options, **more)
        return attended.transpose(-3, -2).flatten(-2)


def by_formula(q: Tensor, k: Tensor, allowed: Tensor | None = None, scale: float | None = None) -> Tensor:
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1).nan_to_num(0.0)


# --- what is seen


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", [None, "causal", "padding", "both"])
def test_torchs_layer(need_weights: bool, masked: str | None) -> None:
    layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    x = torch.randn(B, T, DIM)
    options: dict[str, Any] = {"need_weights": need_weights}
    if masked in ("causal", "both"):
        options["attn_mask"] = torch.ones(T, T, dtype=torch.bool).triu(1)
    if masked in ("padding", "both"):
        options["key_padding_mask"] = PADDING
    _, weights = layer(x, x, x, **options | {"need_weights": True}, average_attn_weights=False)
    with regard.watch(layer, EVERYTHING) as record:
        layer(x, x, x, **options)
    (found,) = record.layers
    assert (found.name, found.cross, found.heads) == ("MultiheadAttention", False, (0, 1, 2))
    agrees(found, weights, ~PADDING if masked in ("padding", "both") else None)


@pytest.mark.parametrize("need_weights", [True, False])
def test_torchs_layer_between_two_sequences(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(DIM, HEADS, kdim=5, vdim=5, add_bias_kv=True, add_zero_attn=True)
    query, memory = torch.randn(4, B, DIM), torch.randn(T, B, 5)
    _, weights = layer(query, memory, memory, average_attn_weights=False)
    with regard.watch(layer, EVERYTHING) as record:
        layer(query, memory, memory, need_weights=need_weights)
    assert record.layers[0].cross
    agrees(record.layers[0], weights)


def test_torchs_encoder_with_its_fast_path() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 4, 16, batch_first=True), 2).eval()
    x = torch.randn(B, T, DIM)
    with torch.no_grad():
        fast = encoder(x, src_key_padding_mask=PADDING)
        with regard.watch(encoder, EVERYTHING) as record:
            output = encoder(x, src_key_padding_mask=PADDING)
        with torch.enable_grad():
            plain = encoder(x, src_key_padding_mask=PADDING)
    assert torch.equal(output[~PADDING], plain[~PADDING])  # as without the fast path
    torch.testing.assert_close(output[~PADDING], fast[~PADDING])
    assert [layer.name for layer in record.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    _, weights = encoder.layers[0].self_attn(x, x, x, key_padding_mask=PADDING, average_attn_weights=False)
    agrees(record.layers[0], weights, ~PADDING)


def test_torchs_transformer() -> None:
    model = nn.Transformer(DIM, 4, 1, 2, 16, batch_first=True).eval()
    with regard.watch(model) as record:
        model(torch.randn(B, T, DIM), torch.randn(B, 5, DIM), tgt_is_causal=True, tgt_mask=causal_for(5))
    names = [(layer.name, layer.shape[2:], layer.cross) for layer in record.layers]
    assert names == [
        ("encoder.layers.0.self_attn", (T, T), False),
        ("decoder.layers.0.self_attn", (5, 5), False),
        ("decoder.layers.0.multihead_attn", (5, T), True),
        ("decoder.layers.1.self_attn", (5, 5), False),
        ("decoder.layers.1.multihead_attn", (5, T), True),
    ]


def causal_for(queries: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(queries)


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("masked", ["none", "causal", "bool", "float", "row"])
def test_torchs_function(rank: int, masked: str) -> None:
    lead = (2, 5, 3)[: rank - 2]
    q, k = torch.randn(*lead, 3, 4), torch.randn(*lead, 7, 4)
    allowed, options = torch.ones(3, 7, dtype=torch.bool), {}
    if masked == "causal":
        allowed, options = allowed.tril(), {"is_causal": True}  # torch's stands the first query at the first key
    elif masked in ("bool", "float"):
        allowed = torch.rand(*lead[-1:] if rank > 2 else (), 3, 7) > 0.4
        options = {"attn_mask": allowed}
        if masked == "float":
            options = {"attn_mask": torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)}
    elif masked == "row":
        allowed = torch.rand(1, 7) > 0.4
        options = {"attn_mask": allowed}
    model = nn.Identity()
    model.forward = lambda q, k: attend(q, k, k, scale=0.3, **options)
    with regard.watch(model, EVERYTHING) as record:
        model(q, k)
    weights = by_formula(q, k, allowed, 0.3)
    four = {2: (1, 1), 3: (2, 1), 4: (2, 5), 5: (10, 3)}[rank]  # of three axes the first is the batch
    agrees(record.layers[0], weights.reshape(*four, 3, 7))


def test_grouped_heads_and_a_shared_batch() -> None:
    q, k = torch.randn(3, 9, T, 4), torch.randn(1, 3, T, 4)
    model = nn.Identity()
    model.forward = lambda q, k: attend(q, k.expand(3, -1, -1, -1), k, enable_gqa=True)
    with regard.watch(model, EVERYTHING) as record:
        model(q, k)
    agrees(record.layers[0], by_formula(q, k.repeat_interleave(3, 1)))


def test_our_own_layers() -> None:
    x, memory = torch.randn(B, T, DIM), torch.randn(B, 5, DIM)
    for layer, given, cross in (
        (SelfAttention(DIM), (x,), False),
        (CrossAttention(DIM, DIM), (x, memory), True),
        (MultiHeadAttention(DIM, HEADS, score="general"), (x,), False),
        (MultiHeadAttention(DIM, HEADS, score="additive"), (x, memory), True),
    ):
        _, observed = layer(*given, observe=WEIGHTS)
        with regard.watch(layer, EVERYTHING) as record:
            layer(*given)
        assert record.layers[0].cross == cross
        agrees(record.layers[0], observed.weights)


def test_our_own_function_is_seen_once() -> None:
    for impl in ("sdpa", "reference"):
        layer = MultiHeadAttention(DIM, HEADS, impl=impl)
        with regard.watch(layer) as record:
            layer(torch.randn(B, T, DIM), mask=causal() & window(3))
        assert len(record.layers) == 1


@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (2, 3, 5, 4), (2, 2, 3, 5, 4)])
def test_our_own_masks(shape: tuple[int, ...]) -> None:
    q = torch.randn(*shape)
    mask = causal() & window(3)
    if len(shape) > 2:
        mask &= padding(lengths=list(range(3, 3 + shape[0])))
    for score in (regard.ScaledDot(), Additive(torch.randn(4))):
        model = nn.Identity()
        model.forward = lambda q, score=score: regard.attention(q, q, q, score=score, mask=mask)
        with regard.watch(model, EVERYTHING) as record:
            model(q)
        _, expected = regard.attention(q, q, q, score=score, mask=mask, observe=WEIGHTS)
        four = {2: (1, 1), 3: (1, 3), 4: (2, 3), 5: (4, 3)}[len(shape)]  # of three axes the first is the heads
        agrees(record.layers[0], expected.weights.reshape(*four, 5, 5))


@pytest.mark.parametrize("score", ["additive", "dot"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("input_feeding", [True, False])
def test_a_recurrent_model_is_seen_in_one_layer(score: str, cell: str, input_feeding: bool) -> None:
    config = RecurrentConfig(
        source_size=11, target_size=13, embed_dim=4, hidden_dim=6, score=score, cell=cell, input_feeding=input_feeding
    )
    model = RecurrentSeq2Seq(config).eval()
    source, lengths, target = torch.randint(4, 11, (B, T)), torch.tensor([T, 4]), torch.randint(4, 13, (B, 5))
    with torch.no_grad():
        plain = model(source, lengths, target)
        with regard.watch(model, EVERYTHING) as record:
            output = model(source, lengths, target)
        state, memory, rows = None, model.encode(source, lengths), []
        state = model.start(memory)
        for token in target.split(1, 1):
            _, state, observed = model.step(token, state, memory, WEIGHTS)
            rows.append(observed.weights)
    assert torch.equal(output, plain)
    (layer,) = record.layers
    assert (layer.name, layer.cross) == ("attention", True)
    agrees(layer, torch.cat(rows, 2))


def test_keys_that_are_all_alike_behind_the_end() -> None:
    model = RecurrentSeq2Seq(RecurrentConfig(source_size=11, target_size=13, embed_dim=4, hidden_dim=6, score="dot"))
    source, lengths, target = torch.randint(4, 11, (1, T)), torch.tensor([3]), torch.randint(4, 13, (1, 5))
    with torch.no_grad(), regard.watch(model.eval(), WEIGHTS) as record:
        model(source, lengths, target)
    assert [layer.shape for layer in record.layers] == [(1, 1, 5, T)]
    assert not record.layers[0].statistics.weights[..., 3:].any()


def test_two_batches_are_two_layers() -> None:
    model = RecurrentSeq2Seq(RecurrentConfig(source_size=11, target_size=13, embed_dim=4, hidden_dim=6, score="dot"))
    source, lengths = torch.randint(4, 11, (B, T)), torch.tensor([T, 4])
    with regard.watch(model) as record:
        model(source, lengths, torch.randint(4, 13, (B, 5)))
        model(source, lengths, torch.randint(4, 13, (B, 5)))
    assert [layer.shape[2] for layer in record.layers] == [5, 5]


def test_a_transformer_of_ours_with_its_search() -> None:
    config = TransformerConfig(11, 13, dim=12, heads=3, feedforward=8, encoder_layers=1, decoder_layers=2)
    model = TransformerSeq2Seq(config).eval()
    source, lengths = torch.randint(4, 11, (B, T)), torch.tensor([T, 4])
    with torch.no_grad(), regard.watch(model) as record:
        beam_search(model, source, lengths, beam=2, max_lengths=torch.tensor([4, 4]))
    assert {layer.cross for layer in record.layers if "cross" in layer.name} == {True}
    assert {layer.cross for layer in record.layers if "self" in layer.name} == {False}


@pytest.mark.parametrize("size", [None, 4])
def test_steps_with_a_cache_of_ours_are_one_layer(size: int | None) -> None:
    layer = MultiHeadAttention(DIM, HEADS, causal=True)
    x = torch.randn(B, T, DIM)
    mask = None if size is None else window(size)
    _, observed = layer(x, mask=mask, observe=WEIGHTS)
    cache = KeyValueCache(window=size)
    with torch.no_grad(), regard.watch(layer, EVERYTHING, keep_inputs=True) as record:
        for part in x.split([3, 1, 1, 2], 1):
            layer(part, cache=cache)
    (found,) = record.layers
    assert (found.shape, found.first_query) == ((B, HEADS, T, T), 0)
    agrees(found, observed.weights)
    torch.testing.assert_close(found.observe(WEIGHTS).weights, observed.weights)


def test_a_watch_that_begins_amid_a_text() -> None:
    layer = MultiHeadAttention(DIM, HEADS, causal=True)
    x, cache = torch.randn(B, T, DIM), KeyValueCache()
    layer(x[:, :4], cache=cache)
    with regard.watch(layer) as record:
        layer(x[:, 4:5], cache=cache)
        layer(x[:, 5:], cache=cache)
    assert (record.layers[0].shape, record.layers[0].first_query) == ((B, HEADS, 3, T), 4)


# --- names


def test_a_module_used_twice_and_one_without_hooks() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Own()
            self.again = self.first

        def forward(self, x: Tensor) -> Tensor:
            return self.first.forward(self.again(self.first(x)))  # the last one runs no hooks

    model = Twice()
    with regard.watch(model) as record:
        model(torch.randn(B, T, DIM))
    assert [layer.name for layer in record.layers] == ["first", "first", "Twice"]


def test_only_the_models_own_modules_are_seen() -> None:
    one, other, x = Own(), Own(), torch.randn(B, T, DIM)
    with regard.watch(one) as of_one, regard.watch(other) as of_other:
        one(x)
        other(x)
        attend(x, x, x)
    assert len(of_one.layers) == len(of_other.layers) == 1


# --- filters and bounds


def test_layers_and_heads_that_were_asked_for() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 4, 16, batch_first=True), 3)
    x = torch.randn(B, T, DIM)
    with regard.watch(encoder, EVERYTHING) as whole:
        encoder.eval()(x)
    for chosen, expected in (("layers.1.*", [1]), ([0, "layers.2.self_attn"], [0, 2]), (2, [2])):
        with regard.watch(encoder, EVERYTHING, layers=chosen, heads=[2, 0], keep_inputs=True) as record:
            encoder(x)
        assert [layer.name for layer in record.layers] == [f"layers.{i}.self_attn" for i in expected]
        for layer, i in zip(record.layers, expected, strict=True):
            weights = whole.layers[i].statistics.weights[:, [2, 0]]
            assert layer.heads == (2, 0)
            agrees(layer, weights)
            torch.testing.assert_close(layer.observe(WEIGHTS).weights, weights)


def test_heads_of_grouped_keys_and_of_scores_with_a_weight_each() -> None:
    for layer in (MultiHeadAttention(12, 6, kv_heads=2), MultiHeadAttention(12, 6, score="additive")):
        x, mask = torch.randn(B, T, 12), torch.rand(B, 6, T, T) > 0.3
        _, observed = layer(x, mask=mask, observe=WEIGHTS)
        with regard.watch(layer, EVERYTHING, heads=[5, 1, 2]) as record:
            layer(x, mask=mask)
        agrees(record.layers[0], observed.weights[:, [5, 1, 2]])


def test_heads_that_have_a_score_each_keep_their_numbers() -> None:
    layer, x = MultiHeadAttention(12, 4, score=["dot", "additive", "dot", "general"]), torch.randn(B, T, 12)
    _, observed = layer(x, observe=WEIGHTS)
    with regard.watch(layer, EVERYTHING) as record:
        layer(x)
    assert [found.heads for found in record.layers] == [(0, 2), (1,), (3,)]
    for found in record.layers:
        agrees(found, observed.weights[:, list(found.heads)])
    with regard.watch(layer, EVERYTHING, heads=[2, 1]) as record:
        layer(x)
    assert [found.heads for found in record.layers] == [(2,), (1,)]


def test_what_is_beyond_the_bound_is_counted() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 4, 16, batch_first=True), 5).eval()
    with (
        pytest.warns(UserWarning, match=r"layers\.2\.self_attn on are left out") as said,
        regard.watch(encoder, Observe(entropy=True), memory=2 * 4 * B * 4 * T) as record,
    ):
        encoder(torch.randn(B, T, DIM))
    assert (len(record.layers), record.left_out, len(said)) == (2, 3, 1)


def test_what_is_kept_is_small_and_by_itself() -> None:
    model, x = Own(), torch.randn(B, T, DIM, dtype=torch.float64)
    model.double()
    with regard.watch(model, EVERYTHING, keep_inputs=True) as record:
        model(x).sum().backward()
    (layer,) = record.layers
    for name, value in vars(layer.statistics).items():
        for tensor in value if name == "top" else [value]:
            if tensor is not None:
                assert tensor.dtype in (torch.float32, torch.int32)
                assert not tensor.requires_grad
    assert not layer.inputs.query.requires_grad
    assert layer.observe(Observe(entropy=True)).entropy.shape == (B, HEADS, T)


@pytest.mark.parametrize(
    ("score", "error"),
    [("scaled_dot", 1e-5), ("additive", 1e-5), ("general", 1e-2)],  # of the latter the model rounds a product more
)
def test_what_is_kept_of_half_precision_is_what_the_model_computed_with(score: str, error: float) -> None:
    x, bias = torch.randn(B, T, DIM), torch.randn(1, 1, T, T)
    model = MultiHeadAttention(DIM, HEADS, score=score)
    with regard.watch(model, EVERYTHING, keep_inputs=True) as autocast, torch.autocast("cpu", torch.bfloat16):
        model(x, mask=causal() & padding(lengths=[7, 4]), bias=bias)
    with regard.watch(model.bfloat16(), EVERYTHING, keep_inputs=True) as half:
        model(x.bfloat16(), mask=causal() & padding(lengths=[7, 4]), bias=bias.bfloat16())
    for layer in (autocast.layers[0], half.layers[0]):
        torch.testing.assert_close(layer.observe(WEIGHTS).weights, layer.statistics.weights, atol=error, rtol=0)


def test_inputs_of_the_models_own_call() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.own = nn.Embedding(9, DIM), Own()

        def forward(self, input_ids: Tensor, attention_mask: Tensor, noise: Tensor | None = None) -> Tensor:
            return self.own(self.embed(input_ids), attn_mask=attention_mask[:, None, None])

    model, ids = Reader(), torch.randint(9, (B, T))
    with regard.watch(model) as record:
        model(ids, attention_mask=~PADDING, noise=torch.randn(3))
    assert set(record.inputs) == {"input_ids", "attention_mask"}
    assert torch.equal(record.inputs["input_ids"], ids)
