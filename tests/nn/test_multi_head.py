"""MultiHeadAttention against attention written out for each head, and against torch's own layer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from by_hand import attend, scores
from regard.errors import ArgumentError
from regard.functional import Observe, causal, dense, padding
from regard.nn import MultiHeadAttention
from regard.positions import ALiBi, Relative, Rotary, Shaw, Sinusoidal, T5Bias

SCORES = ["dot", "scaled_dot", "general", "additive"]
MIXED = ["additive", "dot", "general", "additive", "scaled_dot", "dot"]
B, TQ, TK, HEADS, SIZE, KDIM, VDIM = 2, 7, 5, 6, 4, 11, 13
DIM = HEADS * SIZE


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def by_hand(layer, query, key, value, names, allowed=None, bias=None):
    """Output (Tq, dim) and weights (H, Tq, Tk) of one example, head by head, from slices of the layer's matrices."""

    def part(projection: nn.Linear, x: torch.Tensor, head: int) -> torch.Tensor:
        rows = slice(head * SIZE, (head + 1) * SIZE)
        return x @ projection.weight[rows].T + projection.bias[rows]

    outputs, weights = [], []
    for head, name in enumerate(names):
        shared = head // (layer.num_heads // layer.kv_heads)
        q, k, v = part(layer.q_proj, query, head), part(layer.k_proj, key, shared), part(layer.v_proj, value, shared)
        of_score = layer.scores[name].weight
        own = None if of_score is None else of_score[names[:head].count(name)]
        output, weight = attend(q, k, v, name, own, None if allowed is None else allowed[head])
        outputs.append(output)
        weights.append(weight)
    return torch.cat(outputs, -1) @ layer.out_proj.weight.T + layer.out_proj.bias, torch.stack(weights)


def made(**options) -> MultiHeadAttention:
    layer = MultiHeadAttention(DIM, HEADS, **options)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        nn.init.normal_(projection.bias)
    return layer


