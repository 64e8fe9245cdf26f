"""Exported models: graphs that give the model's numbers at any size, and a folder that tells how to use them."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch

from commands import Command, spelt
from regard._symbols import EOS, UNK
from regard.models import RecurrentConfig, RecurrentSeq2Seq, TransformerSeq2Seq
from regard.models.onnx_graphs import graphs, largest_error, write_graph
from regard.positions import ALiBi, Rotary, Shaw, T5Bias
from regard.tasks import Search, Seq2SeqRun, export_run
from regard.tasks import onnx_folder as export
from regard.tasks.onnx_folder import FILES
from small_runs import backwards, new_run, short_training

pytest_plugins = ["command_fixtures"]
SOURCES, TARGETS, BOUND = 11, 13, 1e-5


def drawn(model: RecurrentSeq2Seq | TransformerSeq2Seq) -> None:
    """Weights that are large enough for each to be felt."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)


def operators(path: Path) -> set[str]:
    """The domains of a graph's operators; those of ONNX itself have none."""
    found = onnx.load(path)
    onnx.checker.check_model(found, full_check=True)
    return {node.domain for node in found.graph.node}


def unfelt(model: RecurrentSeq2Seq | TransformerSeq2Seq, folder: Path, part: str) -> list[str]:
    """The parameters of a part that can change in the model without a difference to the graphs."""
    names = []
    for name, parameter in model.named_parameters():
        if part not in name:
            continue
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter += 0.3 * torch.randn_like(parameter)
        if largest_error(model, folder / "encoder.onnx", folder / "decoder.onnx") < 10 * BOUND:
            names.append(name)
        with torch.no_grad():
            parameter.copy_(before)
    return names


@pytest.mark.parametrize(
    ("cell", "score", "feeding", "layers"), [("lstm", "scaled_dot", False, 2), ("gru", None, True, 1)]
)
def test_a_recurrent_model_and_its_graphs(
    cell: str, score: str | None, feeding: bool, layers: int, tmp_path: Path
) -> None:
    config = RecurrentConfig(SOURCES, TARGETS, 5, 6, layers, cell, score, input_feeding=feeding)
    model = RecurrentSeq2Seq(config)
    drawn(model)
    files = tmp_path / "encoder.onnx", tmp_path / "decoder.onnx"
    for graph, file in zip(graphs(model).values(), files, strict=True):
        write_graph(graph, file)
    assert model.training  # it is left as it was
    assert largest_error(model, *files) < BOUND
    assert [operators(path) for path in files] == [{""}, {""}]
    assert unfelt(model, tmp_path, "encoder") == []


def example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The function that the README shows."""
    monkeypatch.chdir(folder)
    (code,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Callable[[str], str]] = {}
    exec(code, names)  # type: ignore[arg-type]
    return names["answer"]


def test_export_makes_a_folder_whose_example_answers_as_predict_does(
    trained: Path,
    tmp_path: Path,
    regard: Command,
    stdin: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "deep" / "folder"
    ended = regard("export", trained, "--to", "onnx", "--out", folder)
    assert (ended.code, ended.err) == (0, "")
    *sizes, same, readme = ended.out.splitlines()
    assert [line.split(": ")[0] for line in sizes] == [str(folder / "encoder.onnx"), str(folder / "decoder.onnx")]
    assert all(re.fullmatch(r".*: 0\.\d\d MB", line) for line in sizes)
    assert float(same.split()[-1]) < BOUND
    assert readme == f"how to use them: {folder / 'README.md'}"
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    for name in FILES:  # nothing of the machine that made them
        assert not any(part in (folder / name).read_bytes() for part in (b"site-packages", b"/export.py", b".tsv"))
    assert set(json.loads((folder / "config.json").read_text())) >= {"model", "source_units", "max_length", "growth"}
    words = [*(word for word, _ in spelt(60, seed=5)), "axb", "d"]
    stdin("\n".join(words).encode())
    answer = example(folder, monkeypatch)
    assert [answer(word) for word in words] == regard("predict", trained, "--beam", "1").out.splitlines()
    assert answer("bad") == "B A D"


def test_a_transformer_with_all_positions_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"encoder_layers": 2, "positions": "learned", "norm_first": False}
    run = new_run(tmp_path / "run", backwards(), short_training(), kind="transformer", **sizes)
    # One model for all encodings: an export takes long
    encodings = [T5Bias(2, buckets=8, max_distance=9), ALiBi(2)], [Rotary(8), Shaw(8, 3)]
    for side, others in zip((run.model.encoder, run.model.decoder), encodings, strict=True):
        for block, encoding in zip(side.layers, others, strict=True):
            block.self_attn.positions = encoding
    drawn(run.model.eval())
    with torch.no_grad():
        weight = run.model.target_embedding.weight
        weight[EOS] = 0  # which makes answers longer
        weight[UNK] = 2 * weight[7]  # never an answer, though it would be the best in place of d
    folder = tmp_path / "onnx"
    assert export_run(run, folder).error < BOUND
    assert [operators(folder / f"{name}.onnx") for name in ("encoder", "decoder")] == [{""}, {""}]
    assert unfelt(run.model, folder, "positions") == []
    words = ["abc", "f", "feedbacc", "xyz", "a" * 30]
    found = [answer.predictions[0].text for answer in run.predict(words, Search(beam=1))]
    assert [example(folder, monkeypatch)(word) for word in words] == found
    assert len(set(found)) > 2


# When it cannot be


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that take no time to write, and are right."""
    monkeypatch.setattr(export, "write_graph", lambda graph, path: path.write_bytes(b"new"))
    monkeypatch.setattr(export, "largest_error", lambda *_: 0.0)


