"""Cases from public bug reports that tagging meets, by id."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import conllu
import pytest
import torch

from regard.data import TaggedSentence, TaggedSentences
from regard.data.conllu import read
from regard.errors import DataError
from regard.models.tagger import Tagger, TaggerConfig, WordBatch
from regard.tasks import TagRun

WORDS, CHARACTERS, LABELS = 11, 13, 5
SENTENCES = {3: [4, 5, 6], 5: [7, 8, 9, 4, 4], 7: [5, 6, 7, 8, 9, 10, 4]}
SPELT = {4: [7], 5: [4, 5, 6], 6: [5, 5], 7: [12, 11, 10, 9, 8], 8: [4], 9: [6, 5, 4, 7], 10: [9, 9, 9]}
SIZES = (WORDS, CHARACTERS, LABELS)
SMALL = {"embed_dim": 5, "character_dim": 4, "hidden_dim": 6}
CONFIGS = {
    "recurrent": TaggerConfig(*SIZES, **SMALL),
    "transformer": TaggerConfig(*SIZES, "transformer", embed_dim=5, character_dim=4, hidden_dim=12, heads=3),
}
every_encoder = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def new(config: TaggerConfig) -> Tagger:
    torch.manual_seed(0)
    return Tagger(config).eval().double()


def together(lengths: tuple[int, ...], junk: int = 10) -> WordBatch:
    """Sentences side by side; what lies behind a word or a sentence is no padding symbol: nobody may read it."""
    longest = max(lengths)
    words = [SENTENCES[n] + [junk] * (longest - n) for n in lengths]
    rows = sorted({word for sentence in words for word in sentence})
    size = max(len(SPELT[word]) for word in rows)
    return WordBatch(
        torch.tensor(words),
        torch.tensor(lengths),
        torch.tensor([[rows.index(word) for word in sentence] for sentence in words]),
        torch.tensor([SPELT[word] + [junk] * (size - len(SPELT[word])) for word in rows]),
        torch.tensor([len(SPELT[word]) for word in rows]),
    )


@every_encoder
@pytest.mark.parametrize("order", list(itertools.permutations(SENTENCES)))
def test_r1_a_sentence_alone_equals_it_beside_longer_ones(order: tuple[int, ...], config: TaggerConfig) -> None:
    model = new(config)
    logits = model(together(order))
    for row, length in enumerate(order):
        torch.testing.assert_close(logits[row, :length], model(together((length,)))[0], rtol=0, atol=1e-6)


@every_encoder
def test_r1_padding_has_no_gradient(config: TaggerConfig) -> None:
    model = new(config)
    model(together((3, 7)))[0, :3].square().sum().backward()
    padded = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model(together((3,)))[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(padded[name], parameter.grad)


X3 = (
    "# sent_id = 1\n# text = Vámonos 10\u00a0000\n"
    "1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tVamos\tir\tVERB\tV\tNumber=Plur\t0\troot\t0:root\t_\n"
    "2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t1:obj\t_\n"
    "3\t10\u00a0000\t10\u00a0000\tNUM\tN\t_\t1\tobj\t1:obj\t_\n"
    "3.1\tvamos\tir\tVERB\tV\t_\t_\t_\t1:conj\tCopyOf=1"
)


def test_x3_words_only_are_tagged_and_all_else_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x3.conllu"
    path.write_text(X3, encoding="utf-8")  # and no blank line at the end
    (sentence,) = read(path)
    assert sentence.words == ("Vamos", "nos", "10\u00a0000")
    assert "\n".join(sentence.tagged(["VERB", "PRON", "NUM"], "upos")) == X3
    written = "\n".join(sentence.tagged(["A", "B", "C"], "upos"))
    assert written == X3.replace("VERB", "A", 1).replace("PRON", "B").replace("NUM", "C")
    assert len(conllu.parse(written)[0]) == 5


def test_x3_a_fault_has_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x3.conllu"
    path.write_text(X3.replace("2\tnos\t", "2 nos "), encoding="utf-8")
    with pytest.raises(DataError, match=r"x3.conllu:5: expected 10 columns between TABs, found 8 in .*; separate"):
        list(read(path))


def test_x4_a_tag_seen_only_in_dev_counts_as_an_error_with_one_warning() -> None:
    train = TaggedSentences([TaggedSentence(("a", "dog"), ("DET", "NOUN"))] * 2, "train")
    dev = TaggedSentences([TaggedSentence(("a", "dog"), ("DET", "PROPN")), TaggedSentence(("a",), ("SYM",))] * 2, "dev")
    run = TagRun.new(train, **SMALL)
    with torch.no_grad():
        run.model.output.weight.zero_()
        run.model.output.bias.copy_(torch.tensor([1.0, 0.0]))  # DET, whatever comes
    assert run.unseen_notes(dev.examples) == ["2 tags that did not occur in training, counted as errors: PROPN, SYM"]
    assert run.unseen_notes(train.examples) == []
    assert run.score(dev.examples).values["accuracy"] == 2 / 6
    assert run.score(train.examples).values["accuracy"] == 0.5


def test_x4_a_tag_that_training_never_saw_is_no_target() -> None:
    run = TagRun.new(TaggedSentences([TaggedSentence(("a", "dog"), ("DET", "NOUN"))], ""), **SMALL)
    run.model.eval()
    known, other = (run.collate(run.encode([TaggedSentence(("a", "dog"), ("DET", tag))])) for tag in ("NOUN", "X"))
    assert (run.loss(known, 0.0)[1], run.loss(other, 0.0)[1]) == (2, 1)
    assert run.loss(other, 0.0)[0] < run.loss(known, 0.0)[0]


# What a run derives from its data: vocabularies, labels, ids and a batch, as JSON in ASCII.
DERIVED = """
import json, sys
from regard.data import read_tagged
from regard.tasks import TagRun
split = read_tagged(sys.argv[1])
run = TagRun.new(split, seed=3, embed_dim=5, character_dim=4, hidden_dim=6)
encoded = run.encode(split.examples)
batch = run.collate(encoded)
loss, _ = run.loss(batch, 0.1)
tensors = [tensor.tolist() for tensor in (*batch.words, batch.labels)]
print(json.dumps([split.notes, run.files(), encoded, tensors, float(loss)]))
"""


def test_x4_ids_batches_and_losses_are_the_same_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("".join(f"w{n % 17}{chr(97 + n % 26)}\tT{n % 7}\n" + "\n" * (n % 5 == 0) for n in range(90)))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DERIVED, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "20")
    ]
    assert outputs[0] == outputs[1]
    assert json.loads(json.loads(outputs[0])[1]["labels.json"]) == [f"T{n}" for n in range(7)]
