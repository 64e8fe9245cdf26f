"""The commands, run as a user runs them."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import MODEL, QUICK, Command, spelt, start, table
from regard import __version__
from regard.data import Pair, Pairs, SeparatorTokenizer, cmudict
from regard.models import TransformerConfig
from regard.tasks import Seq2SeqRun
from small_runs import at_update

pytest_plugins = ["command_fixtures"]
PNG = b"\x89PNG\r\n"
HEAVY = ["torch", "numpy", "lightning", "rich", "matplotlib", "safetensors", "torchmetrics", "huggingface_hub"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return table(tmp_path / "words.tsv", spelt(40))


# Help


@pytest.mark.parametrize("command", [[], ["train"], ["predict"], ["evaluate"], ["look"]])
def test_help_fits_a_terminal(command: list[str], regard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = regard(*command, "--help")
    assert ended.code == 0
    assert ended == regard(*command, "-h")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert ended.out.startswith(" ".join(["Usage: regard", *command, "[OPTIONS]"]))
    for wrong in ("{", "...  ", "<", "metavar"):
        assert wrong not in ended.out.replace("COMMAND [ARGS]...", "")


def test_help_names_every_command(regard: Command) -> None:
    out = regard("--help").out
    for line in (
        "train     Train a model.",
        "predict   Answer each line of a file, or tag each word.",
        "--debug",
        "Start with: regard",
    ):
        assert line in out
    assert regard().err + regard().out == regard("--help").out


def test_help_of_train_groups_its_options(regard: Command) -> None:
    panels = re.findall(r"^(\w+):$(.*?)(?=^\w|\Z)", regard("train", "--help").out, re.MULTILINE | re.DOTALL)
    first = {name: re.findall(r"^  (\S+)", text, re.MULTILINE)[:2] for name, text in panels}
    assert first == {
        "Data": ["DATA", "--task"],
        "Run": ["--out", "--resume"],
        "Model": ["--model", "--layers"],
        "Recurrent": ["--score", "--input-feeding"],
        "Transformer": ["--dim", "--heads"],
        "Training": ["--lr", "--warmup"],
        "Options": ["-h,"],
    }


def test_help_waits_for_nothing_heavy() -> None:
    code = f"""