@pytest.mark.parametrize("score", [*SCORES, MIXED], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_each_head_is_its_formula(score: str | list[str], kv_heads: int) -> None:
    layer = made(score=score, kv_heads=kv_heads, kdim=KDIM, vdim=VDIM)
    query, key, value = torch.randn(B, TQ, DIM), torch.randn(B, TK, KDIM), torch.randn(B, TK, VDIM)
    output, seen = layer(query, key, value, observe=Observe(weights=True))
    names = [score] * HEADS if isinstance(score, str) else score
    for row in range(B):
        expected, weights = by_hand(layer, query[row], key[row], value[row], names)
        torch.testing.assert_close(output[row], expected)
        torch.testing.assert_close(seen.weights[row], weights)
        torch.testing.assert_close(layer(query[row], key[row], value[row]), expected)


@pytest.mark.parametrize("score", ["scaled_dot", "additive", MIXED], ids=str)
def test_masks_of_every_kind_reach_every_head(score: str | list[str]) -> None:
    layer = made(score=score)
    names = [score] * HEADS if isinstance(score, str) else score
    x = torch.randn(B, TQ, DIM)
    keep = torch.arange(TQ) < torch.tensor([[7], [3]])
    per_head = torch.rand(B, HEADS, TQ, TQ) < 0.7
    whole = keep[:, None, None].expand(B, 1, TQ, TQ)
    one_causal = copy.deepcopy(layer)
    one_causal.causal = True
    lower = torch.ones(TQ, TQ).tril().bool()
    for call, allowed in [
        (lambda: layer(x, mask=padding(keep)), whole),
        (lambda: layer(x, mask=whole), whole),
        (lambda: layer(x, mask=causal() & padding(keep)), whole & lower),
        (lambda: one_causal(x), lower.expand(B, 1, TQ, TQ)),
        (lambda: one_causal(x, mask=padding(keep)), whole & lower),
        (lambda: one_causal(x, mask=per_head), per_head & lower),
        (lambda: layer(x, mask=per_head), per_head),
        (lambda: layer(x, mask=dense(per_head) & padding(keep)), per_head & whole),
        (lambda: layer(x, mask=dense(lower)), lower.expand(B, 1, TQ, TQ)),
    ]:
        output = call()
        for row in range(B):
            of_heads = allowed[row].expand(HEADS, TQ, TQ)
            torch.testing.assert_close(output[row], by_hand(layer, x[row], x[row], x[row], names, of_heads)[0])


def test_a_bias_for_each_head_falls_on_its_head() -> None:
    mixed = made(score=MIXED)
    x, bias = torch.randn(B, TQ, DIM), torch.randn(B, HEADS, TQ, TQ)
    hidden = torch.rand(B, HEADS, TQ, TQ) < 0.3
    by_bias = mixed(x, bias=torch.zeros_like(bias).masked_fill(hidden, -torch.inf))
    torch.testing.assert_close(by_bias, mixed(x, mask=~hidden))
    assert not torch.allclose(mixed(x, bias=bias), mixed(x))
    shared = bias[:, :1]
    torch.testing.assert_close(mixed(x, bias=shared), mixed(x, bias=shared.expand_as(bias)))


def test_equal_scores_in_a_list_are_one_score() -> None:
    one, several = made(score="additive"), MultiHeadAttention(DIM, HEADS, score=["additive"] * HEADS)
    several.load_state_dict(one.state_dict())
    x = torch.randn(B, TQ, DIM)
    assert torch.equal(one(x), several(x))


def test_what_is_observed_has_the_heads_in_their_order() -> None:
    layer = made(score=MIXED)
    x = torch.randn(B, TQ, DIM)
    per_query = torch.rand(B, HEADS, TQ)
    asked = Observe(
        weights=True, rows=[0, 3], entropy=True, logsumexp=True, received=per_query, top=2, position=True, max=True
    )
    output, seen = layer(x, observe=asked)
    assert torch.equal(output, layer(x))
    weights = seen.weights
    for row in range(B):
        torch.testing.assert_close(weights[row], by_hand(layer, x[row], x[row], x[row], MIXED)[1])
    torch.testing.assert_close(seen.rows, weights[:, :, [0, 3]])
    torch.testing.assert_close(seen.entropy, torch.special.entr(weights).sum(-1))
    torch.testing.assert_close(seen.received, (per_query[..., None] * weights).sum(-2))
    torch.testing.assert_close(seen.position, (weights * torch.arange(TQ)).sum(-1))
    torch.testing.assert_close(seen.max, weights.amax(-1))
    torch.testing.assert_close(seen.top.weights, weights.topk(2).values)
    torch.testing.assert_close(weights.gather(-1, seen.top.keys), seen.top.weights)
    assert seen.logsumexp.shape == (B, HEADS, TQ)
    alone, seen_alone = layer(x[1], observe=Observe(weights=True, entropy=True))
    torch.testing.assert_close(alone, output[1])
    torch.testing.assert_close(seen_alone.weights, weights[1])
    assert layer(x, observe=Observe(max=True))[1].weights is None


@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (KDIM, VDIM)])
def test_it_takes_over_from_torchs_layer(kdim: int | None, vdim: int | None) -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, kdim=kdim, vdim=vdim, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHeadAttention(DIM, HEADS, kdim=kdim, vdim=vdim)
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    separate = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    weights = theirs.in_proj_weight.chunk(3) if kdim is None else separate
    with torch.no_grad():
        for mine, weight, bias in zip(projections, weights, theirs.in_proj_bias.chunk(3), strict=True):
            mine.weight.copy_(weight)
            mine.bias.copy_(bias)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    query = torch.randn(B, TQ, DIM)
    key, value = (torch.randn(B, TK, size or DIM) for size in (kdim, vdim))
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    expected, weights = theirs(query, key, value, key_padding_mask=~keep, average_attn_weights=False)
    output, seen = ours(query, key, value, mask=padding(keep), observe=Observe(weights=True))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(seen.weights, weights)


def test_query_stands_in_for_key_and_key_for_value() -> None:
    layer = made(score=MIXED)
    x, source = torch.randn(B, TQ, DIM), torch.randn(B, TK, DIM)
    assert torch.equal(layer(x), layer(x, x, x))
    assert torch.equal(layer(x, source), layer(x, source, source))


def test_parameters_begin_apart_and_are_drawn_anew() -> None:
    layer = MultiHeadAttention(DIM, HEADS, score="general", bias=False)
    assert list(layer.state_dict()) == [
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
        "out_proj.weight",
        "scores.general.weight",
    ]
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    assert all(not torch.equal(before[name], now) for name, now in layer.state_dict().items())
    assert not any(
        torch.equal(layer.scores["general"].weight[0], other) for other in layer.scores["general"].weight[1:]
    )


