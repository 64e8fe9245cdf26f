"""Tagging as a task: reading, ids and batches, a model that learns what suffixes tell, predictions in order."""

from __future__ import annotations

import io
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from regard._symbols import EOS, PAD, UNK
from regard.data import TaggedSentence, TaggedSentences, conllu, read_tagged
from regard.errors import ArgumentError, DataError, RunError
from regard.tasks import TagRun, tag
from regard.training import TrainingSettings, fit, record_provenance
from small_runs import silent

SIZES: dict[str, dict[str, Any]] = {
    "recurrent": {"hidden_dim": 26},
    "transformer": {"encoder": "transformer", "hidden_dim": 24, "heads": 3},
}
every_encoder = pytest.mark.parametrize("encoder", SIZES)


def sentences(number: int, seed: int) -> list[TaggedSentence]:
    """Words that nobody has seen, whose ends tell the tag; "so" has the tag of the others, wherever it stands."""
    drawn = random.Random(seed)
    examples = []
    for _ in range(number):
        suffix, label = drawn.choice([("ing", "VERB"), ("ness", "NOUN"), ("ly", "ADV")])
        words = ["".join(drawn.choices("abdeort", k=drawn.randint(2, 4))) + suffix for _ in range(drawn.randint(1, 4))]
        words.insert(drawn.randint(0, len(words)), "so")
        examples.append(TaggedSentence(tuple(words), (label,) * len(words)))
    return examples


def new(examples: list[TaggedSentence], encoder: str = "recurrent", **options: Any) -> TagRun:
    sizes = {"embed_dim": 11, "character_dim": 22, "dropout": 0.1, **SIZES[encoder], **options}
    return TagRun.new(TaggedSentences(examples, "made up"), **sizes)


@every_encoder
def test_what_suffixes_tell_is_learned(encoder: str, tmp_path: Path) -> None:
    train, dev = sentences(101, 0), sentences(41, 1)
    run = new(train, encoder, layers=1)
    settings = TrainingSettings(None, 20, 1e-2, 20, 100, label_smoothing=0.0, average=0.9, evaluations=4)
    record_provenance(run, train, settings, {})
    run.create(tmp_path)
    outcome = fit(run, train, dev, settings, tmp_path, console=silent())
    assert outcome.dev.values["accuracy"] == 1.0
    opened = TagRun.load(tmp_path)
    assert opened.score(dev).values == outcome.dev.values
    assert list(opened.predict(example.words for example in dev)) == [list(example.tags) for example in dev]


def test_a_run_is_written_and_opened(tmp_path: Path) -> None:
    run = new(sentences(20, 0))
    run.training = {"data": "made up"}
    run.create(tmp_path)
    run.save_weights(tmp_path)
    opened = TagRun.load(tmp_path)
    assert (opened.words, opened.characters, opened.labels) == (run.words, run.characters, ("ADV", "NOUN", "VERB"))
    assert (opened.column, opened.training, opened.model.config) == ("upos", run.training, run.model.config)
    words = [example.words for example in sentences(7, 2)]
    assert list(opened.predict(words)) == list(run.predict(words))


def test_files_that_do_not_fit_each_other_are_a_damaged_run(tmp_path: Path) -> None:
    run = new(sentences(20, 0))
    run.create(tmp_path)
    run.save_weights(tmp_path)
    (tmp_path / "labels.json").write_text('["ADV", "NOUN"]')
    with pytest.raises(RunError, match=r"the sizes of the vocabularies differ from those in config.json"):
        TagRun.load(tmp_path)
    (tmp_path / "labels.json").write_text('["NOUN", "ADV", "VERB"]')
    with pytest.raises(RunError, match="sorted JSON list of distinct strings"):
        TagRun.load(tmp_path)