import atexit, sys
atexit.register(lambda: print(*sorted({{name.split('.')[0] for name in sys.modules}} & {set(HEAVY)}), file=sys.stderr))
from regard.cli import main
main(["train", "--help"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == "\n"
    assert "--minutes" in ended.stdout


def test_help_is_there_at_once() -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "regard.cli", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5  # processor time, as other processes may run beside this test


def test_version(regard: Command) -> None:
    assert regard("--version") == (0, f"regard {__version__}\n", "")


# Train


def test_train_says_what_it_does_and_makes_a_run(data: Path, tmp_path: Path, regard: Command) -> None:
    test = table(tmp_path / "test.tsv", [("bad", "B A D"), ("dab", "D E B")])
    run = tmp_path / "deep" / "run"
    ended = regard("train", data, "--test", test, "--out", run, *QUICK)
    assert (ended.code, ended.err) == (0, "")
    said = ended.out
    for line in (
        f"{data}: 40 pairs",
        f"{data}: source: characters; target: units separated by spaces, such as words or phones (guessed)",
        f"{data}: 4 of 40 examples held out to select the best model (no --dev)",
        f"{test}: 1 target unit that did not occur in training, counted as errors: E",
        "training for 1 epoch: 36 pairs, 0.02 M parameters, vocabularies 8 and 8",
        f"best model in {run}: dev exact ",
        f"test ({test}, beam 5): exact ",
        f"attention of these examples: {run / 'attention.png'}",
        f'next: regard look {run} "..."   regard predict {run} FILE   regard evaluate {run} FILE',
    ):
        assert line in said
    assert re.search(r"^  bad  .*\n  dab  .*   \(data: D E B\)$", said, re.MULTILINE)
    assert {path.name for path in run.iterdir()} == {
        "attention.png",
        "config.json",
        "log.csv",
        "model.safetensors",
        "scores.json",
        "source.vocabulary.json",
        "target.vocabulary.json",
    }
    assert (run / "attention.png").read_bytes().startswith(PNG)
    scores = json.loads((run / "scores.json").read_text())
    assert (scores["dev"]["count"], scores["test"]["count"]) == (4, 2)
    told = json.loads((run / "config.json").read_text())["training"]
    assert (told["data"], told["recipe"]["epochs"], told["recipe"]["minutes"]) == (str(data), 1, None)


def test_train_finds_a_name_for_the_run(
    data: Path, tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("words", "words-2"):
        ended = regard("train", "words.tsv", "--score", "none", *QUICK)
        assert ended.code == 0
        assert f"best model in runs/{name}: " in ended.out
        assert Seq2SeqRun.load(f"runs/{name}").model.attention is None


def test_train_reads_standard_input(tmp_path: Path, regard: Command, stdin: Callable[[bytes], None]) -> None:
    stdin("".join(f"{source}\t{target}\n" for source, target in spelt(40)).encode())
    ended = regard("train", "-", "--out", tmp_path / "run", *QUICK)
    assert ended.code == 0, ended
    assert "<stdin>: 40 pairs" in ended.out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["training"]["data"] == "-"


@pytest.mark.parametrize("positions", ["learned", "shaw"])
def test_a_transformer_is_trained_used_and_looked_into_by_the_same_commands(
    positions: str, data: Path, tmp_path: Path, regard: Command
) -> None:
    run = tmp_path / "run"
    size = ["--dim", "16", "--heads", "2", "--feedforward", "24", "--layers", "2", "--positions", positions]
    said = regard("train", data, "--out", run, "--model", "transformer", *size, "--epochs", "1").out
    assert f"attention of these examples: {run / 'attention.png'}" in said
    config = json.loads((run / "config.json").read_text())
    told = {name: config["model"][name] for name in ("kind", "dim", "heads", "feedforward", "positions", "dropout")}
    assert told == {
        "kind": "transformer",
        "dim": 16,
        "heads": 2,
        "feedforward": 24,
        "positions": positions,
        "dropout": TransformerConfig(9, 9).dropout,
    }
    assert (config["model"]["encoder_layers"], config["model"]["decoder_layers"]) == (2, 2)
    assert config["training"]["recipe"]["warmup"] == 300
    assert len(regard("predict", run, data).out.splitlines()) == 40
    assert regard("evaluate", run, data, "--beam", "1").out.split()[:2] == ["40", "pairs"]
    for options in ([], ["--heads"], ["--heads", "--n-best", "2"]):
        ended = regard("look", run, "bad", "cab", "--out", tmp_path / "a.png", *options)
        assert ended.code == 0
        assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    again = regard("train", data, "--out", run.with_name("again"), "--model", "transformer", *size, "--epochs", "1")
    assert again.code == 0
    assert (run.with_name("again") / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_train_without_data_is_english_pronunciation(
    tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(*, stress: bool) -> tuple[Pairs, ...]:
        asked.append(stress)
        examples = [Pair(tuple(word), tuple(phones.split())) for word, phones in spelt(12)]
        return tuple(
            Pairs(part, SeparatorTokenizer("chars"), SeparatorTokenizer("words"), "CMU")
            for part in (examples, examples, examples[:3])
        )

    monkeypatch.setattr(cmudict, "load", load)
    monkeypatch.chdir(tmp_path)
    ended = regard("train", "--stress", *QUICK)
    assert ended.code == 0
    assert asked == [True]
    assert "best model in runs/english: " in ended.out
    assert "test (CMU, beam 5): " in ended.out


def test_a_training_of_a_second_ends_and_leaves_a_model(data: Path, tmp_path: Path, regard: Command) -> None:
    ended = regard("train", data, "--out", tmp_path / "run", "--minutes", "0.01", "--patience", "20", *MODEL)
    assert ended.code == 0
    assert "training for 0.01 min: " in ended.out
    assert "100 %  epoch" in ended.out
    Seq2SeqRun.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stress"], "--stress: applies only to English pronunciation"),
        (["--resume", "runs/words", "--lr", "1"], "remove --lr, DATA"),
        (["--minutes", "nan"], "--minutes: expected a finite number, got nan"),
        (["--minutes", "inf"], "--minutes: expected a finite number, got inf"),
        (["--minutes", "soon"], "valid number"),
        (["--seed", "-1"], "--seed: expected a number from 0"),
        (["--score", "best"], "best"),
        (["--model", "convolution"], "convolution"),
        (["--positions", "absolute"], "absolute"),
        (["--heads", "4"], "--heads: expected --model transformer, got recurrent; remove it"),
        (
            ["--feedforward", "8", "--dim", "8"],
            "--feedforward: expected --model transformer, got recurrent; remove them",
        ),
        (["--positions", "t5", "--model", "recurrent"], "--positions: expected --model transformer"),
        (["--model", "transformer", "--score", "dot"], "--score: expected --model recurrent, got transformer"),
        (["--model", "transformer", "--no-input-feeding"], "--input-feeding: expected --model recurrent"),
        (["--model", "transformer", "--hidden-dim", "8", "--cell", "gru"], "--cell, --hidden-dim: expected --model"),
        (["--model", "none"], "--model: expected recurrent or transformer for the task seq2seq, got none"),
        (["--subwords", "50"], "--subwords: applies only with --units subword"),
        (["--bogus"], "--bogus"),
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(
    options: list[str], message: str, data: Path, regard: Command
) -> None:
    ended = regard("train", data, *options)
    assert ended.code == 2
    assert message in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("option", ["--dev", "--test", "--source-units", "--target-units", "--max-length"])
def test_options_about_data_need_data(option: str, regard: Command) -> None:
    ended = regard("train", option, "3")
    assert ended.code == 2
    assert f"{option}: expected DATA, got none" in ended.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "-1"], "minutes: expected a number above 0, got -1"),
        (["--minutes", "1", "--epochs", "1"], "exactly one"),
        (["--epochs", "0"], "exactly one|above 0"),
        (["--hidden-dim", "7"], "hidden_dim"),
        (["--embed-dim", "0"], "embed_dim"),
        (["--layers", "0"], "encoder_layers"),
        (["--dropout", "1"], "dropout"),
        (["--model", "transformer", "--layers", "0"], "encoder_layers"),
        (["--model", "transformer", "--heads", "3"], "heads: expected a divisor of dim \\(128\\), got 3"),
        (["--model", "transformer", "--dim", "12", "--positions", "rotary"], "heads: expected an even"),
        (["--lr", "0"], "learning_rate"),
        (["--batch-tokens", "0"], "batch_tokens"),
        (["--max-length", "0"], "max_length"),
        (["--patience", "0"], "patience"),
        (["--warmup", "-1"], "warmup"),
        (["--source-units", "letters"], "'chars', 'words', 'subword' .* or a separator"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_written(
    options: list[str], message: str, data: Path, tmp_path: Path, regard: Command
) -> None:
    assert re.search(message, regard("train", data, "--out", tmp_path / "run", *options).error)
    assert not (tmp_path / "run").exists()


def test_errors_a_character_are_called_so_from_the_first_score_on(tmp_path: Path, regard: Command) -> None:
    (tmp_path / "names.tsv").write_text("ab\tba\ncd\tdc\nabc\tcba\nbd\tdb\n")
    out = regard("train", tmp_path / "names.tsv", "--out", tmp_path / "run", *MODEL, "--epochs", "2").out
    assert "% (1 pair)  best" in out
    assert " CER " in out
    assert " PER " not in out


# Resume


def test_what_was_interrupted_goes_on_as_if_it_had_not_been(
    data: Path, tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [*MODEL, "--epochs", "3", "--batch-tokens", "100", "--patience", "12"]
    monkeypatch.chdir(data.parent)
    assert regard("train", data.name, "--out", "whole", *plan).code == 0
    with monkeypatch.context() as patch:
        at_update(patch, 7, lambda _: os.kill(os.getpid(), signal.SIGINT))
        ended = regard("train", data.name, "--out", "broken", *plan)
    assert ended.code == 130
    assert "stopped on request after" in ended.out
    assert "continue with: regard train --resume broken" in ended.out
    assert "continue it: regard train --resume broken" in regard("train", data.name, "--out", "broken", *plan).error
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ended = regard("train", "--resume", "../broken")
    assert ended.code == 0
    assert "attention of these examples: ../broken/attention.png" in ended.out
    whole, broken = (tmp_path / name / "model.safetensors" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
    assert "nothing to resume" in regard("train", "--resume", "../broken").error


def test_other_data_are_not_gone_on_with(
    data: Path, tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    at_update(monkeypatch, 7, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert (
        regard("train", data, "--out", run, *MODEL, "--epochs", "3", "--batch-tokens", "100", "--patience", "12").code
        == 130
    )
    table(data, spelt(40, seed=2))
    assert "expected the same training data as at the start, found others" in regard("train", "--resume", run).error
    data.unlink()
    assert "cannot be read" in regard("train", "--resume", run).error
    config = json.loads((run / "config.json").read_text())
    del config["training"]["recipe"]
    (run / "config.json").write_text(json.dumps(config))
    assert "lacks the settings of the training ('recipe')" in regard("train", "--resume", run).error
    Seq2SeqRun.load(run)


def test_a_run_is_not_overwritten(data: Path, trained: Path, regard: Command) -> None:
    before = (trained / "model.safetensors").read_bytes()
    assert "expected a new directory, found a run" in regard("train", data, "--out", trained, *QUICK).error
    assert "nothing to resume" in regard("train", "--resume", trained).error
    assert (trained / "model.safetensors").read_bytes() == before


# Predict


def test_predict_answers_line_for_line(trained: Path, regard: Command, stdin: Callable[[bytes], None]) -> None:
    stdin(b"bad\n\ncab\r\nbad")
    assert regard("predict", trained) == (0, "B A D\n\nC A B\nB A D\n", "")


def test_predict_reads_files_plain_and_packed(trained: Path, tmp_path: Path, regard: Command) -> None:
    (tmp_path / "plain").write_bytes(b"bad\ncab\n")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"bad\ncab\n"))
    for name in ("plain", "packed.gz"):
        assert regard("predict", trained, tmp_path / name).out == "B A D\nC A B\n"


def test_predict_gives_several_answers_with_scores(
    trained: Path, regard: Command, stdin: Callable[[bytes], None]
) -> None:
    stdin(b"bad\n\n")
    first, blank = regard("predict", trained, "--n-best", "3", "--scores").out.splitlines()
    assert blank == ""
    columns = first.split("\t")
    assert columns[0] == "B A D"
    assert len(set(columns[::2])) == 3
    scores = [float(score) for score in columns[1::2]]
    assert scores == sorted(scores, reverse=True)
    assert all(re.fullmatch(r"-\d+\.\d{4}", score) for score in columns[1::2])


def test_predict_tells_all_in_json(trained: Path, regard: Command, stdin: Callable[[bytes], None]) -> None:
    stdin("bad\n\nbäd\n".encode())
    known, blank, unknown = map(json.loads, regard("predict", trained, "--json", "--beam", "1").out.splitlines())
    (prediction,) = known.pop("predictions")
    assert known == {"source": "bad", "unseen": 0, "cut": False}
    assert prediction.keys() == {"text", "score", "log_prob", "finished"}
    assert (prediction["text"], prediction["finished"]) == ("B A D", True)
    assert blank == {"source": "", "predictions": [], "unseen": 0, "cut": False}
    assert (unknown["source"], unknown["unseen"]) == ("bäd", 1)


def test_a_length_penalty_favours_long_answers(trained: Path, regard: Command, stdin: Callable[[bytes], None]) -> None:
    lengths = []
    for penalty in ("-20", "20"):
        stdin(b"bad\n")
        lengths.append(len(regard("predict", trained, "--length-penalty", penalty).out))
    assert lengths[0] < lengths[1]


class Typing(io.RawIOBase):
    """Type lines at a terminal, each after the answer to the one before."""

    def __init__(self, lines: list[bytes], waited: Callable[[], str]) -> None:
        self.lines, self.waited, self.seen = lines, waited, []

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        sys.stdout.flush()
        self.seen.append(self.waited())
        line = self.lines.pop(0) if self.lines else b""
        buffer[: len(line)] = line
        return len(line)


def test_predict_answers_at_once_at_a_terminal(
    trained: Path, regard: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing = Typing([b"bad\n", b"cab\n"], lambda: capsys.readouterr().out)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(typing)))
    ended = regard("predict", trained)
    assert ended.code == 0
    assert typing.seen[:3] == ["", "B A D\n", "C A B\n"]


def test_predict_needs_neither_locale_nor_what_trains_and_draws(trained: Path) -> None:
    content = "\ufeffbad\r\nb\u2028d\n\nÄ日\n".encode()
    code = """
import atexit, sys
from regard.cli import main
atexit.register(lambda: print(*(name for name in ("lightning", "matplotlib", "rich") if name in sys.modules)))
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, "predict", str(trained), "-", "--json"],
        input=content,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    )
    assert ended.returncode == 0
    *lines, modules = ended.stdout.decode().split("\n")[:-1]
    assert [json.loads(line)["source"] for line in lines] == ["bad", "b\u2028d", "", "Ä日"]
    assert '"Ä日"' in lines[3]
    assert modules == ""
    assert (
        ended.stderr.decode()
        == "regard: 3 units in 2 lines that did not occur in training, read as unknown: '\\u2028', Ä, 日\n"
    )


# Evaluate


def test_evaluate_reads_standard_input(trained: Path, regard: Command, stdin: Callable[[bytes], None]) -> None:
    stdin(b"bad\tB A D\n")
    ended = regard("evaluate", trained, "-")
    assert (ended.code, ended.err) == (0, "regard: <stdin>: 1 pair\n")
    rows = [line.split()[:2] for line in ended.out.splitlines()]
    assert all(row in rows for row in (["1", "pair"], ["exact", "100.00"], ["WER", "0.00"], ["PER", "0.00"]))


def test_evaluate_counts(trained: Path, tmp_path: Path, regard: Command) -> None:
    pairs = table(tmp_path / "pairs.tsv", [("bad", "B A D"), ("cab", "C A B"), ("dab", "D A D A"), ("abc", "A B E")])
    ended = regard("evaluate", trained, pairs)
    assert ended.code == 0
    rows = [line.split() for line in ended.out.splitlines()]
    assert [row[:3] for row in rows if row and row[0] in ("exact", "WER", "PER")] == [
        ["exact", "50.00", "%"],
        ["WER", "50.00", "%"],
        ["PER", "23.08", "%"],
    ]
    assert "0.00 % to 100.00 %" in ended.out
    assert ended.err.splitlines() == [
        f"regard: {pairs}: 4 pairs",
        f"regard: {pairs}: 1 target unit that did not occur in training, counted as errors: E",
    ]
    found = json.loads(regard("evaluate", trained, pairs, "--json", "--beam", "1").out)
    intervals = found.pop("intervals")
    assert found == {"exact": 0.5, "wer_percent": 50.0, "error_rate": 3 / 13, "count": 4}
    assert all(low <= found[name] <= high for name, (low, high) in intervals.items())


# Look


def test_look_draws_and_answers(trained: Path, regard: Command) -> None:
    (trained / "look.png").unlink(missing_ok=True)
    ended = regard("look", trained, "bad", "cab")
    assert ended == (0, f"bad\tB A D\ncab\tC A B\n{trained / 'look.png'}\n", "")
    assert (trained / "look.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(("name", "start_of_file"), [("a.png", PNG), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_look_writes_where_it_is_told(
    name: str, start_of_file: bytes, trained: Path, tmp_path: Path, regard: Command
) -> None:
    ended = regard("look", trained, "bad", "--out", tmp_path / name, "--n-best", "2")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 3
    assert (tmp_path / name).read_bytes().startswith(start_of_file)


def test_look_takes_what_training_never_saw(trained: Path, tmp_path: Path, regard: Command) -> None:
    ended = regard("look", trained, "日本語", "bäd", "--out", tmp_path / "a.png")
    assert ended.code == 0
    assert [line.split("\t")[0] for line in ended.out.splitlines()[:2]] == ["日本語", "bäd"]
    assert "regard: 4 units in 2 lines that did not occur in training, read as unknown: 日, 本, 語, ä\n" in ended.err


def test_look_needs_attention(data: Path, tmp_path: Path, regard: Command) -> None:
    run = tmp_path / "run"
    ended = regard("train", data, "--out", run, "--score", "none", *QUICK)
    assert ended.code == 0
    assert "attention of these examples" not in ended.out
    assert not (run / "attention.png").exists()
    assert regard("predict", run, data).code == 0
    assert "expected a model with attention, got one without" in regard("look", run, "bad").error


def test_look_at_heads_needs_heads(trained: Path, regard: Command) -> None:
    assert (
        f"--heads: expected a transformer, {trained} has a single head; remove it"
        in regard("look", trained, "bad", "--heads").error
    )


# Faults of the program itself


def test_a_fault_of_ours_is_one_line_and_debug_shows_where(
    trained: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Iterator[object]:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(Seq2SeqRun, "predict_units", fail)
    ended = regard("predict", trained, trained / "config.json")
    assert ended == (1, "", "regard: unexpected error, ZeroDivisionError: two lines; --debug shows where\n")
    for arguments in (["--debug", "predict"], ["predict", "--debug"]):
        with pytest.raises(ZeroDivisionError):
            regard(*arguments, trained, trained / "config.json")


def test_a_text_may_be_called_debug(trained: Path, tmp_path: Path, regard: Command) -> None:
    assert regard("look", trained, "--out", tmp_path / "a.png", "--", "--debug").out.startswith("--debug\t")


@pytest.mark.parametrize("missing", ["typer", "lightning"])
def test_a_missing_extra_is_named(missing: str, data: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from regard.cli import main; main()"
    arguments = ["train", str(data), "--out", str(tmp_path / "run"), *QUICK]
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"regard: error: the commands need {missing}, which is not installed: pip install 'regard[train]'\n"
    )


def test_start_is_the_console_script(trained: Path) -> None:
    process = start("--version")
    out, _ = process.communicate()
    assert (process.returncode, out.decode()) == (0, f"regard {__version__}\n")
