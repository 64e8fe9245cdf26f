"""Classification as a task: ids and batches, a model that finds the word that decides, answers in order."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard._symbols import UNK
from regard.data import LabelledText, LabelledTexts
from regard.errors import DataError, RunError
from regard.tasks import ClassifyRun, classify
from regard.tasks.classify import word_features
from regard.training import TrainingSettings, fit, record_provenance
from small_runs import silent

DECIDING = {"lovely": "good", "fine": "good", "dreary": "bad", "dull": "bad", "odd": "so-so"}
ENCODERS = {
    "none": {},
    "recurrent": {"encoder": "recurrent", "hidden_dim": 10},
    "transformer": {"encoder": "transformer", "hidden_dim": 10},
}


def films(count: int, seed: int) -> list[LabelledText]:
    """Texts in which one word decides."""
    drawn = random.Random(seed)
    examples = []
    for _ in range(count):
        words = drawn.choices(["the", "film", "was", "a", "story", "of", "it", "and"], k=drawn.randint(2, 9))
        deciding = drawn.choice(sorted(DECIDING))
        words.insert(drawn.randrange(len(words) + 1), deciding)
        examples.append(LabelledText(tuple(words), DECIDING[deciding]))
    return examples


def split(examples: list[LabelledText], **options: object) -> LabelledTexts:
    return LabelledTexts(examples, **{"units": "words", "columns": ("text", "label"), "name": "films", **options})


def new(examples: list[LabelledText], **options: object) -> ClassifyRun:
    sizes = {"embed_dim": 14, "heads": 2, "dropout": 0.1, "word_dropout": 0.0, "gram_size": 101, "pair_size": 103}
    return ClassifyRun.new(split(examples), max_length=11, **{**sizes, **options})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ClassifyRun:
    directory, train = tmp_path_factory.mktemp("films"), films(150, 0)
    run = new(train)
    settings = TrainingSettings(epochs=8, learning_rate=0.02, warmup=10, batch_tokens=100, average=0.9, evaluations=2)
    record_provenance(run, train, settings, {})
    run.create(directory)
    fit(run, train, films(40, 1), settings, directory, console=silent())
    return ClassifyRun.load(directory)


def test_the_word_that_decides_is_found(trained: ClassifyRun) -> None:
    test = films(60, 2)
    assert trained.score(test).values["accuracy"] == 1.0
    for example, answer in zip(test, trained.predict_units((e.text for e in test), weights=True), strict=True):
        (place,) = [i for i, word in enumerate(answer.units) if word in DECIDING]
        assert answer.label == example.label
        assert answer.weights.mean(0).argmax() == place
        assert answer.weights.mean(0)[place] > 2 / len(answer.units)


@pytest.mark.parametrize("encoder", ["recurrent", "transformer"])
def test_encoders_learn_too(encoder: str, tmp_path: Path) -> None:
    train = films(100, 0)
    run = new(train, **ENCODERS[encoder])
    run.create(tmp_path)
    settings = TrainingSettings(epochs=16, learning_rate=0.02, warmup=10, batch_tokens=100, average=0.9, evaluations=1)
    outcome = fit(run, train, films(40, 1), settings, tmp_path, console=silent())
    assert outcome.dev.values["accuracy"] > 0.95


def test_probabilities_are_of_all_labels_and_the_label_has_the_largest(trained: ClassifyRun) -> None:
    for answer in trained.predict(["a lovely film", "dull", "nothing of it"]):
        assert list(answer.probabilities) == ["bad", "good", "so-so"]
        assert sum(answer.probabilities.values()) == pytest.approx(1)
        assert answer.probabilities[answer.label] == max(answer.probabilities.values())
        assert answer.weights is None


def test_answers_come_in_order_and_alone_as_together(trained: ClassifyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(example.text) for example in films(29, 3)]
    texts[7:7] = ["", "   "]
    expected = [next(trained.predict([text], weights=True)) for text in texts]
    monkeypatch.setattr(classify, "_BATCH_UNITS", 31)
    for answer, alone in zip(trained.predict(texts, weights=True), expected, strict=True):
        assert (answer.units, answer.label) == (alone.units, alone.label)
        assert answer.probabilities == pytest.approx(alone.probabilities, abs=1e-6)
        if answer.units:
            torch.testing.assert_close(answer.weights, alone.weights, rtol=0, atol=1e-6)
    assert [answer.label for answer in expected[7:9]] == ["", ""]


def test_texts_are_read_as_they_are_needed(trained: ClassifyRun) -> None:
    def endless() -> Iterator[str]:
        for number in itertools.count():
            if number > 5000:
                raise AssertionError("read too far")
            yield "a fine film"

    assert [answer.label for answer in itertools.islice(trained.predict(endless()), 3)] == ["good"] * 3


def test_what_is_odd_of_a_text_is_told(trained: ClassifyRun) -> None:
    plain, unseen, long = trained.predict(["A film!", "a zzz qqq lovely film", "a " * 12 + "lovely"])
    assert plain.units == ["A", "film", "!"]
    assert (plain.unseen, plain.cut) == (["!"], False)
    assert (unseen.unseen, unseen.label) == (["zzz", "qqq"], "good")
    assert (len(long.units), long.cut) == (11, True)


def test_ids_and_batches() -> None:
    run = new(films(30, 0))
    first, second = run.encode([LabelledText(("A", "zzz", "a"), "bad"), LabelledText(("film",), "none")])
    assert first.words[1] == UNK
    assert first.words[0] == first.words[2]  # in lower case
    assert (first.label, second.label) == (0, -1)
    assert run.lengths([first, second]) == ([3, 1], [0, 0])
    batch = run.collate([first, second])
    assert batch.texts.words.tolist() == [list(first.words), [*second.words, 0, 0]]
    assert (batch.texts.lengths.tolist(), batch.labels.tolist()) == ([3, 1], [0, -1])
    spelt = [[g for g in batch.texts.grams[form].tolist() if g] for form in batch.texts.forms[0]]
    assert spelt == [list(word_features(unit, 101)) for unit in ("A", "zzz", "a")]
    assert len(batch.texts.grams) == 4  # each form once, and two of "a"


def test_spellings_are_ids_of_the_table() -> None:
    for unit in ("a", "é", "猫", "x" * 1000, "\ud800", "İ"):
        ids = word_features(unit, 7)
        assert 2 <= len(ids) <= 41
        assert set(ids) <= set(range(1, 7))


def test_a_run_comes_back_as_it_was(trained: ClassifyRun, tmp_path: Path) -> None:
    trained.create(tmp_path)
    trained.save_weights(tmp_path)
    again = ClassifyRun.load(tmp_path)
    assert (again.labels, again.units, again.columns, again.max_length, again.training) == (
        trained.labels,
        trained.units,
        trained.columns,
        trained.max_length,
        trained.training,
    )
    answers = [list(run.predict(["a lovely film", "it was dull"])) for run in (trained, again)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", lambda config: config["model"].update(kind="tagger"), "expected the kind classifier"),
        (
            "config.json",
            lambda config: config["model"].update(word_size=5),
            "sizes of the vocabularies differ from those in config.json",
        ),
        ("config.json", lambda config: config.update(units="lines"), "expected units words or chars"),
        ("config.json", lambda config: config.update(max_length=0), "max_length above 0"),
        ("labels.json", lambda labels: labels.pop(), "sizes of the vocabularies differ from those in config.json"),
        ("labels.json", lambda labels: labels.reverse(), "sorted JSON list"),
    ],
)
def test_a_damaged_run_is_refused(trained: ClassifyRun, name: str, change, message: str, tmp_path: Path) -> None:
    trained.create(tmp_path)
    trained.save_weights(tmp_path)
    content = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    change(content)
    (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RunError, match=message):
        ClassifyRun.load(tmp_path)


def test_one_label_is_none() -> None:
    with pytest.raises(
        DataError, match=r"^films: expected at least two labels, found only 'good'; add texts with another label"
    ):
        new([LabelledText(("a",), "good")] * 3)


def test_texts_of_characters(tmp_path: Path) -> None:
    texts = split([LabelledText(tuple("很好看"), "good"), LabelledText(tuple("不好看"), "bad")], units="chars")
    run = ClassifyRun.new(texts, max_length=9, embed_dim=8)
    (answer,) = run.predict(["好  看"])
    assert answer.units == ["好", " ", "看"]
