"""Cases from public bug reports that classification meets, by id."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.data import LabelledText, LabelledTexts
from regard.functional import Observe
from regard.models.classifier import Classifier, ClassifierConfig, TextBatch
from regard.tasks import ClassifyRun

TEXTS = {1: [4], 3: [4, 5, 6], 5: [7, 8, 9, 4, 4], 7: [5, 6, 7, 8, 9, 10, 4]}
SPELT = {4: [7], 5: [4, 5, 6], 6: [5, 5], 7: [12, 11, 10, 9, 8], 8: [4], 9: [6, 5, 4, 7], 10: [9, 9, 9]}
SMALL = {"heads": 3, "gram_size": 13, "pair_size": 17}
CONFIGS = {
    "none": ClassifierConfig(11, 5, "none", 9, **SMALL),
    "recurrent": ClassifierConfig(11, 5, "recurrent", 7, 6, 2, **SMALL),
    "transformer": ClassifierConfig(11, 5, "transformer", 7, 12, 2, **SMALL),
}
every_encoder = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
WEIGHTS = Observe(weights=True)


def new(config: ClassifierConfig) -> Classifier:
    torch.manual_seed(0)
    return Classifier(config).eval().double()


def together(lengths: tuple[int, ...], junk: int = 10) -> TextBatch:
    """Texts side by side; what lies behind one is no padding symbol: nobody may read it."""
    longest = max(lengths)
    words = [TEXTS[n] + [junk] * (longest - n) for n in lengths]
    rows = sorted({word for text in words for word in text})
    size = max(len(SPELT[word]) for word in rows)
    return TextBatch(
        torch.tensor(words),
        torch.tensor(lengths),
        torch.tensor([[rows.index(word) for word in text] for text in words]),
        torch.tensor([SPELT[word] + [0] * (size - len(SPELT[word])) for word in rows]),
    )


@every_encoder
@pytest.mark.parametrize("order", list(itertools.permutations(TEXTS))[::5])
def test_r1_a_text_alone_equals_it_beside_longer_ones(order: tuple[int, ...], config: ClassifierConfig) -> None:
    model = new(config)
    logits, seen = model(together(order), observe=WEIGHTS)
    for row, length in enumerate(order):
        alone, looked = model(together((length,)), observe=WEIGHTS)
        torch.testing.assert_close(logits[row], alone[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(seen.weights[row, ..., :length], looked.weights[0], rtol=0, atol=1e-6)
        assert not seen.weights[row, ..., length:].any()


@every_encoder
def test_r1_padding_has_no_gradient(config: ClassifierConfig) -> None:
    model = new(config)
    model(together((3, 7)))[0].square().sum().backward()
    padded = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model(together((3,)))[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(padded[name], parameter.grad)


def texts(*labels: str, name: str = "train") -> LabelledTexts:
    return LabelledTexts([LabelledText(("a", "text"), label) for label in labels], "words", ("text", "label"), name)


def test_x4_labels_are_sorted_and_saved(tmp_path: Path) -> None:
    run = ClassifyRun.new(texts("b", "ä", "a", "B", "b"), embed_dim=9, max_length=9, **SMALL)
    run.create(tmp_path)
    assert json.loads((tmp_path / "labels.json").read_text(encoding="utf-8")) == ["B", "a", "b", "ä"]
    assert ClassifyRun.load(tmp_path, trained=False).labels == run.labels == ("B", "a", "b", "ä")


def test_x4_a_label_seen_only_in_dev_counts_as_an_error_with_one_warning() -> None:
    train, dev = texts("x", "y"), texts("x", "z", "y", "w", "z", name="dev.tsv")
    run = ClassifyRun.new(train, embed_dim=9, max_length=9, **SMALL)
    with torch.no_grad():
        run.model.output.weight.zero_()
        run.model.output.bias.copy_(torch.tensor([1.0, 0.0]))  # x, whatever comes
    assert run.unseen_notes(dev.examples) == ["2 labels that did not occur in training, counted as errors: w, z"]
    assert run.unseen_notes(train.examples) == []
    assert run.score(dev.examples).values["accuracy"] == 1 / 5
    assert run.score(train.examples).values["accuracy"] == 1 / 2


def test_x4_a_label_that_training_never_saw_is_no_target() -> None:
    run = ClassifyRun.new(texts("x", "y"), embed_dim=9, max_length=9, **SMALL)
    run.model.eval()
    known, both = (run.collate(run.encode(texts(*labels).examples)) for labels in (["x"], ["x", "z"]))
    (one, n), (other, m) = run.loss(known, 0.1), run.loss(both, 0.1)
    assert (n, m) == (1, 1)
    torch.testing.assert_close(one, other)


# What a run derives from its data: vocabulary, labels, ids, a batch and its loss, as JSON in ASCII.
DERIVED = """
import json, sys
from regard.tasks import ClassifyRun
from regard.data import read_labelled
split = read_labelled(sys.argv[1])
run = ClassifyRun.new(split, embed_dim=8, max_length=9, seed=3)
encoded = run.encode(split.examples)
batch = run.collate(encoded)
loss, _ = run.loss(batch, 0.1)
tensors = [tensor.tolist() for tensor in (*batch.texts, batch.labels)]
print(json.dumps([split.notes, run.files(), encoded, tensors, loss.item()]))
"""


def test_x4_ids_batches_and_losses_are_the_same_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("".join(f"w{n % 17} Über{n}\tL{n % 7}\n" for n in range(90)), encoding="utf-8")
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DERIVED, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "20")
    ]
    assert outputs[0] == outputs[1]
    assert json.loads(json.loads(outputs[0])[1]["labels.json"]) == [f"L{n}" for n in range(7)]
