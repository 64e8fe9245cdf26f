"""A run directory: what is written is read again, what is damaged is said, and predictions come line for line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard._symbols import EOS, UNK
from regard.data import Pair, SeparatorTokenizer
from regard.errors import ArgumentError, RunError
from regard.models import Hypothesis, beam_search
from regard.tasks import Search, Seq2SeqRun, seq2seq, windows
from regard.tasks.run import FORMAT
from small_runs import backwards, new_run, short_training

POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"]
FILES = ["config.json", "source.vocabulary.json", "target.vocabulary.json", "model.safetensors"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return untrained(tmp_path, encoder_layers=2, hidden_dim=8)


@pytest.fixture(params=["recurrent", "transformer"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return untrained(tmp_path, kind=request.param)


def untrained(tmp_path: Path, **options: object) -> Path:
    run = new_run(tmp_path / "run", backwards(), short_training(), {"data": "words.tsv"}, **options)
    with torch.no_grad():  # so that answers differ, and end at various lengths
        for parameter in run.model.parameters():
            parameter.mul_(3 if run.model.config.kind == "recurrent" else 1.5)
    run.save_weights(tmp_path / "run")
    return tmp_path / "run"


def change(folder: Path, **entries: object) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **entries}), encoding="utf-8")


def refused(folder: Path, match: str) -> None:
    with pytest.raises(RunError, match=match) as caught:
        Seq2SeqRun.load(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}: ")
    assert len(message.splitlines()) == 1
    assert "; " in message  # what to do


@pytest.mark.parametrize(
    "options",
    [
        {"cell": "lstm", "score": None},
        *({"kind": "transformer", "positions": positions} for positions in POSITIONS),
        {"kind": "transformer", "norm_first": False},
    ],
)
def test_what_is_written_is_read_again(options: dict[str, object], tmp_path: Path) -> None:
    first = new_run(tmp_path / "again", backwards(), short_training(), {"data": "ä"}, **options)
    first.save_weights(tmp_path / "again")
    second = Seq2SeqRun.load(str(tmp_path / "again"))
    assert not second.model.training
    for name in (
        "source",
        "target",
        "source_tokenizer",
        "target_tokenizer",
        "max_length",
        "max_length_ratio",
        "training",
    ):
        assert getattr(second, name) == getattr(first, name)
    assert second.model.config == first.model.config
    assert second.training["data"] == "ä"
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor)
    lines = ["abc", "", "fedcba", "x"]
    first.model.eval()
    assert list(second.predict(lines)) == list(first.predict(lines))


def test_a_run_of_before_there_were_kinds_is_recurrent(folder: Path) -> None:
    expected = list(Seq2SeqRun.load(folder).predict(["abc"]))
    model = json.loads((folder / "config.json").read_text())["model"]
    assert model.pop("kind") == "recurrent"
    change(folder, model=model)
    assert list(Seq2SeqRun.load(folder).predict(["abc"])) == expected


def test_a_kind_that_is_not_known_is_refused_naming_those_that_are(folder: Path) -> None:
    model = json.loads((folder / "config.json").read_text())["model"]
    change(folder, model={**model, "kind": "convolution"})
    refused(folder, "expected one of the kinds recurrent, transformer, got 'convolution'")
    change(folder, model={**model, "kind": "transformer"})
    refused(folder, "damaged")


def test_learned_positions_reach_as_far_as_answers_do(tmp_path: Path) -> None:
    pairs = backwards()
    longer = [example._replace(target=example.target * 3) for example in pairs.examples]
    run = new_run(tmp_path, replace(pairs, examples=longer), short_training(), kind="transformer", positions="learned")
    with torch.no_grad():
        run.model.decoder.norm.bias.fill_(1)
        run.model.target_embedding.weight[EOS] = -9  # answers never end
    run.save_weights(tmp_path)
    (answer,) = Seq2SeqRun.load(tmp_path).predict(["abcde" * 5])
    assert answer.cut
    assert len(answer.predictions[0].units) == 10 + 3 * 20


def test_a_run_can_be_moved(folder: Path) -> None:
    expected = list(Seq2SeqRun.load(folder).predict(["abc"]))
    folder.rename(folder.with_name("elsewhere"))
    assert list(Seq2SeqRun.load(folder.with_name("elsewhere")).predict(["abc"])) == expected


def test_a_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "none", r"found no such folder; .*--out")
    refused(tmp_path, r"found no config\.json in it; ")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "found no such folder")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(name: str, folder: Path) -> None:
    (folder / name).unlink()
    refused(folder, name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{", b"[1, 2]", b"null", b"[" * 100_000, None])
def test_a_damaged_file(name: str, content: bytes | None, folder: Path) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2] if content is None else content)
    refused(folder, "damaged|without a format number")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_a_files_place(name: str, folder: Path) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, "damaged|no config")


@pytest.mark.parametrize("written", [FORMAT + 1, 99])
def test_a_newer_format_says_upgrade(written: int, folder: Path) -> None:
    change(folder, format=written, regard="7.0", a_thing_to_come=[])
    refused(folder, rf"newer regard \(7\.0, format {written}; this one reads up to {FORMAT}\); upgrade with: pip")


@pytest.mark.parametrize("written", [None, "1", 1.5])
def test_no_format_number(written: object, folder: Path) -> None:
    change(folder, format=written)
    refused(folder, "without a format number")


@pytest.mark.parametrize("name", ["model", "source_units", "target_units", "max_length", "growth", "training"])
@pytest.mark.parametrize("value", [None, "letters", -1])
def test_a_config_with_a_wrong_entry(name: str, value: object, folder: Path) -> None:
    change(folder, **{name: value})
    refused(folder, "damaged")


@pytest.mark.parametrize("name", ["model", "source_units", "max_length", "growth", "training"])
def test_a_config_that_lacks_an_entry(name: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, f"no '{name}'")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_dim", 16),
        ("hidden_dim", 7),
        ("hidden_dim", "8"),
        ("embed_dim", 9),
        ("embed_dim", -1),
        ("embed_dim", 10**15),
        ("encoder_layers", 1),
        ("encoder_layers", 0),
        ("dropout", 3),
        ("cell", "lstm"),
        ("score", None),
        ("score", "cosine"),
        ("input_feeding", False),
        ("source_size", 99),
        ("heads", 4),
    ],
)
def test_a_model_of_another_shape(name: str, value: object, folder: Path) -> None:
    change(folder, model={**json.loads((folder / "config.json").read_text())["model"], name: value})
    refused(folder, "damaged")


def test_weights_are_read_strictly(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "extra": torch.ones(1)}, path)
    refused(folder, "extra")
    lacking = {name: tensor for name, tensor in tensors.items() if name != "output.bias"}
    save_file(lacking, path)
    refused(folder, r"output\.bias")
    save_file({**lacking, "output.bias": torch.ones(99)}, path)
    refused(folder, r"output\.bias")


def test_a_run_without_weights_can_be_opened_to_resume(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert Seq2SeqRun.load(folder, trained=False).max_length == 20


def test_answers_keep_their_order_over_lengths_and_windows(either: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Seq2SeqRun.load(either)
    lines = ["abcdef", "", "a", "fed", "bb", "", "cafe", "dead", "f", "abcabcabc", "bed"]
    search = Search(beam=3, n_best=2)
    expected = [answer for line in lines for answer in run.predict([line], search)]
    assert len({prediction.text for answer in expected for prediction in answer.predictions}) > 4
    for window, tokens in ((2048, 4096), (4, 4096), (3, 1), (4, 20)):
        monkeypatch.setattr(windows, "_WINDOW", window)
        answers = list(run.predict(lines, replace(search, batch_tokens=tokens)))
        assert [answer.units for answer in answers] == [list(line) for line in lines]
        for answer, alone in zip(answers, expected, strict=True):
            for a, b in zip(answer.predictions, alone.predictions, strict=True):
                assert (a.text, a.units, a.finished) == (b.text, b.units, b.finished)
                assert a.score == pytest.approx(b.score, abs=1e-5)


def test_batches_keep_to_their_budget(either: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    def search(model: object, source: torch.Tensor, lengths: torch.Tensor, **options: object) -> list[list[Hypothesis]]:
        shapes.append(tuple(source.shape))
        return beam_search(model, source, lengths, **options)

    monkeypatch.setattr(seq2seq, "beam_search", search)
    run = Seq2SeqRun.load(either)
    list(run.predict(["a", "abcdef", "bc", "f", "fedcba", "abc", "b", "c"], Search(beam=2, batch_tokens=24)))
    assert sum(rows for rows, _ in shapes) == 8
    assert all(2 * rows * length <= 24 for rows, length in shapes)
    assert len(shapes) <= 4


def test_lines_are_read_as_they_are_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_WINDOW", 2)

    def lines() -> Iterator[str]:
        yield "abc"
        yield "def"
        raise AssertionError("a third line was read before the first was answered")

    assert next(Seq2SeqRun.load(folder).predict(lines())).units == ["a", "b", "c"]
    assert list(Seq2SeqRun.load(folder).predict([])) == []


def test_a_blank_line_has_no_predictions(either: Path) -> None:
    for answer in Seq2SeqRun.load(either).predict(["", ""], Search(n_best=3)):
        assert (answer.predictions, answer.units, answer.unseen, answer.cut) == ([], [], [], False)


def test_unseen_units_are_counted_and_answered(either: Path) -> None:
    run = Seq2SeqRun.load(either)
    with_unseen, plain = run.predict(["a猫bé猫", "abc"])
    assert (with_unseen.unseen, plain.unseen) == (["猫", "é", "猫"], [])
    assert with_unseen.units == ["a", "猫", "b", "é", "猫"]
    assert len(with_unseen.predictions) == 1
    assert run.source.encode("猫") == [UNK]


def test_a_line_beyond_the_longest_is_cut_and_said(either: Path) -> None:
    run = Seq2SeqRun.load(either)
    whole, long, huge = run.predict(["abcde" * 4, "abcde" * 4 + "f", "abcde" * 20_000])
    assert (whole.cut, long.cut, huge.cut) == (False, True, True)
    assert whole.units == long.units == huge.units == list("abcde" * 4)
    assert whole.predictions[0].text == long.predictions[0].text == huge.predictions[0].text


def test_an_answer_is_no_longer_than_the_data_give_reason_to(folder: Path) -> None:
    run = Seq2SeqRun.load(folder)
    with torch.no_grad():
        run.model.output.bias[EOS] = -1e9
    for line, answer in zip(["ab", "abcde"], run.predict(["ab", "abcde"]), strict=True):
        (prediction,) = answer.predictions
        assert not prediction.finished
        assert len(prediction.units) == 10 + len(line) * run.max_length_ratio


def test_weights_have_a_row_a_step_and_a_column_a_unit(either: Path) -> None:
    lines, run = ["abcdef", "ab"], Seq2SeqRun.load(either)
    heads = () if run.model.config.kind == "recurrent" else (2, 2)
    for line, answer in zip(lines, run.predict(lines, Search(n_best=5, weights=True)), strict=True):
        assert len(answer.predictions) == 5
        assert [p.score for p in answer.predictions] == sorted((p.score for p in answer.predictions), reverse=True)
        for prediction in answer.predictions:
            assert prediction.weights.shape == (*heads, len(prediction.units) + prediction.finished, len(line))
            torch.testing.assert_close(prediction.weights.sum(-1), torch.ones(prediction.weights.shape[:-1]))


def test_more_answers_than_the_beam_holds_are_refused(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="n_best"):
        list(Seq2SeqRun.load(folder).predict(["abc"], Search(beam=2, n_best=3)))


def test_scoring_counts_what_is_right(either: Path) -> None:
    run = Seq2SeqRun.load(either)
    sources = [example.source for example in backwards().examples]
    answers = [answer.predictions[0].units for answer in run.predict_units(sources, Search(beam=1))]
    run.model.train()  # as in the middle of training, whose dropout may not show
    examples = [Pair(source, tuple(units)) for source, units in zip(sources, answers, strict=True)]
    scores = run.score(examples)
    assert (scores.values["wer_percent"], scores.values["error_rate"], scores.count) == (0.0, 0.0, 20)
    worse = run.score([examples[0]._replace(target=(*examples[0].target, "a")), *examples[1:]])
    units = 1 + sum(map(len, answers))
    assert (worse.values["wer_percent"], worse.values["error_rate"]) == (5.0, 1 / units)


def test_the_error_of_units_has_its_name(folder: Path) -> None:
    run = Seq2SeqRun.load(folder)
    assert run.unit_error == "CER"
    assert replace(run, target_tokenizer=SeparatorTokenizer("words")).unit_error == "PER"


def test_writing_leaves_nothing_behind(folder: Path) -> None:
    assert sorted(os.listdir(folder)) == sorted(FILES)
