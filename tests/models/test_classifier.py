"""The classifier as a model: its formula, its options, its weights on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard._symbols import BOS, PAD, UNK
from regard.errors import ArgumentError
from regard.functional import Observe
from regard.models.classifier import Classifier, ClassifierConfig, TextBatch

WORDS, LABELS, EMBED, HEADS, GRAMS, PAIRS = 11, 5, 9, 3, 13, 17
ENCODERS = ["none", "recurrent", "transformer"]
every_encoder = pytest.mark.parametrize("encoder", ENCODERS)
BATCH = TextBatch(
    torch.tensor([[4, 5, 1, 6, 4, 10, 7], [8, 9, 0, 0, 0, 0, 0]]),
    torch.tensor([7, 2]),
    torch.tensor([[0, 1, 2, 3, 0, 4, 5], [1, 3, 0, 0, 0, 0, 0]]),
    torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 0], [12, 0, 0], [7, 7, 8], [0, 0, 0]]),
)


def new(encoder: str = "none", **options: object) -> Classifier:
    torch.manual_seed(0)
    sizes = {"embed_dim": EMBED, "hidden_dim": 12, "heads": HEADS, "gram_size": GRAMS, "pair_size": PAIRS, **options}
    return Classifier(ClassifierConfig(WORDS, LABELS, encoder, **sizes))


def test_without_an_encoder_it_is_its_formula() -> None:
    model = new().eval()
    logits, seen = model(BATCH, observe=Observe(weights=True))
    for row, length in enumerate(BATCH.lengths):
        states = []
        for t in range(length):
            word, before = int(BATCH.words[row, t]), int(BATCH.words[row, t - 1]) if t else BOS
            grams = [g for g in BATCH.grams[BATCH.forms[row, t]].tolist() if g]
            spelt = sum((model.grams.weight[g] for g in grams), torch.zeros(EMBED)) / max(1, len(grams)) ** 0.5
            pair = model.pairs.weight[(before * 1_000_003 + word * 7_919) % PAIRS]
            states.append(model.embedding.weight[word] + spelt + pair)
        share = EMBED // HEADS
        pooled = torch.cat(
            [
                seen.weights[row, head, 0, :length] @ torch.stack(states)[:, head * share : (head + 1) * share]
                for head in range(HEADS)
            ]
        )
        torch.testing.assert_close(logits[row], model.output(pooled))


@every_encoder
def test_law_1_asking_changes_nothing(encoder: str) -> None:
    model = new(encoder).eval()
    logits, seen = model(BATCH, observe=Observe(weights=True, entropy=True))
    assert torch.equal(model(BATCH), logits)
    assert logits.shape == (2, LABELS)
    assert seen.weights.shape == (2, HEADS, 1, 7)
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(2, HEADS, 1))


@every_encoder
def test_gradients_reach_every_parameter(encoder: str) -> None:
    model = new(encoder, dropout=0.0, word_dropout=0.0)
    torch.nn.functional.cross_entropy(model(BATCH), torch.tensor([1, 3])).backward()
    for name, parameter in model.named_parameters():
        if name != "encoder.layers.0.self_attn.k_proj.bias":  # the same for all keys, which softmax does not see
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name


@every_encoder
def test_dropout_falls_in_training_alone(encoder: str) -> None:
    model = new(encoder)
    assert not torch.equal(model(BATCH), model(BATCH))
    model.eval()
    assert torch.equal(model(BATCH), model(BATCH))
    plain = new(encoder, dropout=0.0, word_dropout=0.0)
    torch.testing.assert_close(plain(BATCH), plain.eval()(BATCH))


def test_a_hidden_word_is_an_unknown_one_without_letters() -> None:
    model = new(word_dropout=0.999999, dropout=0.0)
    unknown = BATCH._replace(
        words=torch.where(BATCH.words != PAD, UNK, PAD),
        forms=torch.zeros_like(BATCH.forms),
        grams=torch.zeros(1, 1).long(),
    )
    torch.testing.assert_close(model(BATCH), model.eval()(unknown))


def test_embeddings_of_padding_are_zero_and_stay_so() -> None:
    model = new()
    model(BATCH).square().sum().backward()
    for table in (model.embedding, model.grams):
        assert not table.weight[PAD].any()
        assert not table.weight.grad[PAD].any()


@every_encoder
def test_it_comes_back_from_disk(encoder: str, tmp_path: Path) -> None:
    model = new(encoder).eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(Classifier.from_pretrained(tmp_path)(BATCH), model(BATCH))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 0}, "embed_dim: expected a number of at least 1, got 0"),
        ({"heads": 2}, r"heads: expected a divisor of the size of states \(9\), got 2"),
        (
            {"encoder": "recurrent", "hidden_dim": 7},
            "hidden_dim: expected an even number, half for each direction, got 7",
        ),
        ({"encoder": "cnn"}, "encoder: expected 'none', 'recurrent' or 'transformer', got 'cnn'"),
        ({"dropout": 1.0}, "dropout: expected a number of at least 0 and below 1, got 1.0"),
        ({"word_dropout": -0.1}, "word_dropout: expected a number of at least 0 and below 1, got -0.1"),
        ({"pair_size": 1}, "pair_size: expected a number of at least 2, got 1"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        new(**options)


def test_lengths_are_checked() -> None:
    with pytest.raises(ArgumentError, match="expected 2 lengths from 1 to 7"):
        new()(BATCH._replace(lengths=torch.tensor([7, 0])))


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0)])
def test_sizes_are_known_when_a_config_is_made(sizes: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="_size: expected a number of at least 1, got 0"):
        ClassifierConfig(*sizes)
