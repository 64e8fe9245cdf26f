"""`regard export`: a model as files that other runtimes load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from regard.cli.options import RunDirectory
from regard.errors import ArgumentError


def export(
    run: RunDirectory,
    to: Annotated[str, Option(metavar="FORMAT", help="format of the files: onnx")] = "onnx",
    out: Annotated[Path | None, Option(metavar="FOLDER", help="folder to write to  [default: RUN/onnx]")] = None,
) -> None:
    """Write a model for other runtimes.

    Writes a folder with the model as ONNX graphs, its vocabularies, and a README that explains how to use them. The
    graphs are first run and compared with the model.
    """
    if to != "onnx":
        raise ArgumentError(f"--to: expected onnx, the only format, got {to!r}")
    from regard.tasks.onnx_folder import export_run
    from regard.tasks.registry import open_run
    from regard.tasks.seq2seq import Seq2SeqRun

    opened, folder = open_run(run), out or run / to
    if not isinstance(opened, Seq2SeqRun):
        raise ArgumentError(
            f"{run}: expected a `seq2seq` run, the only kind that can be exported, got a `{opened.task}` run"
        )
    exported = export_run(opened, folder)
    for name, size in exported.sizes.items():
        print(f"{folder / name}: {size / 1e6:.2f} MB")
    print(f"outputs of onnxruntime differ from those of the model by at most {exported.error:.1e}")
    print(f"how to use them: {folder / 'README.md'}")
