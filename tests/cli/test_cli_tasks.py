"""Tagging and classification from the command line, from the guess of the task to the picture."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from regard.cli.tasks import TASK_MODULES, default_of
from regard.data import guess_task
from regard.models import ClassifierConfig, RecurrentConfig, TaggerConfig, TransformerConfig

pytest_plugins = ["command_fixtures"]

TINY = ["--embed-dim", "8", "--dropout", "0", "--word-dropout", "0", "--label-smoothing", "0", "--warmup", "5"]
SEPARATE = ["--lr", "0.02", "--batch-tokens", "60", "--epochs", "8"]
ENDINGS = {"ly": "ADV", "ed": "VERB", "s": "NOUN"}


def sentences(count: int = 40, seed: int = 0) -> list[list[tuple[str, str]]]:
    """Return sentences of made-up words whose endings determine their tags."""
    drawn = random.Random(seed)

    def word() -> tuple[str, str]:
        ending = drawn.choice(list(ENDINGS))
        return "".join(drawn.choice("bdgklmnprt") + drawn.choice("aeiou") for _ in range(2)) + ending, ENDINGS[ending]

    return [[word() for _ in range(drawn.randint(2, 5))] for _ in range(count)]


def conllu(path: Path, drawn: list[list[tuple[str, str]]]) -> Path:
    blocks = []
    for number, words in enumerate(drawn, 1):
        rows = [f"{i}\t{form}\t_\t{tag}\t{tag[:1]}\t_\t0\troot\t_\t_" for i, (form, tag) in enumerate(words, 1)]
        blocks.append("\n".join([f"# sent_id = {number}", *rows]))
    path.write_text("\n\n".join(blocks) + "\n\n", encoding="utf-8")
    return path


def films(path: Path, count: int = 60, seed: int = 0, as_json: bool = False) -> Path:
    """Write texts with labels that one word of each determines."""
    drawn = random.Random(seed)
    lines = []
    for i in range(count):
        label = ("good", "bad")[i % 2]
        words = [drawn.choice(["the", "film", "was", "a", "story"]) for _ in range(drawn.randint(3, 6))]
        words.insert(drawn.randrange(len(words)), {"good": "lovely", "bad": "dreary"}[label])
        text = " ".join(words)
        lines.append(json.dumps({"text": text, "label": label}) if as_json else f"{text}\t{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("model", ["recurrent", "transformer"])
def test_a_tagger_from_file_to_file(model: str, tmp_path: Path, regard: Command) -> None:
    data, run = conllu(tmp_path / "words.conllu", sentences()), tmp_path / "run"
    small = ["--hidden-dim", "16", "--layers", "1", *(["--heads", "2"] if model == "transformer" else [])]
    ended = regard(
        "train", data, "--dev", data, "--test", data, "--model", model, "--out", run, *small, *TINY, *SEPARATE
    )
    assert ended.code == 0, ended
    assert "task: tag (guessed: CoNLL-U); --task chooses another" in ended.out
    assert "40 sentences" in ended.out
    assert f"test ({data}): accuracy" in ended.out
    scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    assert scores["test"]["accuracy"] > 0.95

    untagged = tmp_path / "new.conllu"
    untagged.write_text(data.read_text(encoding="utf-8").replace("\tNOUN\tN\t", "\t_\tN\t"), encoding="utf-8")
    found = regard("predict", run, untagged)
    assert (found.code, found.err) == (0, "")
    before, after = untagged.read_text(encoding="utf-8").split("\n"), found.out.split("\n")
    assert [line.split("\t")[:3] + line.split("\t")[4:] for line in before] == [
        line.split("\t")[:3] + line.split("\t")[4:] for line in after
    ]
    first = regard("predict", run, untagged, "--json").out.splitlines()[0]
    assert json.loads(first)["words"] == [word for word, _ in sentences()[0]]

    assert json.loads(regard("evaluate", run, data, "--json").out)["accuracy"] > 0.95
    looked = regard("look", run, "bados kalied", "motaly", "--heads" if model == "transformer" else "--")
    if model == "transformer":
        assert looked.out.splitlines()[-1] == str(run / "look.png")
        assert (run / "look.png").stat().st_size > 5000
        page = regard("look", run, "bados kalied", "--out", run / "look.html")
        assert (page.code, page.err) == (0, "")
        assert "<title>bados kalied" in (run / "look.html").read_text("utf-8")
    else:
        assert (
            looked.error
            == f"{run}: expected a model with attention, got a recurrent tagger; train one with --model transformer"
        )


def test_another_column_and_plain_words(tmp_path: Path, regard: Command) -> None:
    data, run = conllu(tmp_path / "words.conllu", sentences(10)), tmp_path / "run"
    small = ["--hidden-dim", "8", "--layers", "1", *TINY, "--epochs", "1"]
    assert regard("train", data, "--tag", "xpos", "--out", run, *small).code == 0
    (tmp_path / "new.txt").write_text("badely\nkoms\n\ntaned", encoding="utf-8")
    lines = regard("predict", run, tmp_path / "new.txt").out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["badely", "koms", "", "taned"]
    assert {line.split("\t")[1] for line in lines if line} <= {"A", "N", "V"}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_classifier_from_file_to_picture(as_json: bool, tmp_path: Path, regard: Command) -> None:
    data, run = films(tmp_path / "films.tsv", as_json=as_json), tmp_path / "run"
    ended = regard("train", data, "--test", data, "--heads", "2", "--out", run, *TINY, *SEPARATE)
    assert ended.code == 0, ended
    assert f"task: classify (guessed: {'JSON lines' if as_json else 'one column repeats a few labels'})" in ended.out
    assert json.loads((run / "scores.json").read_text(encoding="utf-8"))["test"]["accuracy"] > 0.95
    assert (run / "attention.png").stat().st_size > 5000

    (tmp_path / "new.txt").write_text("a lovely story\n\nthe film was dreary\n", encoding="utf-8")
    assert regard("predict", run, tmp_path / "new.txt").out == "good\n\nbad\n"
    label, score = regard("predict", run, tmp_path / "new.txt", "--scores").out.splitlines()[0].split("\t")
    assert label == "good"
    assert 0.5 < float(score) <= 1
    found = json.loads(regard("predict", run, tmp_path / "new.txt", "--json").out.splitlines()[2])
    assert found["label"] == "bad"
    assert sum(found["probabilities"].values()) == pytest.approx(1)

    looked = regard("look", run, "a lovely story", "--out", tmp_path / "look.png")
    assert looked.out.startswith("a lovely story\tgood\t")
    assert (tmp_path / "look.png").stat().st_size > 5000
    page = regard("look", run, "a lovely story", "--out", tmp_path / "look.html")
    assert (page.code, page.err) == (0, "")
    assert "<title>a lovely story" in (tmp_path / "look.html").read_text("utf-8")


def test_labels_that_training_never_saw_are_said_once(tmp_path: Path, regard: Command) -> None:
    data, run = films(tmp_path / "films.tsv"), tmp_path / "run"
    assert regard("train", data, "--heads", "2", "--out", run, *TINY, "--epochs", "1").code == 0
    (tmp_path / "test.tsv").write_text("a story\todd\na lovely film\tgood\nthe story\todd\n", encoding="utf-8")
    ended = regard("evaluate", run, tmp_path / "test.tsv", "--json")
    assert ended.err.count("did not occur in training, counted as errors: odd") == 1
    assert json.loads(ended.out)["accuracy"] <= 1 / 3 + 1e-9


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--task", "tag", "--score", "dot"], "--score"),
        (["--task", "classify", "--positions", "rotary"], "--positions"),
        (["--task", "tag", "--shared"], "--shared"),
        (["--task", "seq2seq", "--tag", "xpos"], "--tag"),
        (["--task", "seq2seq", "--word-dropout", "0.1"], "--word-dropout"),
    ],
)
def test_an_option_of_another_task_is_refused(
    options: list[str], refused: str, tmp_path: Path, regard: Command
) -> None:
    ended = regard("train", conllu(tmp_path / "words.conllu", sentences(3)), *options)
    assert ended.code == 2
    assert f"{refused}: no effect on the task {options[1]}" in " ".join(ended.err.split())


def test_a_classifier_has_no_search_and_no_export(tmp_path: Path, regard: Command) -> None:
    data, run = films(tmp_path / "films.tsv"), tmp_path / "run"
    assert regard("train", data, "--heads", "2", "--out", run, *TINY, "--epochs", "1").code == 0
    for command in (["predict", run, data], ["evaluate", run, data], ["look", run, "a film"]):
        ended = regard(*command, "--beam", "3")
        assert (ended.code, "--beam: no effect on a `classify` run; remove it" in " ".join(ended.err.split())) == (
            2,
            True,
        )
    (tmp_path / "new.txt").write_text("a quaint film\n", encoding="utf-8")
    assert (
        "1 unit in 1 line that did not occur in training, represented by characters only: quaint"
        in regard("predict", run, tmp_path / "new.txt").err
    )
    ended = regard("export", run)
    assert ended.code == 1
    assert "expected a `seq2seq` run, the only kind that can be exported, got a `classify` run" in ended.err


GUESSES: dict[str, tuple[str, str]] = {
    "pronunciation": ("cat\tK AE T\ndog\tD AO G\n", "seq2seq"),
    "pronunciation in groups": ("cat\tK AE T\n\ndog\tD AO G\n", "seq2seq"),
    "translation": ("ein Hund rennt\ta dog runs\nein Hund\ta dog\n", "seq2seq"),
    "inflection": ("Haus\tN;PL\tHäuser\nMaus\tN;PL\tMäuse\n", "seq2seq"),
    "tags": ("the\tDET\ndog\tNOUN\n\nthe\tDET\ncat\tNOUN\nruns\tVERB\n", "tag"),
    "classes": ("a fine film\tgood\na dull one\tbad\nso fine\tgood\nso very dull\tbad\n" * 5, "classify"),
    "classes first": ("good\ta fine film\nbad\ta dull one\ngood\tso fine\nbad\tso very dull\n" * 5, "classify"),
    "JSON": ('{"text": "a film", "label": "good"}\n', "classify"),
    "names of signs": ("{\tleft brace\n}\tright brace\n", "seq2seq"),
    "empty": ("", "seq2seq"),
}


@pytest.mark.parametrize("name", GUESSES)
def test_the_task_is_guessed_where_that_is_safe(name: str, tmp_path: Path) -> None:
    text, expected = GUESSES[name]
    path = tmp_path / "data.txt"
    path.write_text(text, encoding="utf-8")
    task, why = guess_task(path)
    assert task == expected
    assert bool(why) == (task != "seq2seq")


def test_standard_input_is_left_unread(stdin: Callable[[bytes], None]) -> None:
    stdin(b'{"text": "a film", "label": "good"}\n')
    assert guess_task("-") == ("seq2seq", "")


def test_columns_say_which_task_it_is(tmp_path: Path) -> None:
    assert guess_task(tmp_path / "none", "text,label")[0] == "classify"
    assert guess_task(tmp_path / "none", "source,target")[0] == "seq2seq"


SMALL = ["--embed-dim", "16", "--hidden-dim", "32", "--warmup", "10", "--lr", "0.02", "--dropout", "0"]


def test_subwords_from_training_to_export(tmp_path: Path, regard: Command) -> None:
    texts = ["der Hund läuft, schnell!", "die Katze läuft.", "der Hund schläft.", "die Katze schläft, gut."] * 3
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\t{text.upper()}\n" for text in texts), encoding="utf-8")
    run = tmp_path / "run"
    options = ["--units", "subword", "--subwords", "60", "--shared", "--epochs", "80", *SMALL]
    ended = regard("train", data, "--dev", data, "--out", run, *options)
    assert ended.code == 0, ended
    assert "dev BLEU" in ended.out
    (tmp_path / "new.txt").write_text("die Katze läuft.\ndie 猫.\n", encoding="utf-8")
    found = regard("predict", run, tmp_path / "new.txt")
    assert found.out.splitlines()[0] == "DIE KATZE LÄUFT."
    assert "unit in 1 line that did not occur in training" in found.err
    scores = json.loads(regard("evaluate", run, data, "--json").out)
    assert scores["bleu"] > 90
    assert "version:" in scores["signature"]
    assert regard("look", run, "der Hund läuft.").code == 0
    assert regard("export", run).code == 0
    assert {"source.tokenizer.json", "target.tokenizer.json"} <= {path.name for path in (run / "onnx").iterdir()}


def test_inflection_with_decomposed_letters(tmp_path: Path, regard: Command) -> None:
    forms = [("Haus", "Häuser"), ("Maus", "Mäuse"), ("Baum", "Bäume")]
    rows = [row for lemma, plural in forms for row in ((lemma, "N;SG", lemma), (lemma, "N;PL", plural))]
    data, run = tmp_path / "forms.tsv", tmp_path / "run"
    data.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    ended = regard("train", data, "--dev", data, "--normalize", "nfd", "--out", run, "--epochs", "60", *SMALL)
    assert ended.code == 0, ended
    assert "columns: SOURCE TAB FEATURES TAB TARGET" in ended.out
    assert "\n  Baum  N;PL  Bäume\n" in ended.out
    (tmp_path / "new.tsv").write_text("Baum\tN;PL\n\nHaus\tN;SG\n", encoding="utf-8")
    assert regard("predict", run, tmp_path / "new.tsv").out == "Bäume\n\nHaus\n"
    (tmp_path / "composed.tsv").write_text("Bäum\tN;PL\n", encoding="utf-8")
    answer = json.loads(regard("predict", run, tmp_path / "composed.tsv", "--json").out)
    assert answer["source"] == "Bäum\tN;PL"
    assert json.loads(regard("evaluate", run, data, "--json").out)["exact"] == 1.0
    assert regard("export", run).code == 0
    readme = (run / "onnx" / "README.md").read_text(encoding="utf-8")
    assert "return unicodedata.normalize('NFC', ''.join(found))" in readme
    assert regard("look", run, "Baum\tN;PL").out.startswith("Baum\tN;PL\tBäume\n")
    (tmp_path / "bad.tsv").write_text("Baum\tN;PL\nBaum\n", encoding="utf-8")
    ended = regard("predict", run, tmp_path / "bad.tsv")
    assert ended.out == "Bäume\n"  # lines before the fault are answered
    error = ended.error
    assert error.startswith(f"{tmp_path / 'bad.tsv'}:2: expected SOURCE TAB FEATURES")
    resumed = regard("train", data, "--columns", "source,features,form", "--out", tmp_path / "no")
    assert "columns: expected source and target once each" in resumed.error


def test_a_model_knows_nothing_of_what_is_set_apart_to_choose_it_by(tmp_path: Path, regard: Command) -> None:
    data, run = tmp_path / "films.tsv", tmp_path / "run"  # each text has a word of its own
    lines = [f"a film called {chr(97 + i)}{i}\t{'good' if i % 2 else 'bad'}" for i in range(20)]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ended = regard("train", data, "--task", "classify", "--out", run, *TINY, "--epochs", "1")
    assert ended.code == 0, ended
    assert "2 of 20 examples held out" in ended.out
    known = json.loads((run / "words.vocabulary.json").read_text(encoding="utf-8"))
    assert len([word for word in known if word[-1].isdecimal()]) == 18


@pytest.mark.parametrize(
    ("task", "model", "config"),
    [
        ("seq2seq", "recurrent", RecurrentConfig(9, 9)),
        ("seq2seq", "transformer", TransformerConfig(9, 9)),
        ("tag", "recurrent", TaggerConfig(9, 9, 9)),
        ("tag", "transformer", TaggerConfig(9, 9, 9)),
        ("classify", "recurrent", ClassifierConfig(9, 9)),
        ("classify", "transformer", ClassifierConfig(9, 9)),
        ("classify", "none", ClassifierConfig(9, 9)),
    ],
)
def test_the_help_of_train_names_the_defaults_of_the_models(task: str, model: str, config: Any) -> None:
    shown = dict(TASK_MODULES[task].MODELS[model])
    layers = shown.pop("layers", None)
    taken = [getattr(config, name, layers) for name in ("layers", "encoder_layers", "decoder_layers")]
    assert layers is None or set(taken) == {layers}
    assert shown == {name: getattr(config, name) for name in shown}


def test_defaults_that_depend_on_the_task_are_named() -> None:
    assert default_of("hidden_dim") == "[default: 256; tag 400; classify 128]"
    assert default_of("dropout") == "[default: 0.3; seq2seq transformer 0.1; tag 0.45; classify 0.5]"
    assert default_of("word_dropout") == "[default: tag 0.2; classify 0.1]"
    assert default_of("minutes") == "[default: seq2seq 2]"
    assert default_of("heads") == "[default: 4]"
    assert default_of("score") == "[default: additive]"
