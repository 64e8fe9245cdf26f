"""A run exported to a folder for other runtimes: ONNX graphs, vocabularies, and a README.

encoder.onnx              reads sources
decoder.onnx              one step of the decoder
config.json               sizes, units, and the maximum lengths of sources and answers
source.vocabulary.json    the units of each side; unit i has id i + 4
target.vocabulary.json
source.tokenizer.json     the subword tokenizer, if units are subwords
README.md                 inputs, outputs and an example
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard._files import disk_errors
from regard._wording import first_few
from regard.errors import RunError
from regard.models.onnx_graphs import Graph, dtype_of, graphs, largest_error, write_graph
from regard.tasks.seq2seq import Seq2SeqRun

__all__ = ["FILES", "TOLERANCE", "Exported", "export_run"]

FILES = ("encoder.onnx", "decoder.onnx", "config.json", "source.vocabulary.json", "target.vocabulary.json", "README.md")
_OPTIONAL_FILES = ("source.tokenizer.json", "target.tokenizer.json")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """The outcome of an export: the size of each graph in bytes, and its largest difference from the model."""

    sizes: dict[str, int]
    error: float


def export_run(run: Seq2SeqRun, folder: Path) -> Exported:
    """Write a folder with the graphs of a run, after onnxruntime has reproduced the outputs of the model with them.

    The complete folder appears in one step; an earlier export in its place is replaced.

    Errors: `RunError` if the folder contains other files or cannot be written, or if the outputs of a graph differ from
    those of the model by more than ``TOLERANCE``.
    """
    _check_free(folder)
    folder = Path(os.path.realpath(folder))
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    with disk_errors(folder):
        try:
            temporary.mkdir(parents=True)
            exported = _fill(temporary, run)
            _check_free(folder)  # an export takes a while
            _put(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return exported


def _check_free(folder: Path) -> None:
    if not folder.is_dir():
        if os.path.lexists(folder):
            raise RunError(f"{folder}: expected a folder, got a file; choose another --out")
        return
    if folder.samefile(os.curdir):
        raise RunError(f"{folder}: the export would replace the current folder; choose another --out")
    there = {path.name for path in folder.iterdir()}
    others = sorted(there - {*FILES, *_OPTIONAL_FILES}) or sorted(
        there if there and "encoder.onnx" not in there else ()
    )
    if others:
        raise RunError(
            f"{folder}: expected an empty folder or an earlier export, found {first_few(others)}; choose another --out"
        )


def _put(temporary: Path, folder: Path) -> None:
    """Rename the folder; an earlier one of its name is set aside until then."""
    aside = temporary.with_name(f"{temporary.name}.before")
    if folder.is_dir():
        folder.rename(aside)
    try:
        temporary.rename(folder)
    except OSError:
        if aside.is_dir():
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _fill(folder: Path, run: Seq2SeqRun) -> Exported:
    exported = graphs(run.model)
    for name, graph in exported.items():
        write_graph(graph, folder / f"{name}.onnx")
    error = largest_error(run.model, folder / "encoder.onnx", folder / "decoder.onnx")
    if error > TOLERANCE:
        raise RunError(
            f"expected the graphs to differ from the model by at most {TOLERANCE:g}, got {error:.2g}; nothing was "
            "written; please report this error"
        )
    texts = {
        # Without the entries about training, which may name private files
        "config.json": json.dumps(run.description(), indent=2) + "\n",
        **run.files(),
        "README.md": _readme(run, exported),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return Exported({f"{name}.onnx": (folder / f"{name}.onnx").stat().st_size for name in exported}, error)


def _readme(run: Seq2SeqRun, exported: Mapping[str, Graph]) -> str:
    encoder, decoder = exported["encoder"], exported["decoder"]
    names = {
        "encoder_inputs": _table(encoder.inputs),
        "encoder_outputs": _table(encoder.outputs),
        "decoder_inputs": _table(decoder.inputs),
        "decoder_outputs": _table(decoder.outputs),
        **_texts(run),
        "axes": _AXES if run.model.config.kind == "transformer" else "",
    }
    text = _README
    for name, value in names.items():
        text = text.replace(f"<{name}>", value)
    return text


def _texts(run: Seq2SeqRun) -> dict[str, str]:
    """Return the parts of the README on splitting texts into units and joining units."""
    sides = f"Sources are {run.source_tokenizer}, targets are {run.target_tokenizer}."
    if "features" in run.columns:
        sides += " Each feature is a unit that begins with a TAB, before the units of the source."
    before, join = "", "''.join(found).removeprefix(' ')"
    if run.unicode_form != "none":
        before += f"    text = unicodedata.normalize({run.unicode_form.upper()!r}, text)\n"
    separator = run.source_tokenizer.separator
    if separator is None:
        before += "    text = ' ' + text\n"
        split = "[text[a:b] for a, b in Tokenizer.from_file('source.tokenizer.json').encode(text).offsets]"
    else:
        split = f"[unit for unit in text.split({separator!r}) if unit]" if separator else "list(text)"
    if run.target_tokenizer.separator is not None:
        join = f"{run.target_tokenizer.separator!r}.join(found)"
    if run.unicode_form == "nfd":
        join = f"unicodedata.normalize('NFC', {join})"
    imports = (
        "import unicodedata\n" * (run.unicode_form != "none"),
        "from tokenizers import Tokenizer\n" * ("Token" in split),
    )
    return {"units": sides, "before": before, "split": split, "join": join, "imports": "".join(imports)}


def _table(tensors: Mapping[str, tuple[str | int, ...]]) -> str:
    rows = ["| name | type | shape |", "|---|---|---|"]
    for name, shape in tensors.items():
        kind = str(dtype_of(name)).removeprefix("torch.")
        rows.append(f"| `{name}` | {kind} | ({', '.join(map(str, shape))}{',' * (len(shape) == 1)}) |")
    return "\n".join(rows)


_README = """\
# A sequence-to-sequence model as ONNX graphs

