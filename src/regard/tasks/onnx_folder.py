"""A run as a folder for other runtimes: its graphs, and what those who load them need to know.

encoder.onnx              reads sources
decoder.onnx              makes one step of the decoder
config.json               sizes, units, and how long sources and answers may be
source.vocabulary.json    the units of each side; unit i has id i + 4
target.vocabulary.json
source.tokenizer.json     where units are subwords, what cuts a text into them
README.md                 what goes in and comes out, and an example
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard._files import disk_errors
from regard.data.pairs import Units
from regard.errors import RunError
from regard.models.onnx_graphs import Graph, dtype_of, graphs, largest_error, write_graph
from regard.tasks.seq2seq import Seq2SeqRun

__all__ = ["FILES", "TOLERANCE", "Exported", "export_run"]

FILES = ("encoder.onnx", "decoder.onnx", "config.json", "source.vocabulary.json", "target.vocabulary.json", "README.md")
_SOMETIMES = ("source.tokenizer.json", "target.tokenizer.json")
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """What was written: the size of each graph in bytes, and by how much its numbers differ from the model's."""

    sizes: dict[str, int]
    error: float


def export_run(run: Seq2SeqRun, folder: Path) -> Exported:
    """Write a folder with the graphs of a run, once onnxruntime has shown that they give what the model gives.

    The folder appears in one step, with all that belongs in it; an export that is there already is replaced.

    Errors: `RunError` when the folder holds other files or cannot be written, or when a graph gives numbers that differ
    from the model's by more than ``TOLERANCE``.
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
        raise RunError(f"{folder}: this folder is replaced as a whole, so you cannot be in it; choose another --out")
    there = {path.name for path in folder.iterdir()}
    others = sorted(there - {*FILES, *_SOMETIMES}) or sorted(there if there and "encoder.onnx" not in there else ())
    if others:
        raise RunError(f"{folder}: the folder holds other files ({others[0]}, ...); choose another --out")


def _put(temporary: Path, folder: Path) -> None:
    """Give the folder its name; what had that name is set aside until then."""
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
    found = graphs(run.model)
    for name, graph in found.items():
        write_graph(graph, folder / f"{name}.onnx")
    error = largest_error(run.model, folder / "encoder.onnx", folder / "decoder.onnx")
    if error > TOLERANCE:
        raise RunError(
            f"expected the graphs to differ from the model by {TOLERANCE:g} at most, got {error:.2g}; nothing is "
            "written: this is a fault of ours or of onnxruntime"
        )
    texts = {
        # Not how it was trained, which may name files of the one who did
        "config.json": json.dumps(run.description(), indent=2) + "\n",
        **run.files(),
        "README.md": _readme(run, found),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return Exported({f"{name}.onnx": (folder / f"{name}.onnx").stat().st_size for name in found}, error)


def _readme(run: Seq2SeqRun, found: Mapping[str, Graph]) -> str:
    encoder, decoder = found["encoder"], found["decoder"]
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
    """What the README says of texts: how they are cut into units, and put together again."""
    said = f"Sources are in {run.source_units}, targets in {run.target_units}."
    if "features" in run.columns:
        said += " Each feature is a unit that begins with a TAB; they stand before the units of the source."
    before, join = "", "''.join(found).removeprefix(' ')"
    if run.normal != "none":
        before += f"    text = unicodedata.normalize({run.normal.upper()!r}, text)\n"
    if isinstance(run.source_units, Units):
        separator = run.source_units.separator
        split = f"[unit for unit in text.split({separator!r}) if unit]" if separator else "list(text)"
    else:
        before += "    text = ' ' + text\n"
        split = "[text[a:b] for a, b in Tokenizer.from_file('source.tokenizer.json').encode(text).offsets]"
    if isinstance(run.target_units, Units):
        join = f"{run.target_units.separator!r}.join(found)"
    if run.normal == "nfd":
        join = f"unicodedata.normalize('NFC', {join})"
    imports = "import unicodedata\n" * (run.normal != "none"), "from tokenizers import Tokenizer\n" * ("Token" in split)
    return {"units": said, "before": before, "split": split, "join": join, "imports": "".join(imports)}


def _table(tensors: Mapping[str, tuple[str | int, ...]]) -> str:
    rows = ["| name | type | shape |", "|---|---|---|"]
    for name, shape in tensors.items():
        kind = str(dtype_of(name)).removeprefix("torch.")
        rows.append(f"| `{name}` | {kind} | ({', '.join(map(str, shape))}{',' * (len(shape) == 1)}) |")
    return "\n".join(rows)


_README = """\
# A sequence-to-sequence model as ONNX graphs

`encoder.onnx` reads sources; `decoder.onnx` makes one step, from the last tokens to the logits of the next. Sizes that
the tables name are free.

<units> Ids are 0 for padding, 1 for an unknown unit, 2 for the begin of a target, 3 for its end, and i + 4 for unit i
of a vocabulary, counted from 0.

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

Sources of one batch are filled up to the longest with 0; `lengths` says how many ids each has, 1 or more.

<encoder_inputs>

What it gives goes to the decoder, under the same names: the memory, which stays as it is, and the state before the
first step.

<encoder_outputs>

## decoder.onnx

The first `tokens` are 2, the begin of a target. After a step, `next_state_...` takes the place of `state_...`.

<decoder_inputs>

<decoder_outputs>

Several hypotheses of a source stand side by side on the second axis, of `tokens` and of every `state_...`. To begin
with K of them, repeat the state: `state.repeat(K, 1)`; to go on from chosen ones, `parents` of shape (batch, K):
`state[np.arange(batch)[:, None], parents]`. The memory is as it was.
<axes>"""

_AXES = """
The last axes of keys and values are (layers, heads, places, features of a head). The state of a target that has not
begun has no places; each step adds one.
"""
