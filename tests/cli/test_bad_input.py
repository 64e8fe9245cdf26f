"""Faulty input to the commands, of every kind: the message and the exit status."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import MODEL, QUICK, Command, spelt, start
from regard.data import pair_rows as reading
from regard.tasks import Seq2SeqRun
from small_runs import at_update, full_disk, rows

pytest_plugins = ["command_fixtures"]
GOOD = "".join(f"{source}\t{target}\n" for source, target in spelt(20))
BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes, name: str = "words.tsv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, to damage."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


# Files of pairs


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("", None, "expected lines of SOURCE TAB TARGET, found an empty file; check the path"),
        ("\n \n", None, "expected lines of SOURCE TAB TARGET, found nothing but 2 blank lines"),
        (GOOD + "bad B A D\n", 21, "found no TAB in 'bad B A D'; separate columns by one TAB"),
        (GOOD + "bad\tB A D\tx\n", 21, "found 2 TABs in .*; keep two columns"),
        (GOOD + "\tB A D\n", 21, "found an empty source"),
        (GOOD + "bad\t \n", 21, "found an empty target"),
        (GOOD.encode() + b"b\xe4d\tB A D\n", 21, "expected UTF-8, found byte 0xe4 at offset 1 .*; convert .* iconv"),
        (GOOD.encode("utf-16"), 1, "expected UTF-8, found UTF-16; convert the file: iconv"),
        (gzip.compress(GOOD.encode())[:-20], None, "intact gzip data .* found damage"),
        (
            "ab\tA B\n" * 3,
            None,
            "at least two different inputs, .* found 1; add examples, or pass a separate file with --dev",
        ),
        ("ab\tA B", None, "at least two different inputs"),
        ("a" * 300 + "\tA\n", 1, "at most 200 units per side, found only 1 longer pair; raise --max-length"),
    ],
)
def test_a_faulty_file_is_named_with_its_line_and_the_remedy(
    content: str | bytes,
    line: int | None,
    message: str,
    write: Any,
    tmp_path: Path,
    regard: Command,
) -> None:
    path = write(content)
    error = regard("train", path, "--out", tmp_path / "run", *QUICK).error
    assert error.startswith(f"{path}:" if line is None else f"{path}:{line}: ")
    assert re.search(message, error)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--dev", "--test"])
def test_a_faulty_dev_or_test_file_is_named_too(
    option: str,
    write: Any,
    tmp_path: Path,
    regard: Command,
) -> None:
    faulty = write(GOOD + "x\n", "faulty.tsv")
    error = regard("train", write(GOOD), option, faulty, "--out", tmp_path / "run", *QUICK).error
    assert error.startswith(f"{faulty}:21: expected SOURCE TAB TARGET, found no TAB")


@pytest.mark.parametrize("name", ["missing.tsv", "."])
def test_a_file_that_is_none(name: str, trained: Path, regard: Command) -> None:
    for arguments in (["train", name], ["predict", trained, name], ["evaluate", trained, name]):
        assert re.match(rf"{re.escape(name)}: cannot be read \(.*\); check the path", regard(*arguments).error)


def test_what_looks_odd_and_is_not(write: Any, tmp_path: Path, regard: Command) -> None:
    odd = '\ufeff"a\tA "\r\n\r\na\u2028b\tA \u2028 B\r\n \nquo"te\tQ\r\n'
    run = tmp_path / "run"
    ended = regard("train", write(GOOD + "\n" + odd.removeprefix("\ufeff")), "--out", run, *QUICK)
    assert ended.code == 0
    assert "words.tsv: 23 pairs\n" in ended.out
    assert "words.tsv: 3 blank lines skipped" in ended.out
    source, target = (set(json.loads((run / f"{side}.vocabulary.json").read_text())) for side in ("source", "target"))
    assert source >= {"a"}
    assert not {"\ufeff", "\r", "\n"} & (source | target)
    ended = regard("train", write(odd), "--dev", write(GOOD, "dev.tsv"), "--out", tmp_path / "odd", *QUICK)
    assert ended.code == 0
    vocabulary = set(json.loads((tmp_path / "odd" / "source.vocabulary.json").read_text()))
    assert vocabulary == set('"a\u2028bquote')


def test_duplicates_contradictions_and_long_lines_are_counted(
    write: Any,
    tmp_path: Path,
    regard: Command,
) -> None:
    long = "a" * 100_000 + "\tA\n"
    first, second = GOOD.splitlines(keepends=True)[:2]
    path = write(GOOD + first + first + second.split("\t")[0] + "\tD D D D\n" + long + long)
    ended = regard("train", path, "--out", tmp_path / "run", *QUICK)
    assert ended.code == 0
    assert f"{path}: 23 pairs; 2 duplicates, 1 source with more than one target\n" in ended.out
    assert "2 pairs of more than 200 units left out (first: line 24); --max-length raises the limit" in ended.out
    assert re.search(r"\d of 23 examples held out to select the best model \(no --dev\)", ended.out)


def test_one_example_trains_when_another_file_chooses(
    write: Any,
    tmp_path: Path,
    regard: Command,
) -> None:
    one = write("ab\tA B C\n")
    ended = regard("train", one, "--dev", one, "--out", tmp_path / "run", *QUICK)
    assert ended.code == 0
    assert "training for 1 epoch: 1 pair, " in ended.out
    assert regard("look", tmp_path / "run", "ab").code == 0


# Lines to predict


def test_a_byte_that_is_not_utf8_is_an_error_of_its_line(
    trained: Path,
    regard: Command,
    stdin: Callable[[bytes], None],
) -> None:
    stdin(b"bad\nb\xe4d\n")
    ended = regard("predict", trained)
    assert ended.error.startswith("<stdin>:2: expected UTF-8, found byte 0xe4 at offset 1 of the line; convert")


def test_a_line_of_100_000_characters_is_cut_with_a_word(
    trained: Path,
    regard: Command,
    stdin: Callable[[bytes], None],
) -> None:
    stdin(b"bad\n" + b"a" * 100_000 + b"\nbad\n")
    ended = regard("predict", trained, "--beam", "1")
    assert ended.code == 0
    assert ended.out.splitlines()[::2] == ["B A D", "B A D"]
    assert "regard: 1 line cut to 200 units, the maximum of the model\n" in ended.err


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_nothing_to_predict(
    content: bytes,
    trained: Path,
    regard: Command,
    stdin: Callable[[bytes], None],
) -> None:
    stdin(content)
    ended = regard("predict", trained)
    assert (ended.code, ended.out.strip(), ended.err) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "0"], "'--beam': expected a number of at least 1, got 0"),
        (["--n-best", "0"], "'--n-best': expected a number of at least 1, got 0"),
        (["--length-penalty", "nan"], "'--length-penalty': expected a finite number, got nan"),
    ],
)
def test_a_search_that_makes_no_sense_is_wrong_usage(
    options: list[str],
    message: str,
    trained: Path,
    regard: Command,
) -> None:
    for command, *rest in (["predict"], ["look", "bad"]):
        ended = regard(command, trained, *rest, *options)
        assert ended.code == 2
        assert message in ended.err


def test_more_answers_than_the_beam_holds(
    trained: Path,
    regard: Command,
    stdin: Callable[[bytes], None],
) -> None:
    stdin(b"bad\n")
    error = regard("predict", trained, "--beam", "2", "--n-best", "3").error
    assert error == "n_best: expected a number from 1 to the beam width 2, got 3; raise beam or lower n_best"
    error = regard("look", trained, "bad", "--n-best", "6").error
    assert error.startswith("n_best: expected a number from 1 to the beam width 5, got 6")


# Texts to look at


@pytest.mark.parametrize("text", ["", "ab"])
def test_a_text_without_units_is_said_before_anything_is_drawn(
    text: str,
    trained: Path,
    tmp_path: Path,
    regard: Command,
) -> None:
    ended = regard("look", trained, "bad", text, "", "--out", tmp_path / "a.png")
    assert ended.error == "expected a text with at least one unit (characters), got ''; pass another text"
    assert ended.out == ""
    assert not (tmp_path / "a.png").exists()


def test_a_long_text_is_cut_with_a_word_and_drawn(
    trained: Path,
    tmp_path: Path,
    regard: Command,
) -> None:
    ended = regard("look", trained, "abcd" * 100, "--beam", "1", "--out", tmp_path / "a.png")
    assert ended.code == 0
    assert "regard: 1 line cut to 200 units, the maximum of the model\n" in ended.err
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_text_with_bytes_that_are_not_utf8(
    trained: Path,
    tmp_path: Path,
    regard: Command,
) -> None:
    ended = regard("look", trained, os.fsdecode(b"b\xe4d"), "--out", tmp_path / "a.png")
    assert ended.code == 0
    assert "1 unit in 1 line that did not occur in training" in ended.err


# Run directories


def damage(directory: Path, name: str, content: str | bytes | None) -> None:
    path = directory / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "expected a run directory, found no config.json in it"),
        ("config.json", "{", "config.json is damaged"),
        ("config.json", "[]", "found one without a format number"),
        ("config.json", b"\xff", "config.json is damaged"),
        ("config.json", '{"format": 1}', "the run is damaged"),
        ("config.json", '{"format": 99, "regard": "7.0"}', "written by a newer regard .*7.0.*; upgrade with: pip"),
        ("source.vocabulary.json", None, "the run is damaged"),
        ("source.vocabulary.json", '["a"]', "the run is damaged"),
        ("target.vocabulary.json", '["b", "a"]', "the run is damaged"),
        ("model.safetensors", None, "the run is damaged .*model.safetensors"),
        ("model.safetensors", b"", "the run is damaged"),
        ("model.safetensors", b"\x08" + b"\0" * 7 + b"{}      ", "the run is damaged"),
    ],
)
def test_a_damaged_run_is_said(
    name: str,
    content: str | bytes | None,
    message: str,
    copy: Path,
    write: Any,
    regard: Command,
) -> None:
    damage(copy, name, content)
    words = write(GOOD)
    for arguments in (["predict", copy, words], ["evaluate", copy, words], ["look", copy, "bad"]):
        error = regard(*arguments).error
        assert error.startswith(f"{copy}: ")
        assert re.search(message, error)


def test_a_run_that_is_not_there(tmp_path: Path, regard: Command) -> None:
    for arguments in (["predict", "nowhere"], ["look", "nowhere", "x"], ["train", "--resume", "nowhere"]):
        assert "nowhere: expected a run directory, found no such folder" in regard(*arguments).error


# Places to write


@pytest.mark.parametrize("below", ["taken", "taken/below", "/proc/regard/run"])
def test_a_folder_that_cannot_be_made(
    below: str,
    write: Any,
    tmp_path: Path,
    regard: Command,
) -> None:
    (tmp_path / "taken").write_text("a file")
    error = regard("train", write(GOOD), "--out", tmp_path / below, *QUICK).error
    assert re.match(rf"cannot write {re.escape(str(tmp_path / below))} \(.*\); .* with --out", error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(write: Any, tmp_path: Path, regard: Command) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "Permission denied" in regard("train", write(GOOD), "--out", tmp_path / "locked" / "run", *QUICK).error


@pytest.mark.parametrize("name", ["missing/a.png", "a.doc", "a", "."])
def test_a_picture_that_cannot_be_written(
    name: str,
    trained: Path,
    tmp_path: Path,
    regard: Command,
) -> None:
    assert re.search(
        r"cannot write|a name that ends in", regard("look", trained, "bad", "--out", tmp_path / name).error
    )


@pytest.mark.parametrize("room", [100, 20_000, 100_000])
def test_a_full_disk_is_one_line(room: int, write: Any, tmp_path: Path, regard: Command) -> None:
    words, run = write(GOOD), tmp_path / "run"
    with full_disk(room):
        error = regard("train", words, "--out", run, *MODEL, "--epochs", "2").error
    assert re.match(r"cannot write .*run/\S+ \(File too large\); free some space", error)
    assert not list(run.glob(".*"))
    assert (run / "model.safetensors").exists() == (room == 100_000)
    if room == 100_000:
        Seq2SeqRun.load(run)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_standard_output_on_a_full_disk(trained: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = start("--version", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err == b"regard: error: cannot read or write the output (No space left on device)\n"


def test_a_reader_that_has_enough(trained: Path, write: Any) -> None:
    with start("predict", trained, write("bad\n" * 20_000), "--beam", "1") as process:
        assert process.stdout.readline() == b"B A D\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


# Signals


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_amid_an_import_cannot_be_swallowed(number: int, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import os, time\n"
        "try:\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(1)\n"
        "except BaseException:\n"
        "    pass\n"
        "raise SystemExit('went on')\n"
    )
    process = start("predict", tmp_path, path=tmp_path)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"regard: interrupted\n")


def stop_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    """Send the signal while a function is running."""
    whole = getattr(owner, name)

    def stopped(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), number)
        time.sleep(0.1)
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, name, stopped)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_while_data_are_read(
    number: int,
    write: Any,
    tmp_path: Path,
    regard: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_in(monkeypatch, reading, "_cells", number)
    ended = regard("train", write(GOOD), "--out", tmp_path / "run", *QUICK)
    assert ended == (130, "", "regard: interrupted\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize(("update", "scored"), [(0, 1), (1, 1), (16, 2)])
def test_a_signal_in_training_keeps_the_best_model(
    update: int,
    scored: int,
    number: int,
    write: Any,
    tmp_path: Path,
    regard: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, run = write(GOOD), tmp_path / "run"
    at_update(monkeypatch, update, lambda _: os.kill(os.getpid(), number))
    ended = regard("train", words, "--out", run, *MODEL, "--epochs", "20", "--batch-tokens", "60")
    assert (ended.code, ended.err) == (130, "")
    assert f"best model in {run}: dev exact" in ended.out
    assert re.search(r"^stopped on request after \d+ s; the best model so far is saved", ended.out, re.MULTILINE)
    assert len(rows(run)) >= scored
    monkeypatch.undo()
    assert regard("evaluate", run, words).code == 0


def test_a_second_signal_in_training_ends_at_once(
    write: Any,
    tmp_path: Path,
    regard: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, run = write(GOOD), tmp_path / "run"

    def twice(_: object) -> None:
        for number in BOTH:
            os.kill(os.getpid(), number)
            time.sleep(0.1)
        raise AssertionError("still here")

    at_update(monkeypatch, 9, twice)
    ended = regard("train", words, "--out", run, *MODEL, "--epochs", "20", "--batch-tokens", "60")
    assert (ended.code, ended.err) == (130, "regard: interrupted\n")
    Seq2SeqRun.load(run)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_after_training_leaves_a_whole_run(
    number: int,
    write: Any,
    tmp_path: Path,
    regard: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, run = write(GOOD), tmp_path / "run"
    stop_in(monkeypatch, sys.modules["regard.cli.train_run"], "_report", number)
    assert regard("train", words, "--out", run, *QUICK).err == "regard: interrupted\n"
    monkeypatch.undo()
    assert regard("evaluate", run, words).code == 0


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize(("command", "rest"), [("predict", []), ("evaluate", []), ("look", ["bad"])])
def test_a_signal_while_answers_are_sought(
    command: str,
    rest: list[str],
    number: int,
    write: Any,
    trained: Path,
    regard: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_in(monkeypatch, Seq2SeqRun, "_predict_batch", number)
    ended = regard(command, trained, *(rest or [write(GOOD)]))
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[-1] == "regard: interrupted"
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_while_it_waits_for_input(number: int, trained: Path) -> None:
    process = start("predict", trained)
    process.stdin.write(b"bad\n")
    process.stdin.flush()
    wait_until_read(process)
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 5
    assert (process.returncode, out, err) == (130, b"", b"regard: interrupted\n")


def wait_until_read(process: subprocess.Popen[bytes]) -> None:
    """Wait until the pipe to the process is empty, which means that it reads."""
    import fcntl
    import struct
    import termios

    for _ in range(600):
        left = fcntl.ioctl(process.stdin, termios.FIONREAD, b"\0" * 4)
        if struct.unpack("i", left) == (0,):
            return
        time.sleep(0.05)
    raise AssertionError("nothing was read")


def test_a_real_process_in_training_ends_with_a_model(write: Any, tmp_path: Path, regard: Command) -> None:
    words, run = write(GOOD), tmp_path / "run"
    process = start("train", words, "--out", run, *MODEL, "--minutes", "0.5")
    for line in process.stdout:
        if line.endswith(b"  best\n"):
            break
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 10
    assert (process.returncode, err) == (130, b"")
    assert b"the best model so far is saved" in out
    assert regard("evaluate", run, words).code == 0
