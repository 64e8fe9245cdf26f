"""Tagger: the recurrence worked out again step by step, what training hides, what is seen beside the labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard._symbols import PAD, UNK
from regard.errors import ArgumentError
from regard.functional import Observe
from regard.models.tagger import Tagger, TaggerConfig, WordBatch

B, T, FORMS, C = 3, 7, 11, 5
WORDS, CHARACTERS, LABELS = 13, 17, 19
LENGTHS = torch.tensor([T, 3, 5])
CONFIGS = {
    "recurrent": TaggerConfig(WORDS, CHARACTERS, LABELS, embed_dim=5, character_dim=8, hidden_dim=6),
    "transformer": TaggerConfig(
        WORDS, CHARACTERS, LABELS, "transformer", embed_dim=5, character_dim=8, hidden_dim=12, heads=3
    ),
}
every_encoder = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def build(config: TaggerConfig, **options: object) -> Tagger:
    torch.manual_seed(0)
    return Tagger(replace(config, **options))


def batch() -> WordBatch:
    torch.manual_seed(1)
    words = torch.randint(4, WORDS, (B, T)).masked_fill(torch.arange(T) >= LENGTHS[:, None], PAD)
    lengths = torch.randint(1, C + 1, (FORMS,))
    characters = torch.randint(4, CHARACTERS, (FORMS, C)).masked_fill(torch.arange(C) >= lengths[:, None], PAD)
    return WordBatch(words, LENGTHS, torch.randint(0, FORMS, (B, T)), characters, lengths)


@every_encoder
def test_shapes_and_a_gradient_for_every_parameter(config: TaggerConfig) -> None:
    model = build(config)
    logits = model(batch())
    assert logits.shape == (B, T, LABELS)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or name.endswith("W_k.bias"), name  # which softmax takes away again
    for embedding in (model.vectors.embedding, model.vectors.characters.embedding):
        assert not embedding.weight[PAD].any()
        assert not embedding.weight.grad[PAD].any()


def lstm(inputs: list[torch.Tensor], weights: dict[str, torch.Tensor], suffix: str) -> list[torch.Tensor]:
    """i, f, o = σ(W x + U h + b), g = tanh(…), c ← f c + i g, h ← o tanh(c), in the order i, f, g, o of torch."""
    hidden = memory = torch.zeros(weights[f"weight_hh_{suffix}"].shape[1], dtype=torch.float64)
    states = []
    for x in inputs:
        gates = weights[f"weight_ih_{suffix}"] @ x + weights[f"weight_hh_{suffix}"] @ hidden
        i, f, g, o = (gates + weights[f"bias_ih_{suffix}"] + weights[f"bias_hh_{suffix}"]).chunk(4)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * memory.tanh()
        states.append(hidden)
    return states


def both(inputs: list[torch.Tensor], weights: dict[str, torch.Tensor], layer: str) -> tuple[list[torch.Tensor], ...]:
    return lstm(inputs, weights, layer), lstm(inputs[::-1], weights, f"{layer}_reverse")[::-1]


def test_the_recurrent_tagger_is_its_formula() -> None:
    model = build(CONFIGS["recurrent"]).double().eval()
    given = batch()
    of_characters, of_words = ({**part.state_dict()} for part in (model.vectors.characters.recurrence, model.encoder))
    with torch.no_grad():
        logits = model(given)
        for row, length in enumerate(LENGTHS.tolist()):
            inputs = []
            for word, form in zip(given.words[row, :length], given.forms[row, :length], strict=True):
                spelt = list(
                    model.vectors.characters.embedding(given.characters[form, : given.character_lengths[form]])
                )
                right, left = both(spelt, of_characters, "l0")
                inputs.append(torch.cat((model.vectors.embedding(word), right[-1], left[0])))
            for layer in ("l0", "l1"):
                inputs = [torch.cat(pair) for pair in zip(*both(inputs, of_words, layer), strict=True)]
            torch.testing.assert_close(logits[row, :length], model.output(torch.stack(inputs)))


@every_encoder
def test_dropout_is_of_training_alone(config: TaggerConfig) -> None:
    model, given = build(config), batch()
    assert not torch.equal(model(given), model(given))
    model.eval()
    plain = build(config, dropout=0.0, word_dropout=0.0)
    assert torch.equal(model(given), model(given))
    assert torch.equal(model(given), plain(given))


@every_encoder
def test_word_dropout_hides_which_word_it_is_and_not_its_form(config: TaggerConfig) -> None:
    hiding = build(config, dropout=0.0, word_dropout=0.999999)
    plain = build(config, dropout=0.0, word_dropout=0.0)
    given = batch()
    unknown = torch.where(given.words == PAD, PAD, UNK)
    assert torch.equal(hiding(given), plain(given._replace(words=unknown)))
    other = given._replace(forms=(given.forms + 1) % FORMS)
    assert not torch.equal(hiding(other), hiding(given))


def test_word_dropout_hides_a_share_of_the_words() -> None:
    vectors = build(CONFIGS["recurrent"], word_dropout=0.3).vectors
    many = WordBatch(
        torch.full((1, 10_000), 5), torch.tensor([10_000]), torch.zeros(1, 10_000, dtype=torch.long),
        torch.tensor([[4]]), torch.tensor([1]),
    )  # fmt: skip
    hidden = (vectors(many)[0, :, :5] == vectors.embedding.weight[UNK]).all(-1)
    assert 0.27 < hidden.float().mean() < 0.33


@every_encoder
def test_a_form_may_stand_in_several_rows(config: TaggerConfig) -> None:
    model = build(config).eval()
    given = batch()
    one_each = given._replace(
        forms=torch.arange(B * T).view(B, T),
        characters=given.characters[given.forms.flatten()],
        character_lengths=given.character_lengths[given.forms.flatten()],
    )
    torch.testing.assert_close(model(one_each), model(given))


def test_observing_the_transformer_changes_nothing_and_tells_each_layer() -> None:
    model = build(CONFIGS["transformer"]).eval()
    logits, seen = model(batch(), observe=Observe(weights=True, entropy=True))
    assert torch.equal(logits, model(batch()))
    assert [layer.weights.shape for layer in seen] == [(B, 3, T, T)] * 2
    for row, length in enumerate(LENGTHS.tolist()):
        for layer in seen:
            assert not layer.weights[row, :, :, length:].any()
            torch.testing.assert_close(layer.weights[row, :, :length].sum(-1), torch.ones(3, length))


def test_a_recurrent_tagger_has_no_attention_to_observe() -> None:
    assert [config.attends for config in CONFIGS.values()] == [False, True]
    with pytest.raises(ArgumentError, match="observe: expected an encoder with attention, got a recurrent one"):
        build(CONFIGS["recurrent"])(batch(), observe=Observe(weights=True))


@every_encoder
def test_lengths_that_do_not_fit_are_refused(config: TaggerConfig) -> None:
    with pytest.raises(ArgumentError, match=rf"expected {B} lengths from 1 to {T}"):
        build(config)(batch()._replace(lengths=torch.tensor([T, 0, 1])))


@every_encoder
def test_a_tagger_is_saved_and_opened(config: TaggerConfig, tmp_path: Path) -> None:
    model = build(config).eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(Tagger.from_pretrained(tmp_path)(batch()), model(batch()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers: expected a number of at least 1, got 0"),
        ({"embed_dim": 0}, "embed_dim: expected a number of at least 1, got 0"),
        ({"hidden_dim": 7}, "hidden_dim: expected an even number, half for each direction, got 7"),
        ({"character_dim": 0}, "character_dim: expected an even number, half for each direction, got 0"),
        ({"dropout": 1.0}, "dropout: expected a number of at least 0 and below 1, got 1.0"),
        ({"word_dropout": -0.1}, "word_dropout: expected a number of at least 0 and below 1, got -0.1"),
        ({"encoder": "cnn"}, "encoder: expected 'recurrent' or 'transformer', got 'cnn'"),
        ({"encoder": "transformer", "heads": 3}, r"heads: expected a divisor of hidden_dim \(400\), got 3"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TaggerConfig(WORDS, CHARACTERS, LABELS, **options)


@pytest.mark.parametrize("sizes", [(0, 3, 3), (3, 0, 3), (3, 3, 0)])
def test_sizes_are_known_when_a_config_is_made(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ArgumentError, match="_size: expected a number of at least 1, got 0"):
        TaggerConfig(*sizes)
