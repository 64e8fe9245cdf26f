"""`regard look` on Hugging Face and GGUF models, and the pages of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from commands import Command
from local_models import TEXT
from regard.look.page.tokens import texts
from regard.look.runs import watch_answer
from regard.tasks import Search
from small_runs import short_training, train

pytest_plugins = ["command_fixtures", "local_model_fixtures"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_heads_are_told_and_the_page_is_written(folders: dict[str, Path], regard: Command, tmp_path: Path) -> None:
    ended = regard("look", folders["encoder"], TEXT)
    assert ended.code == 0
    assert ended.err == ""
    *_, told, page = ended.out.splitlines()
    assert page == "look.html"
    assert told == "heads with at least half of their weight on one place, such as the first token: 0 of 18"
    assert f"<title>{folders['encoder'].name}" in (tmp_path / "look.html").read_text("utf-8")
    ended = regard("look", folders["encoder"], TEXT, "--out", "another.html")
    assert ended.out.splitlines()[-1] == "another.html"
    assert (tmp_path / "another.html").exists()


def test_json_tells_every_head(folders: dict[str, Path], regard: Command, tmp_path: Path) -> None:
    ended = regard("look", folders["seq2seq"], TEXT, "--json", "--generate", "5")
    assert ended.err == ""
    told = json.loads(ended.out)
    assert (told["model"], told["kind"]) == (folders["seq2seq"].name, "seq2seq")
    assert len(told["heads"]) == (2 + 3 + 3) * 5
    crossing = [head for head in told["heads"] if "encoder_attn" in head["layer"]]
    assert len(crossing) == 15
    assert all(head["previous"] is None and head["distance"] is None for head in crossing)
    assert all(0 <= head["first"] <= 1 and 0 <= head["separators"] <= 1 for head in told["heads"])
    assert [passage["text"] for passage in told["passages"]] == TEXT.split("\n\n")
    assert sum(passage["share"] for passage in told["passages"]) <= 1.0001
    assert not (tmp_path / "look.html").exists()
    assert regard("look", folders["encoder"], TEXT, "--json", "--out", "a.html").err == "a.html\n"
    assert (tmp_path / "a.html").exists()


def test_an_answer_is_told_with_what_it_was_read_from(folders: dict[str, Path], regard: Command) -> None:
    answer = json.loads(regard("look", folders["causal"], TEXT, "--generate", "9", "--json").out)["answer"]
    out = regard("look", folders["causal"], TEXT, "--generate", "9").out
    assert out.startswith(answer)
    assert "share of the answer's attention fell on" in " ".join(out.split())
    assert "Nobody had seen the dog run." in out
    assert "attention fell on" not in regard("look", folders["causal"], TEXT).out


def test_a_text_may_be_a_file_or_standard_input(
    folders: dict[str, Path], regard: Command, tmp_path: Path, stdin: Callable[[bytes], None]
) -> None:
    given = regard("look", folders["encoder"], TEXT, "--json").out
    (tmp_path / "text.txt").write_text(TEXT + "\n", encoding="utf-8")
    assert regard("look", folders["encoder"], tmp_path / "text.txt", "--json").out == given
    stdin(TEXT.encode())
    assert regard("look", folders["encoder"], "-", "--json").out == given


def test_a_long_text_is_cut_and_that_is_said(folders: dict[str, Path], regard: Command) -> None:
    ended = regard("look", folders["encoder"], "cat " * 70, "--json")
    assert ended.err == "regard: text of 72 tokens cut to 53, the maximum of the model\n"


def test_mistakes_are_one_line(folders: dict[str, Path], regard: Command, tmp_path: Path) -> None:
    encoder = folders["encoder"]
    (tmp_path / "empty.txt").write_text(" \n\n")
    assert regard("look", encoder, tmp_path / "empty.txt").error.endswith(
        "empty.txt: expected a text, found none; check the file"
    )
    assert "expected a text with at least one token" in regard("look", encoder, "").error
    assert "which does not generate text; remove it" in regard("look", encoder, "cat", "--generate", "3").error
    assert "cannot write" in regard("look", encoder, "cat", "--out", tmp_path / "no" / "a.html").error
    assert regard("look", tmp_path / "a.gguf", "cat").error.endswith(
        "a.gguf: expected a GGUF file, but there is no such file; check the path"
    )
    assert "expected a run directory, found no such folder" in regard("look", "nowhere", "cat").error
    for arguments, said in (
        (("cat", "dog"), "expected one TEXT for a Hugging Face or GGUF model, got 2; quote it"),
        (("cat", "--beam", "3"), "--beam: no effect on a Hugging Face or GGUF model; remove it"),
        (("cat", "--heads"), "--heads: no effect on a Hugging Face or GGUF model"),
        (("cat", "--generate", "0"), "expected a number of at least 1, got 0."),
    ):
        ended = regard("look", encoder, *arguments)
        assert ended.code == 2
        assert said in " ".join(ended.err.split())


def test_nothing_is_fetched(folders: dict[str, Path], regard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    for folder in folders.values():
        assert regard("look", folder, TEXT, "--json").code == 0


# Pages about runs


@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_rows_watched_of_a_run_are_those_of_the_hypothesis_that_won(kind: str, tmp_path: Path) -> None:
    run, _ = train(tmp_path / "run", short_training(epochs=1), kind=kind)
    run.model.eval()
    for answer in run.predict(["abcdef", "fa", "deadbee"], Search(beam=3, weights=True)):
        weights = answer.predictions[0].weights
        assert weights is not None
        weights = weights[None, None] if weights.dim() == 2 else weights
        record, tokens = watch_answer(run, answer)
        crossing = [layer for layer in record.layers if layer.cross]
        assert len(crossing) == len(weights)
        assert len(tokens["source"]) == weights.shape[3]
        assert len(tokens["target"]) == weights.shape[2] == len(tokens["answer"])
        assert tokens["target"] == ["<bos>", *tokens["answer"][:-1]]
        known, of_layers = texts(record, tokens, None)
        for layer, (queries, keys) in zip(record.layers, of_layers, strict=True):
            named = tokens["answer" if layer.cross else "target" if "decoder" in layer.name else "source"]
            assert [piece.strip() for piece in known[queries]["examples"][0]["pieces"]] == named
            named = tokens["target" if "decoder.layers" in layer.name and not layer.cross else "source"]
            assert [piece.strip() for piece in known[keys]["examples"][0]["pieces"]] == named
        for layer, expected in zip(crossing, weights, strict=True):
            assert layer.statistics.entropy is not None
            entropy = torch.special.entr(expected).sum(-1)
            torch.testing.assert_close(layer.statistics.entropy[0], entropy, rtol=0, atol=1e-5)
            share = [one.first for one in record.summary() if one.layer == layer.name]
            assert share == pytest.approx(expected[..., 0].mean(-1).tolist(), abs=1e-5)


def test_a_run_has_a_page(trained: Path, regard: Command, tmp_path: Path) -> None:
    ended = regard("look", trained, "bad", "--out", tmp_path / "a.html")
    assert ended == (0, f"bad\tB A D\n{tmp_path / 'a.html'}\n", "")
    page = (tmp_path / "a.html").read_text("utf-8")
    assert page.startswith("<!")
    for arguments, said in (
        (("bad", "cab"), "expected one TEXT for a page, got 2; write one page for each"),
        (("bad", "--heads"), "--heads: no effect on the page of a `seq2seq` run; remove it"),
    ):
        ended = regard("look", trained, *arguments, "--out", tmp_path / "a.html")
        assert ended.code == 2
        assert said in " ".join(ended.err.split())
    assert "--generate: no effect on a `seq2seq` run" in " ".join(
        regard("look", trained, "bad", "--generate", "3").err.split()
    )