@pytest.mark.parametrize("score", ["additive", MIXED], ids=str)
def test_gradients_reach_every_parameter(score: str | list[str]) -> None:
    layer = made(score=score)
    layer(torch.randn(B, TQ, DIM)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_mixed_heads_in_other_dtypes(dtype: torch.dtype) -> None:
    layer = made(score=MIXED)
    x = torch.randn(B, TQ, DIM)
    expected = layer(x)
    output = layer.to(dtype)(x.to(dtype))
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, rtol=0.1, atol=0.1)


class Everything(Relative):
    """All three ways at once, in forms that can be followed by hand."""

    needs_weights = True

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(HEADS, 1, 1))
        self.table = nn.Parameter(torch.randn(40, SIZE))

    def rotate(self, heads, places):
        return heads * (1 + 0.1 * (places[..., None] if places.dim() == 1 else places[:, None, :, None]))

    def bias(self, query, query_places, key_places):
        apart = key_places.unsqueeze(-2) - query_places.unsqueeze(-1)
        return self.slope * apart if query.dim() == 3 else self.slope * apart.view(-1, 1, *apart.shape[-2:])

    def of_weights(self, weights, query_places, key_places):
        rows = self.table[key_places - query_places.min(-1, keepdim=True).values]
        return weights @ (rows if rows.dim() == 2 else rows[:, None])


def with_positions(layer, x, source, names, keep, own, bias):
    """Output of one example whose kept keys alone are there."""
    positions = layer.positions
    kept = source[keep]
    at_keys = torch.arange(len(kept))
    at_queries = at_keys if own else torch.arange(len(x)) + len(kept) - len(x)
    heads = []
    for head, name in enumerate(names):
        rows = slice(head * SIZE, (head + 1) * SIZE)
        shared = head // (layer.num_heads // layer.kv_heads)
        of_key = slice(shared * SIZE, (shared + 1) * SIZE)
        q = x @ layer.q_proj.weight[rows].T + layer.q_proj.bias[rows]
        k = kept @ layer.k_proj.weight[of_key].T + layer.k_proj.bias[of_key]
        v = kept @ layer.v_proj.weight[of_key].T + layer.v_proj.bias[of_key]
        q, k = q * (1 + 0.1 * at_queries[:, None]), k * (1 + 0.1 * at_keys[:, None])
        of_score = layer.scores[name].weight
        table = scores(q, k, name, None if of_score is None else of_score[names[:head].count(name)])
        table = table + positions.slope[head] * (at_keys - at_queries[:, None]) + bias[head][..., keep]
        weights = table.softmax(-1)
        heads.append(weights @ v + weights @ positions.table[at_keys - at_queries.min()])
    return torch.cat(heads, -1) @ layer.out_proj.weight.T + layer.out_proj.bias


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kv_heads", [2, 6])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", MIXED], ids=str)
def test_positions_act_in_all_three_ways(score: str | list[str], kv_heads: int, own: bool) -> None:
    layer = made(score=score, kv_heads=kv_heads, positions=Everything())
    names = [score] * HEADS if isinstance(score, str) else score
    x = torch.randn(3, TQ, DIM)
    source = x if own else torch.randn(3, TK, DIM)
    length = source.shape[1]
    keep = torch.stack([torch.ones(length), torch.arange(length) < 3, torch.arange(length) >= 1]).bool()
    bias = torch.randn(1, HEADS, TQ, length)
    output, seen = layer(x, None if own else source, mask=padding(keep), bias=bias, observe=Observe(entropy=True))
    assert torch.equal(output, layer(x, source, mask=padding(keep), bias=bias))
    assert seen.entropy.shape == (3, HEADS, TQ)
    for row in range(3):
        queries = keep[row] if own else slice(None)
        expected = with_positions(layer, x[row][queries], source[row], names, keep[row], own, bias[0][:, queries])
        torch.testing.assert_close(output[row][queries], expected, atol=1e-5, rtol=1e-5)
    alone = layer(x[0], source[0], bias=bias[0]) if not own else layer(x[0], bias=bias[0])
    torch.testing.assert_close(alone, output[0], atol=1e-5, rtol=1e-5)
    output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert layer.positions.table.grad.any()


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_weights_for_positions_are_those_that_dropout_left(impl: str) -> None:
    """With values of 1 and positions that add the weights' sum, both terms are the same random number."""
    layer = made(dropout=0.5, impl=impl, positions=Everything())
    with torch.no_grad():
        layer.v_proj.weight.zero_()
        layer.v_proj.bias.fill_(1.0)
        layer.positions.table.fill_(1.0)
        layer.out_proj.weight.copy_(torch.eye(DIM))
        layer.out_proj.bias.zero_()
    x = torch.randn(B, TQ, DIM)
    output, seen = layer(x, observe=Observe(weights=True))
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(B, HEADS, TQ))
    per_head = output.unflatten(-1, (HEADS, SIZE))
    torch.testing.assert_close(per_head, per_head[..., :1].expand_as(per_head))
    layer.positions.table.data.zero_()
    torch.manual_seed(5)
    half = layer(x)
    layer.positions.table.data.fill_(1.0)
    torch.manual_seed(5)
    torch.testing.assert_close(layer(x), 2 * half)
    assert half.std() > 0.1


