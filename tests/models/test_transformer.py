"""TransformerSeq2Seq: against torch's transformer with the same weights, step by step, compiled, exported, copied."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from regard._symbols import BOS
from regard.errors import ArgumentError
from regard.functional import Observe
from regard.models import TransformerConfig, TransformerSeq2Seq, beam_search
from regard.nn import DecoderState
from regard.positions import sinusoidal

POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"]
B, TK, TQ, SOURCES, TARGETS, DIM, HEADS, HIDDEN = 3, 7, 5, 11, 13, 12, 2, 17
every_position = pytest.mark.parametrize("positions", POSITIONS)


def build(positions: str = "sinusoidal", *, norm_first: bool = True, **options: object) -> TransformerSeq2Seq:
    torch.manual_seed(0)
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "dropout": 0.4, "max_length": 19, **options}
    return TransformerSeq2Seq(
        TransformerConfig(SOURCES, TARGETS, DIM, HEADS, HIDDEN, norm_first=norm_first, positions=positions, **sizes)
    )


def batch(size: int = B, tk: int = TK, tq: int = TQ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    lengths = torch.tensor([tk, 3, 5, *[4] * size])[:size]
    source = torch.randint(4, SOURCES, (size, tk)).masked_fill(torch.arange(tk) >= lengths[:, None], 0)
    target = torch.randint(4, TARGETS, (size, tq))
    target[:, 0] = BOS
    return source, lengths, target


@pytest.mark.parametrize("norm_first", [True, False])
@every_position
def test_shapes_and_a_gradient_for_every_parameter(positions: str, norm_first: bool) -> None:
    model = build(positions, norm_first=norm_first)
    logits = model(*batch())
    assert logits.shape == (B, TQ, TARGETS)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A bias of the keys moves all scores of a query alike: no softmax feels it
        assert parameter.grad.any() or name.endswith("k_proj.bias"), name


def reference(model: TransformerSeq2Seq) -> nn.Transformer:
    """torch's transformer with the weights of ours."""
    config = model.config
    options = {"norm_first": config.norm_first, "batch_first": True}
    ends = [nn.LayerNorm(DIM) if config.norm_first else None for _ in range(2)]
    theirs = nn.Transformer(
        DIM,
        HEADS,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN, **options), 2, ends[0], enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(DIM, HEADS, HIDDEN, **options), 3, ends[1]),
        **options,
    ).eval()
    state = {}
    for name, tensor in [*theirs.state_dict().items()]:
        name = name.replace("multihead_attn", "cross_attn")
        own = dict(model.named_parameters())
        if "in_proj" in name:
            kind = name.rsplit("_", 1)[1]
            stem = name.removesuffix(f"in_proj_{kind}")
            parts = [own[f"{stem}{part}_proj.{kind}"] for part in "qkv"]
            state[name.replace("cross_attn", "multihead_attn")] = torch.cat(parts)
        else:
            assert own[name].shape == tensor.shape
            state[name.replace("cross_attn", "multihead_attn")] = own[name]
    theirs.load_state_dict(state)
    return theirs.double()


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_numbers_are_those_of_torch_with_the_same_weights(norm_first: bool) -> None:
    model = build(norm_first=norm_first).eval()
    for parameter in model.parameters():  # biases that begin at zero would hide their absence
        nn.init.normal_(parameter, std=0.3)
    theirs = reference(model)
    source, lengths, target = batch()
    single = model(source, lengths, target)
    model.double()

    def embed(embedding: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        return math.sqrt(DIM) * embedding(ids) + sinusoidal(ids.shape[1], DIM)

    hidden = theirs(
        embed(model.source_embedding, source),
        embed(model.target_embedding, target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(TQ, dtype=torch.double),
        src_key_padding_mask=torch.arange(TK) >= lengths[:, None],
        memory_key_padding_mask=torch.arange(TK) >= lengths[:, None],
    )
    expected = hidden @ model.target_embedding.weight.T
    torch.testing.assert_close(model(source, lengths, target), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-4)


@every_position
def test_dropout_is_of_training_alone(positions: str) -> None:
    model, inputs = build(positions), batch()
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    expected = model(*inputs)
    torch.testing.assert_close(expected, build(positions, dropout=0.0).train()(*inputs))
    assert torch.equal(expected, model(*inputs))
    with torch.inference_mode():
        torch.testing.assert_close(expected, model(*inputs))


@every_position
def test_dropout_falls_on_the_sums_of_embeddings_and_positions(positions: str) -> None:
    model, seen = build(positions), {}
    for side in (model.encoder, model.decoder):
        side.register_forward_pre_hook(lambda module, inputs: seen.update({module: inputs[0]}))
    inputs = batch(16, 18, 18)
    model(*inputs)
    dropped = dict(seen)
    model.eval()(*inputs)
    for side, x in dropped.items():
        kept = x != 0
        torch.testing.assert_close(x, seen[side] * kept / 0.6)
        assert kept[seen[side] != 0].float().mean().item() == pytest.approx(0.6, abs=0.03)


def test_t5_tells_sides_where_there_are_two() -> None:
    model = build("t5")
    assert model.encoder.layers[0].self_attn.positions.bidirectional
    assert not model.decoder.layers[0].self_attn.positions.bidirectional


@pytest.mark.parametrize("dim", [5, 1])
def test_p2_sinusoids_of_an_odd_size(dim: int) -> None:
    model = TransformerSeq2Seq(TransformerConfig(SOURCES, TARGETS, dim, 1, 3, 1, 1))
    assert model(*batch()).shape == (B, TQ, TARGETS)


@every_position
def test_shapes_of_a_step_for_several_hypotheses(positions: str) -> None:
    model = build(positions).eval()
    source, lengths, _ = batch()
    memory = model.encode(source, lengths)

    def step(observe: Observe | None) -> tuple[torch.Tensor, torch.Tensor, object]:
        state = model.select(model.start(memory), torch.zeros(B, 2, dtype=torch.long))
        first, state, _ = model.step(torch.full((B, 2), BOS), state, memory)
        assert torch.equal(first[:, 0], first[:, 1])
        second, state, seen = model.step(torch.tensor([[4, 5]] * B), state, memory, observe)
        assert state.length == 2
        return second, first, seen

    logits, first, seen = step(Observe(weights=True, entropy=True, top=2))
    assert logits.shape == first.shape == (B, 2, TARGETS)
    assert seen.weights.shape == (B, 3, HEADS, 2, TK)
    assert seen.entropy.shape == (B, 3, HEADS, 2)
    assert seen.top.keys.shape == (B, 3, HEADS, 2, 2)
    assert seen.received is None
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(B, 3, HEADS, 2))
    assert not torch.equal(seen.weights[:, 0], seen.weights[:, 1])
    plain, _, nothing = step(None)
    assert nothing is None
    assert torch.equal(plain, logits)


@every_position
def test_what_the_search_finds_is_what_forced_decoding_gives(positions: str) -> None:
    model = build(positions).eval()
    with torch.no_grad():
        model.target_embedding.weight.mul_(1.5)  # so that answers end, at various lengths
    source, lengths, _ = batch()
    found = beam_search(model, source, lengths, max_lengths=lengths + 4, beam=4, n_best=4, weights=True)
    for row, hypotheses in enumerate(found):
        size = lengths[row : row + 1]
        for hypothesis in hypotheses:
            symbols = [BOS, *hypothesis.ids, *([3] if hypothesis.finished else [])]
            target = torch.tensor([symbols])
            logits = model(source[row : row + 1, :size], size, target[:, :-1])
            chosen = logits.log_softmax(-1)[0].gather(1, target[0, 1:, None])
            assert hypothesis.log_prob == pytest.approx(chosen.sum().item(), rel=1e-4)
            assert hypothesis.weights.shape == (3, HEADS, len(symbols) - 1, size)
            memory = model.encode(source[row : row + 1, :size], size)
            state = model.start(memory)
            for step in range(len(symbols) - 1):
                _, state, seen = model.step(target[:, step : step + 1], state, memory, Observe(weights=True))
                torch.testing.assert_close(hypothesis.weights[:, :, step], seen.weights[0, :, :, 0], rtol=0, atol=1e-5)


def test_greedy_search_never_copies_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    whole = DecoderState.select

    def select(state: DecoderState, parents: torch.Tensor) -> DecoderState:
        calls.append(parents)
        return whole(state, parents)

    monkeypatch.setattr(DecoderState, "select", select)
    model = build().eval()
    source, lengths, _ = batch()
    beam_search(model, source, lengths, max_lengths=lengths + 9)
    assert not calls
    beam_search(model, source, lengths, max_lengths=lengths + 9, beam=3)
    assert calls


def test_it_compiles_whole() -> None:
    model = build("rotary", encoder_layers=1, decoder_layers=1).eval()
    inputs = batch()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    torch.testing.assert_close(compiled(*batch(5, 6, 9)), model(*batch(5, 6, 9)))


@pytest.mark.parametrize("positions", ["learned", "t5"])
def test_it_exports_with_any_batch_and_any_lengths(positions: str) -> None:
    model = build(positions, encoder_layers=1, decoder_layers=1).eval()
    size, tk, tq = (torch.export.Dim(name, min=2, max=18) for name in ("size", "tk", "tq"))
    exported = torch.export.export(
        model, batch(), dynamic_shapes={"source": {0: size, 1: tk}, "lengths": {0: size}, "target": {0: size, 1: tq}}
    )
    for inputs in (batch(), batch(5, 6, 9)):
        torch.testing.assert_close(exported.module()(*inputs), model(*inputs))


@every_position
def test_it_runs_in_half_the_precision(positions: str) -> None:
    model = build(positions).eval()
    inputs = batch()
    expected = model(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(*inputs).float(), expected, rtol=0.1, atol=0.15)
        found = beam_search(model, *inputs[:2], max_lengths=inputs[1] + 2, beam=2, weights=True)
    assert all(hypothesis.weights.isfinite().all() for (hypothesis,) in found)
    torch.testing.assert_close(model.bfloat16()(*inputs).float(), expected, rtol=0.2, atol=0.3)


def test_the_output_is_the_target_embedding() -> None:
    model = build()
    assert not any("output" in name for name in model.state_dict())
    source, lengths, target = batch()
    model(source, lengths, target.fill_(BOS))[..., 7].sum().backward()  # 7 is nowhere read, and yet it learns
    assert model.target_embedding.weight.grad[7].any()


def shared(**options: object) -> TransformerSeq2Seq:
    torch.manual_seed(0)
    return TransformerSeq2Seq(
        TransformerConfig(13, 13, DIM, HEADS, HIDDEN, 1, 2, shared_embeddings=True, max_length=19, **options)
    )


@every_position
def test_shared_embeddings_are_one_matrix_in_three_places(positions: str) -> None:
    model = shared(positions=positions).eval()
    own = TransformerSeq2Seq(dataclasses.replace(model.config, shared_embeddings=False)).eval()
    own.load_state_dict(model.state_dict())
    inputs = batch()
    torch.testing.assert_close(model(*inputs), own(*inputs))
    saved = own.target_embedding.weight.numel()
    assert sum(p.numel() for p in own.parameters()) - sum(p.numel() for p in model.parameters()) == saved
    model(*inputs).square().sum().backward()
    own(*inputs).square().sum().backward()
    both = own.source_embedding.weight.grad + own.target_embedding.weight.grad
    torch.testing.assert_close(model.source_embedding.weight.grad, both)


def test_shared_embeddings_stay_one_when_copied_loaded_and_drawn_anew() -> None:
    model, other = shared(), shared()
    for made in (copy.deepcopy(model), other):
        made.load_state_dict(model.state_dict())
        made.reset_embeddings()
        assert made.source_embedding is made.target_embedding
        assert not made.source_embedding.weight[0].any()
        assert not torch.equal(made.source_embedding.weight, model.source_embedding.weight)


def test_shared_embeddings_need_one_vocabulary() -> None:
    with pytest.raises(ArgumentError, match=r"shared_embeddings: expected one vocabulary .*, got sizes 11 and 13$"):
        TransformerConfig(11, 13, shared_embeddings=True)


def test_scaled_embeddings_begin_with_unit_variance() -> None:
    torch.manual_seed(0)
    model = TransformerSeq2Seq(TransformerConfig(301, 401, 60, 4, 8, 1, 1))
    for embedding in (model.source_embedding, model.target_embedding):
        assert (math.sqrt(60) * embedding.weight[1:]).std().item() == pytest.approx(1, abs=0.03)


def test_one_table_of_t5_serves_all_layers_of_a_side() -> None:
    model = build("t5")
    tables = {name: parameter for name, parameter in model.named_parameters() if "positions" in name}
    assert list(tables) == [f"{side}.layers.0.self_attn.positions.weight" for side in ("encoder", "decoder")]
    other = copy.deepcopy(model).eval()
    other.load_state_dict(model.state_dict())
    assert other.encoder.layers[0].self_attn.positions is other.encoder.layers[1].self_attn.positions
    assert torch.equal(other(*batch()), model.eval()(*batch()))


@every_position
def test_tables_are_not_in_the_state_dict(positions: str) -> None:
    model = build(positions)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dim", 0),
        ("heads", 0),
        ("heads", 5),
        ("feedforward", 0),
        ("source_size", 0),
        ("target_size", 0),
        ("encoder_layers", 0),
        ("decoder_layers", -1),
        ("max_length", 0),
        ("positions", "absolute"),
        ("dropout", 1.0),
        ("dropout", math.nan),
    ],
)
def test_a_wrong_config_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=rf"{option}: expected .*, got '?{value}'?$"):
        TransformerConfig(**{"source_size": 11, "target_size": 13, option: value})


def test_rotary_needs_pairs() -> None:
    with pytest.raises(ArgumentError, match=r"heads: expected an even dim / heads .*, got 4$"):
        TransformerConfig(11, 13, dim=12, heads=4, positions="rotary")


def test_a_config_for_data_reaches_as_far_as_the_texts() -> None:
    config = TransformerConfig.for_data(11, 13, 19, dim=12, heads=2, positions="learned")
    assert config == TransformerConfig(11, 13, 12, 2, positions="learned", max_length=19)
    assert config.build().config is config


def test_config_survives_a_round_trip() -> None:
    for positions, norm_first in itertools.product(POSITIONS, [True, False]):
        config = TransformerConfig(11, 13, norm_first=norm_first, positions=positions)
        assert TransformerConfig(**dataclasses.asdict(config)) == config


@pytest.mark.parametrize("lengths", [[3, 0], [3, 4], [3], [[3, 2]]])
def test_wrong_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ArgumentError, match="lengths"):
        build().encode(torch.full((2, 3), 5), torch.tensor(lengths))