def test_reading_a_column(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    rows = ["1-2\tthem\t_\t_\t_\t_\t_\t_\t_\t_"]
    rows += [f"{i}\t{w}\t_\t{t}\tX\tNumber={w}\t_\t_\t_\t_" for i, (w, t) in enumerate(["aA", "bB", "cA"], 1)]
    path.write_text("\n".join([*rows, "", "# no words", "", *rows[1:3], ""]))
    split = read_tagged(path)
    assert split.examples == [TaggedSentence(("a", "b", "c"), ("A", "B", "A")), TaggedSentence(("a", "b"), ("A", "B"))]
    assert split.notes == [f"{path}: 2 sentences, 5 words, 2 tags (upos)"]
    assert read_tagged(path, "Number").examples[0].tags == ("a", "b", "c")
    assert read_tagged(path, "xpos").examples[0].tags == ("X", "X", "X")
    run = TagRun.new(split, column="Number", embed_dim=11, character_dim=22)
    assert run.read(str(path)).examples == read_tagged(path, "Number").examples
    with pytest.raises(DataError, match=r"a.conllu: expected tags in the column Case, found _ for every word; choose"):
        read_tagged(path, "Case")
    with pytest.raises(ArgumentError, match="expected a column: upos, xpos, or the name of a feature"):
        read_tagged(path, "deprel")
    path.write_text("# nothing\n\n")
    with pytest.raises(DataError, match=r"a.conllu: expected words, CoNLL-U or WORD TAB TAG, found none; check the"):
        read_tagged(path)


def test_ids_of_words_in_lower_case_and_of_characters_as_they_are() -> None:
    run = new([TaggedSentence(("The", "the", "The", "Car"), ("B", "B", "B", "A"))])
    assert run.words.units == ("the",)  # a word seen once is unknown, so that the unknown word is learned
    assert run.characters.units == ("T", "e", "h")
    (sentence,) = run.encode([TaggedSentence(("THE", "car"), ("B", "?"))])
    assert sentence.words == (4, UNK)
    assert sentence.characters == (4, UNK, UNK, EOS, UNK, UNK, UNK, EOS)
    assert sentence.labels == (1, -1)
    assert run.lengths([sentence]) == ([2], [0])


def test_a_batch_has_each_form_once() -> None:
    run = new([TaggedSentence(("aa", "ab", "aa"), ("X", "Y", "X"))] * 2)
    batch = run.collate(
        run.encode([TaggedSentence(("ab",), ("Y",)), TaggedSentence(("aa", "ab", "aa"), ("X", "Y", "X"))])
    )
    assert batch.words.words.tolist() == [[5, PAD, PAD], [4, 5, 4]]
    assert batch.words.lengths.tolist() == [1, 3]
    assert batch.words.forms.tolist() == [[0, 0, 0], [1, 0, 1]]
    assert batch.words.characters.tolist() == [[4, 5, EOS], [4, 4, EOS]]
    assert batch.words.character_lengths.tolist() == [3, 3]
    assert batch.labels.tolist() == [[1, -1, -1], [0, 1, 0]]


def test_a_long_word_is_spelt_by_its_ends() -> None:
    run = new([TaggedSentence(("abcdefghijklmnopqrstuvwxyz0123456789",), ("X",))] * 2)
    (sentence,) = run.encode([TaggedSentence(("abcdefghijklmno" + "?" * 1000 + "vwxyz0123456789",), ("X",))])
    assert sentence.characters == (*run.characters.encode("abcdefghijklmnovwxyz0123456789"), EOS)


def test_the_loss_is_the_sum_over_words_that_have_a_label() -> None:
    run = new([TaggedSentence(("aa", "ab", "aa"), ("X", "Y", "X"))] * 2)
    run.model.eval()
    one, other = run.encode([TaggedSentence(("ab",), ("Y",)), TaggedSentence(("aa", "ab", "aa"), ("X", "Y", "X"))])
    for smoothing in (0.0, 0.3):
        (loss, targets), *single = (run.loss(run.collate(batch), smoothing) for batch in ([one, other], [one], [other]))
        assert [targets, *(n for _, n in single)] == [4, 1, 3]
        torch.testing.assert_close(loss, single[0][0] + single[1][0])
    logits = run.model(run.collate([one]).words)
    assert run.loss(run.collate([one]), 0.0)[0].item() == pytest.approx(-logits.log_softmax(-1)[0, 0, 1].item())


def test_long_sentences_are_tagged_in_pieces_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    run = new(sentences(20, 0))
    words = [example.words for example in sentences(31, 3)]
    whole = list(run.predict(words))
    monkeypatch.setattr(tag, "_LONGEST", 2)
    pieces = [w[i : i + 2] for w in words for i in range(0, len(w), 2)]
    one_by_one = iter(list(run.predict(pieces)))
    expected = [list(itertools.chain(*itertools.islice(one_by_one, -(-len(w) // 2)))) for w in words]
    mixed = [*words[:11], (), *words[11:]]
    assert list(run.predict(mixed)) == [*expected[:11], [], *expected[11:]]
    assert [len(tags) for tags in whole] == [len(tags) for tags in expected]
    encoded = run.encode([TaggedSentence(w, tuple(t)) for w, t in zip(words, whole, strict=True)])
    assert [len(sentence.words) for sentence in encoded] == [len(piece) for piece in pieces]


@every_encoder
def test_company_makes_no_difference(encoder: str) -> None:
    run = new(sentences(20, 0), encoder)
    words = [example.words for example in sentences(31, 3)]
    assert list(run.predict(words)) == [tags for one in words for tags in run.predict([one])]


def test_sentences_are_read_as_they_are_needed() -> None:
    run = new(sentences(20, 0))
    read = 0

    def endless() -> Iterator[Sequence[str]]:
        nonlocal read
        while True:
            read += 1
            yield ("so", f"w{read % 7}ly")

    predictions = run.predict(endless())
    assert len(next(predictions)) == 2
    assert read < 5000


def test_looking_at_a_transformer() -> None:
    run = new(sentences(20, 0), "transformer")
    words = ("so", "bing", "adly")
    tags, weights = run.predict_with_weights(words)
    assert [tags] == list(run.predict([words]))
    assert weights.shape == (2, 3, 3, 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 3))
    with pytest.raises(ArgumentError, match="a sentence of 1 to 512 words, got 0"):
        run.predict_with_weights([])
    with pytest.raises(ArgumentError, match="observe: expected an encoder with attention"):
        new(sentences(20, 0)).predict_with_weights(words)


def test_a_file_is_tagged_as_it_streams_through(tmp_path: Path) -> None:
    run = new(sentences(20, 0))
    path = tmp_path / "bare.txt"
    path.write_text("so\nbing\n\n\n# end\nbadly")
    written = list(run.tag(conllu.read(path)))
    (first, second) = run.predict([("so", "bing"), ("badly",)])
    assert written == [f"so\t{first[0]}", f"bing\t{first[1]}", "", "", "# end", f"badly\t{second[0]}"]


def test_standard_input_without_words_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(DataError, match="<stdin>: expected words"):
        read_tagged("-")