def test_positions_have_their_parameters_from_outside() -> None:
    given = Shaw(SIZE, 2)
    before = {name: p.clone() for name, p in given.named_parameters()}
    layer = made(positions=given)
    assert all(torch.equal(p, before[name]) for name, p in given.named_parameters())
    assert {f"positions.{name}" for name in before} < set(layer.state_dict())
    layer.reset_parameters()
    assert not any(torch.equal(p, before[name]) for name, p in given.named_parameters())
    assert made(positions=Rotary(SIZE)).state_dict().keys() == made().state_dict().keys()


@pytest.mark.parametrize("name", ["rotary", "alibi", "t5", "shaw"])
def test_an_example_alone_equals_the_same_example_padded(name: str) -> None:
    """Both padded: the queries in self-attention, the source in cross-attention."""
    encodings = {"rotary": Rotary(SIZE), "alibi": ALiBi(HEADS), "t5": T5Bias(HEADS), "shaw": Shaw(SIZE, 2)}
    layer = made(positions=encodings[name])
    x, source = torch.randn(2, TQ, DIM), torch.randn(2, TK, DIM)
    for left in (False, True):
        for count, given in [(3, x), (2, source)]:
            length = given.shape[1]
            keep = torch.arange(length) >= length - count if left else torch.arange(length) < count
            mask = padding(torch.stack([keep, torch.ones_like(keep)]))
            if given is x:
                torch.testing.assert_close(layer(x, mask=mask)[0, keep], layer(x[:1, keep])[0])
            else:
                torch.testing.assert_close(layer(x, source, mask=mask)[0], layer(x[:1], source[:1, keep])[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MultiHeadAttention(10, 4), "multiple of num_heads, got 10 and 4"),
        (lambda: MultiHeadAttention(8, 0), "multiple of num_heads, got 8 and 0"),
        (lambda: MultiHeadAttention(0, 1), "multiple of num_heads, got 0 and 1"),
        (lambda: MultiHeadAttention(8, 2)(torch.zeros(2, 3, 8), cache=()), "must be a KeyValueCache, .*got tuple"),
        (lambda: MultiHeadAttention(8, 4, kv_heads=3), "multiple of kv_heads, got 4 and 3"),
        (lambda: MultiHeadAttention(8, 4, score=["dot", "dot"]), "each of the 4 heads, got 2 names"),
        (lambda: MultiHeadAttention(8, 2, score=["dot", "cosine"]), "got 'cosine'"),
        (lambda: MultiHeadAttention(8, 2, dropout=-0.1), "from 0 to 1, got -0.1"),
        (lambda: MultiHeadAttention(8, 2, positions=Sinusoidal(8)), "as Rotary or ALiBi do, got Sinusoidal: add"),
        (
            lambda: MultiHeadAttention(8, 2, positions=ALiBi(2))(torch.zeros(3, 8), mask=padding(lengths=[3, 3])),
            r"needs a batch: expected \(B, T, D\), got \(T, D\)",
        ),
        (lambda: MultiHeadAttention(8, 2)(torch.zeros(2, 3, 4)), r"query .*size 8; got shape \(2, 3, 4\)"),
        (lambda: MultiHeadAttention(8, 2, kdim=5)(torch.zeros(2, 3, 8)), r"key .*size 5; got shape \(2, 3, 8\)"),
        (lambda: MultiHeadAttention(8, 2)(torch.zeros(2, 3, 8), torch.zeros(3, 8)), "key must have 3 axes"),
        (lambda: MultiHeadAttention(8, 2)(torch.zeros(2, 3, 8), torch.zeros(3, 3, 8)), "3"),
        (lambda: MultiHeadAttention(8, 2)(torch.zeros(2, 2, 8), mask=torch.ones(2, 2).bool()), "padding"),
        (lambda: MultiHeadAttention(8, 2)(torch.zeros(2, 2, 8), mask=torch.zeros(2, 1, 2, 2)), "bias="),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
