"""Examples on disk: the same as in a list, in little memory."""

from __future__ import annotations

import contextlib
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("datasets", reason="the extra regard[large] is not installed")

import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from commands import Command, spelt
from regard.data import disk_store, on_disk
from regard.data.on_disk import DiskSequence
from regard.data.storage import store
from regard.errors import DataError, RunError
from regard.tasks.seq2seq import Encoded
from regard.training import trainer
from small_runs import full_disk

pytest_plugins = ["command_fixtures"]

# Anything: no unit, line ends, lone surrogates of a name that is no UTF-8, nested tuples of a word's letters
examples = st.lists(
    st.tuples(st.lists(st.text(max_size=3)).map(tuple), st.lists(st.integers()).map(tuple)), max_size=23
)

# The data would take some 250 MB as a list; what the process holds of its own is looked at all the way.
LITTLE = """
import random, sys
from pathlib import Path
from regard.tasks.seq2seq import Encoded
from regard.data.on_disk import DiskSequence

def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

def made(n):
    for i in range(n):
        if i % 1000 == 0:
            most.append(held())
        yield Encoded(tuple(range(1000 + i % 7, 1031 + i % 7)), (i, 2, 3))

most, folder = [], Path(sys.argv[1])
warm = DiskSequence.write(made(5000), folder / "warm.arrow")
list(warm), warm.__getitems__([3, 1])
most = [before := held()]
data = DiskSequence.write(made(150_000), folder / "data.arrow")
data = DiskSequence.write((example._replace(target=(1,)) for example in data), folder / "more.arrow")
assert sum(len(example.source) for example in data) == 31 * 150_000
for _ in range(200):
    data.__getitems__(random.choices(range(len(data)), k=40))
    most.append(held())
print(max(most) - before)
"""


@given(examples)
def test_it_is_the_list_that_was_written(tmp_path_factory: pytest.TempPathFactory, examples: list[tuple]) -> None:
    path = tmp_path_factory.mktemp("stored") / "examples.arrow"
    data = DiskSequence.write(iter(examples), path)
    again = DiskSequence(path)
    assert list(data) == list(again) == examples
    assert len(again) == len(examples)
    assert again[2:11:3] == examples[2:11:3]
    assert [again[i] for i in range(len(again))] == examples
    indices = random.Random(0).choices(range(len(examples)), k=7) if examples else []
    assert again.__getitems__(indices) == [examples[i] for i in indices]
    with pytest.raises(IndexError):
        again[len(examples)]


def test_a_disk_store_takes_many_and_is_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "_CHUNK", 5)
    with contextlib.suppress(RunError), disk_store(tmp_path / "run" / "examples"):
        for n in (0, 4, 5, 6, 13):
            data = store(range(n))
            squares = store(number**2 for number in data)
            assert list(data) == data[:] == list(range(n))
            assert list(squares) == [number**2 for number in range(n)]
        assert len(list((tmp_path / "run" / "examples").iterdir())) == 10
        raise RunError("amid it all")
    assert not list((tmp_path / "run").iterdir())


def test_a_data_loader_takes_it(tmp_path: Path) -> None:
    data = DiskSequence.write((Encoded((i,), (i, i)) for i in range(7)), tmp_path / "seven.arrow")
    batches = list(DataLoader(data, batch_sampler=[[6, 2], [], [0]], collate_fn=list))
    assert batches == [[Encoded((6,), (6, 6)), Encoded((2,), (2, 2))], [], [Encoded((0,), (0, 0))]]
    assert type(batches[0][0]) is Encoded


def test_memory_stays_flat(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", LITTLE, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr
    whole = 150_000 * sys.getsizeof((0,) * 31) / 2**20
    assert whole > 40
    assert float(child.stdout) < 10


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with full_disk(4096), pytest.raises(RunError, match=r"cannot write .*more\.arrow .*free some space"):
        DiskSequence.write((random.randbytes(100) for _ in range(5000)), tmp_path / "more.arrow")


def test_a_fault_in_the_data_passes_through(tmp_path: Path) -> None:
    def faulty():
        yield 1
        raise DataError("expected one TAB, found none", file="words.tsv", line=2)

    with pytest.raises(DataError, match=r"^words\.tsv:2: expected one TAB"):
        DiskSequence.write(faulty(), tmp_path / "half.arrow")
    assert pickle.loads(pickle.dumps(DataError("no", file="a", line=3))).line == 3


DATA = {  # how it is read, and the options it is trained with
    "pairs": (
        "".join(f"{a}\t{b}\n" for a, b in spelt(150)),
        ["--max-length", "4", "--units", "subword", "--subwords", "9"],
    ),
    "tags": ("".join(f"{a}\t{b[0]}\n\n"[: -1 if i % 3 else None] for i, (a, b) in enumerate(spelt(150))), []),
    "labels": ("".join(f"{a} {a[::-1]}\t{b[0]}\n" for a, b in spelt(150)), []),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATA)
def test_a_model_is_the_same_whether_its_data_were_on_disk_or_in_memory(
    kind: str, tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, options = DATA[kind]
    monkeypatch.chdir(tmp_path)
    Path("data.tsv").write_text(text, encoding="utf-8")
    monkeypatch.setattr(on_disk, "_CHUNK", 7)
    monkeypatch.setattr(trainer, "_TOGETHER", 11)
    said = {}
    for out, where in (("memory", []), ("disk", ["--on-disk"])):
        ended = regard("train", "data.tsv", "--out", out, "--epochs", "1", *options, *where)
        assert ended.code == 0, ended
        said[out] = [line for line in ended.out.splitlines() if "stored in" not in line and "epoch 1" not in line]
    assert [line.replace("disk", "memory") for line in said["disk"]] == said["memory"]
    memory, disk = (load_file(Path(out) / "model.safetensors") for out in ("memory", "disk"))
    assert all(torch.equal(memory[name], disk[name]) for name in memory)
    assert {path.name for path in Path("disk").iterdir()} == {path.name for path in Path("memory").iterdir()}


def test_a_fault_in_the_data_leaves_nothing_behind(
    tmp_path: Path, regard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.tsv").write_text("a\tb\n" * 3 + "ab\n", encoding="utf-8")
    ended = regard("train", "data.tsv", "--task", "seq2seq", "--out", "run", "--on-disk")
    assert ended.error.startswith("data.tsv:4: expected SOURCE TAB TARGET, found no TAB")
    assert [path.name for path in tmp_path.iterdir()] == ["data.tsv"]