@pytest.mark.usefixtures("quick")
def test_an_export_is_replaced_and_other_files_are_not(trained: Path, tmp_path: Path, regard: Command) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert regard("export", trained, "--out", folder).code == 0
    (folder / "encoder.onnx").write_bytes(b"old")
    (folder / "README.md").unlink()
    assert regard("export", trained, "--out", folder).code == 0
    assert (folder / "encoder.onnx").read_bytes() == b"new"
    assert (folder / "README.md").exists()
    (folder / "mine.txt").touch()
    assert "an earlier export, found mine.txt" in regard("export", trained, "--out", folder).error
    assert "an earlier export, found attention.png" in regard("export", trained, "--out", trained).error
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_text("mine")
    assert "an earlier export, found config.json" in regard("export", trained, "--out", alone).error
    assert "expected a folder, got a file" in regard("export", trained, "--out", alone / "config.json").error
    assert (alone / "config.json").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "alone"}


@pytest.mark.usefixtures("quick")
def test_where_one_is_cannot_be_replaced(
    trained: Path, tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "would replace the current folder; choose another --out" in regard("export", trained, "--out", ".").error


@pytest.mark.usefixtures("quick")
def test_left_out_the_folder_is_in_the_run(trained: Path, tmp_path: Path, regard: Command) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in trained.iterdir():
        (run / path.name).symlink_to(path)
    assert regard("export", run).code == 0
    assert {path.name for path in (run / "onnx").iterdir()} == set(FILES)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("fault", ["full", "wrong", "interrupted"])
def test_nothing_half_written_is_left(
    fault: str, there: bool, trained: Path, tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    if there:
        assert regard("export", trained, "--out", folder).code == 0
        (folder / "encoder.onnx").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    if fault == "wrong":
        monkeypatch.setattr(export, "largest_error", lambda *_: 2e-4)
    else:
        monkeypatch.setattr(export, "largest_error", full if fault == "full" else interrupted)
    if fault == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            export_run(Seq2SeqRun.load(trained), folder)
    else:
        expected = {"full": f"cannot write {folder} (No space left", "wrong": "by at most 0.0001, got 0.0002"}
        assert expected[fault] in regard("export", trained, "--out", folder).error
    assert [path.name for path in tmp_path.iterdir()] == ["folder"] * there
    if there:
        assert (folder / "encoder.onnx").read_bytes() == b"old"


def test_what_cannot_be_exported_is_told_in_a_line(trained: Path, tmp_path: Path, regard: Command) -> None:
    assert regard("export", trained, "--to", "coreml").error == (
        "--to: expected onnx, the only format, got 'coreml'"
    )
    assert "expected a run directory, found no config.json in it" in regard("export", tmp_path).error


def test_the_extra_is_named_when_it_is_missing(trained: Path) -> None:
    code = "import sys; sys.modules['onnxscript'] = None; from regard.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, "export", str(trained)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (
        1,
        "regard: error: export needs onnxscript, which is not installed: pip install 'regard[export]'\n",
    )
    assert not (trained / "onnx").exists()


def test_help_fits_a_terminal(regard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = regard("export", "--help")
    assert ended.out.startswith("Usage: regard export [OPTIONS]")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "export    Write a model for other runtimes." in regard("--help").out