`encoder.onnx` encodes sources; `decoder.onnx` computes one step, from the last tokens to the logits of the next. Named
sizes in the tables are dynamic.

<units> Ids are 0 for padding, 1 for an unknown unit, 2 for the beginning of a target, 3 for its end, and i + 4 for unit
i of a vocabulary, counted from 0.

```python
import json
from pathlib import Path
import numpy as np
import onnxruntime
<imports>
encoder, decoder = (onnxruntime.InferenceSession(f"{name}.onnx") for name in ("encoder", "decoder"))
names = ("config.json", "source.vocabulary.json", "target.vocabulary.json")
config, source, target = (json.loads(Path(name).read_text(encoding="utf-8")) for name in names)

def answer(text):
<before>    units = <split>[: config["max_length"]]
    ids = np.array([[source.index(unit) + 4 if unit in source else 1 for unit in units]])
    read = encoder.run(None, {"source": ids, "lengths": np.array([len(units)])})
    feeds, token, found = dict(zip([output.name for output in encoder.get_outputs()], read)), 2, []
    for _ in range(10 + int(np.ceil(np.float32(len(units)) * np.float32(config["growth"])))):
        logits, *state = decoder.run(None, {"tokens": np.array([[token]]), **feeds})
        feeds.update(zip([name for name in feeds if name.startswith("state")], state))
        token = 3 + int(logits[0, 0, 3:].argmax())  # the best unit, or the end
        if token == 3:
            break
        found.append(target[token - 4])
    return <join>
```

## encoder.onnx

Pad the sources of a batch with 0 at the end; `lengths` are their numbers of ids, at least 1.

<encoder_inputs>

Pass the outputs to the decoder under the same names: the memory, which never changes, and the state before the first
step.

<encoder_outputs>

## decoder.onnx

The first `tokens` are 2, the beginning of a target. After a step, pass `next_state_...` as `state_...`.

<decoder_inputs>

<decoder_outputs>

Hypotheses of one source lie along the second axis of `tokens` and of every `state_...`. To begin with K of them, repeat
the state: `state.repeat(K, 1)`; to continue from chosen ones, select their `parents` of shape (batch, K):
`state[np.arange(batch)[:, None], parents]`. The memory stays the same.
<axes>"""

_AXES = """
The last axes of keys and values are (layers, heads, positions, features of a head). Before the first step the state has
no positions; each step adds one.
"""
