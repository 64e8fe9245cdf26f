"""Training and beam search compared with yoyodyne 0.5.27: the same pairs, sizes, batches and threads, in turns.

    python benchmarks/yoyodyne.py --peer PYTHON [--train TSV --test TSV]

PYTHON is the interpreter of an environment with yoyodyne (`pip install yoyodyne==0.5.27 && pip uninstall torchvision
torchaudio`: yoyodyne does not import with these installed). Each line of a file has a source and a target; files may be
gzipped. Units are separated by spaces if a column contains any; otherwise each letter is a unit. Without files, use a
generated task.

Both models have a bidirectional GRU of 128 + 128 as encoder, a GRU of 256 with additive attention as decoder,
embeddings of 128, dropout 0.2, and batches of 64 pairs. Each runs in its own process, which executes tasks on request:
a number of updates, or a batch of test words with a beam of 5. Batches are built beforehand: at random for yoyodyne,
and for regard at random ("random batches") or of similar length, as `regard train` builds them. A token is a unit of
the target, or its end marker.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

BATCH, EMBED, HIDDEN, DROPOUT, BEAM, TURN = 64, 128, 256, 0.2, 5, 20  # TURN: updates per request

Pair = tuple[list[str], list[str]]


class Side(NamedTuple):
    """The model of one library with its batches."""

    update: Callable[[Any], Any]  # one update; returns the loss
    training: list[tuple[Any, int]]  # batches, and their numbers of target tokens
    predict: Callable[[Any], list[list[int]]]  # the best hypothesis for each source of a batch
    tests: list[tuple[Any, list[list[int]]]]  # batches, and their targets


def read(path: str) -> list[Pair]:
    """Read the pairs of a file, split into units."""
    raw = Path(path).read_bytes()
    lines = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode().splitlines()
    rows = [line.split("\t")[:2] for line in lines if line.strip()]
    spaced = [any(" " in row[column] for row in rows) for column in (0, 1)]
    return [(_units(a, spaced[0]), _units(b, spaced[1])) for a, b in rows]


def _units(text: str, spaced: bool) -> list[str]:
    return text.split(" ") if spaced else list(text)


def generated(count: int, seed: int) -> list[Pair]:
    """Generate words of 3 to 15 letters; each target unit depends on its letter and on the next one."""
    drawn = random.Random(seed)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(3, 15))) for _ in range(count)]
    return [(list(w), [a.upper() if b in "aeiou" else a for a, b in zip(w, w[1:] + ".", strict=True)]) for w in words]


def write(pairs: list[Pair], path: Path) -> None:
    """Write pairs as yoyodyne is configured to read them: units separated by spaces on both sides."""
    path.write_text("".join(f"{' '.join(a)}\t{' '.join(b)}\n" for a, b in pairs), encoding="utf-8")


def ours(train: str, test: str, similar: bool) -> Side:
    """Return the side of regard, with batches of similar length or at random."""
    import torch

    from regard._symbols import BOS, EOS, PAD
    from regard.models import RecurrentConfig, RecurrentSeq2Seq, beam_search

    pairs, others = read(train), read(test)
    units = [{u: 4 + i for i, u in enumerate(sorted({u for p in pairs for u in p[s]}))} for s in (0, 1)]

    def encoded(pairs: list[Pair]) -> list[tuple[list[int], list[int]]]:
        return [([units[0].get(u, 1) for u in a], [units[1].get(u, 1) for u in b]) for a, b in pairs]

    def padded(rows: list[list[int]]) -> Any:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)

    def batches(pairs: list[tuple[list[int], list[int]]]) -> Iterator[tuple[Any, list[list[int]]]]:
        for i in range(0, len(pairs), BATCH):
            sources, targets = zip(*pairs[i : i + BATCH], strict=True)
            lengths = torch.tensor([len(source) for source in sources])
            yield (padded(sources), lengths, padded([[BOS, *target, EOS] for target in targets])), list(targets)

    torch.manual_seed(0)
    config = RecurrentConfig(4 + len(units[0]), 4 + len(units[1]), EMBED, HIDDEN, dropout=DROPOUT)
    model = RecurrentSeq2Seq(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    longest = 2 * max(len(target) for _, target in pairs)
    examples = encoded(pairs)
    random.Random(0).shuffle(examples)
    if similar:
        examples.sort(key=lambda example: (max(map(len, example)), len(example[0])))
    training = [(batch, sum(map(len, targets)) + len(targets)) for batch, targets in batches(examples)]
    random.Random(0).shuffle(training)

    def update(batch: Any) -> Any:
        source, lengths, target = batch
        logits = model.train()(source, lengths, target[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        _step(loss, model, optimizer)
        return loss

    def predict(batch: Any) -> list[list[int]]:
        source, lengths, _ = batch
        limits = torch.full_like(lengths, longest)
        return [list(best[0].ids) for best in beam_search(model.eval(), source, lengths, max_lengths=limits, beam=BEAM)]

    return Side(update, training, predict, list(batches(sorted(encoded(others), key=lambda pair: len(pair[0])))))


def _step(loss: Any, model: Any, optimizer: Any) -> None:
    import torch

    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def theirs(train: str, test: str) -> Side:
    """Return the side of yoyodyne, with its own data module, model, loss and optimizer."""
    import torch
    from yoyodyne import data, models  # type: ignore[import-not-found]
    from yoyodyne.data import datasets, mappers  # type: ignore[import-not-found]
    from yoyodyne.models import modules  # type: ignore[import-not-found]

    torch.manual_seed(0)
    folder = str(Path(train).parent / "yoyodyne")
    module = data.DataModule(model_dir=folder, train=train, test=test, source_sep=" ", target_sep=" ")
    mapper = mappers.Mapper(module.index)

    def batches(path: str, shuffled: bool) -> list[Any]:
        items = list(datasets.MappableDataset(path, mapper, module.parser))
        if shuffled:
            random.Random(0).shuffle(items)
        return [module.collator(items[i : i + BATCH]) for i in range(0, len(items), BATCH)]

    training = [(batch, int((~batch.target.mask).sum())) for batch in batches(train, True)]
    model = models.SoftAttentionGRUModel(
        source_encoder=modules.GRUEncoder(embedding_size=EMBED, hidden_size=HIDDEN // 2, dropout=DROPOUT),
        decoder_hidden_size=HIDDEN,
        decoder_dropout=DROPOUT,
        embedding_size=EMBED,
        max_target_length=2 * max(batch.target.tensor.shape[1] - 1 for batch, _ in training),
        target_vocab_size=module.target_vocab_size,
        vocab_size=module.vocab_size,
    )
    (optimizer,), _ = model.configure_optimizers()

    def update(batch: Any) -> Any:
        model.train().beam_width = 1
        loss = model.loss_func(*model._align(model(batch), batch.target.tensor))
        _step(loss, model, optimizer)
        return loss

    @torch.inference_mode()
    def predict(batch: Any) -> list[list[int]]:
        model.eval().beam_width = BEAM
        answers = model.predict_step(batch, 0)[0]
        return [_answer(row) for row in answers.view(len(batch), BEAM, -1)[:, 0].tolist()]

    tests = [(batch, [_answer(row) for row in batch.target.tensor.tolist()]) for batch in batches(test, False)]
    return Side(update, training, predict, tests)


def _answer(row: list[int]) -> list[int]:
    """Strip the optional markers <S> and <E> from an answer of yoyodyne."""
    row = row[1:] if row[0] == 2 else row
    return row[: row.index(3)] if 3 in row else row


def work(side: Side) -> None:
    """Execute the tasks on standard input; print count, seconds, and loss or accuracy of each."""
    done = 0
    for line in sys.stdin:
        task, start = line.strip(), time.perf_counter()
        if task == "train":
            taken = [side.training[(done + i) % len(side.training)] for i in range(TURN)]
            losses = [side.update(batch).item() for batch, _ in taken]
            done += TURN
            count, value = sum(tokens for _, tokens in taken), statistics.mean(losses)
        else:
            batch, targets = side.tests[int(task) % len(side.tests)]
            answers = side.predict(batch)
            count, value = len(targets), statistics.mean(a == b for a, b in zip(answers, targets, strict=True))
        print(json.dumps((count, time.perf_counter() - start, value)), flush=True)


class Worker:
    """A side in its own process."""

    def __init__(self, python: str, *arguments: str) -> None:
        command = [python, "-P", __file__, *arguments]  # -P: otherwise this file would shadow the package
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, task: str) -> tuple[int, float, float]:
        """Run a task; return count, seconds, and loss or accuracy."""
        self.process.stdin.write(f"{task}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a worker exited; its error is printed above")
        return tuple(json.loads(line))


def seconds(command: list[str]) -> float:
    """Run a command, which must succeed; return its seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def compare(workers: dict[str, Worker], updates: int, words: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of the table: a title, and the cell of each side."""
    turns = {name: [] for name in workers}
    for turn in range(1 + updates // TURN):
        for name, worker in workers.items():
            result = worker.run("train")
            turns[name] += [result] if turn else []  # the first turn is a warm-up
    rates = {name: statistics.median(n / s for n, s, _ in results) for name, results in turns.items()}
    yield "training, target tokens/s", {name: f"{rate:,.0f}" for name, rate in rates.items()}
    yield "| ratio", {name: f"{rate / rates['yoyodyne']:.2f}" for name, rate in rates.items()}
    for name, results in turns.items():
        if not results[-1][2] < 0.9 * results[0][2]:
            sys.exit(f"the loss of {name} did not fall: {results[0][2]:.3f} to {results[-1][2]:.3f}; no figures")
    yield "loss of the last turn", {name: f"{results[-1][2]:.3f}" for name, results in turns.items()}
    found = {name: [] for name in workers}
    for batch in range(-1, -(-words // BATCH)):
        for name, worker in workers.items():
            result = worker.run(str(max(batch, 0)))
            found[name] += [result] if batch >= 0 else []
    rates = {name: sum(n for n, _, _ in results) / sum(s for _, s, _ in results) for name, results in found.items()}
    yield f"beam {BEAM}, words/s", {name: f"{rate:,.0f}" for name, rate in rates.items()}
    yield "| ratio", {name: f"{rate / rates['yoyodyne']:.2f}" for name, rate in rates.items()}
    correct = {name: 100 * statistics.mean(share for _, _, share in results) for name, results in found.items()}
    yield "correct, %", {name: f"{share:.1f}" for name, share in correct.items()}


def main() -> None:
    """Compare both sides and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the interpreter of an environment with yoyodyne")
    parser.add_argument("--train", help="pairs to train on, a TSV file; default: a generated task")
    parser.add_argument("--test", help="pairs to predict")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--words", type=int, default=640)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--worker", choices=("similar", "random", "theirs"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        import torch

        torch.set_num_threads(options.threads)
        files = options.train, options.test
        work(theirs(*files) if options.worker == "theirs" else ours(*files, options.worker == "similar"))
        return
    if not options.peer:
        parser.error("--peer: expected the interpreter of an environment with yoyodyne, got nothing")
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder) / "train.tsv", Path(folder) / "test.tsv"
        write(read(options.train) if options.train else generated(8000, 1), train)
        write(read(options.test) if options.test else generated(1000, 2), test)
        shared = ["--train", str(train), "--test", str(test), "--threads", str(options.threads), "--worker"]
        workers = {
            "yoyodyne": Worker(options.peer, *shared, "theirs"),
            "regard, random batches": Worker(sys.executable, *shared, "random"),
            "regard, batches of similar length": Worker(sys.executable, *shared, "similar"),
        }
        print(f"{options.threads} threads, {options.updates} updates of {BATCH} pairs, {options.words} test words\n")
        print(f"| | {' | '.join(workers)} |\n|---|{'---|' * len(workers)}")
        for title, cells in compare(workers, options.updates, options.words):
            print(f"| {title.removeprefix('| ')} | {' | '.join(cells[name] for name in workers)} |", flush=True)
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()
    helps = [
        [str(Path(python).parent / name), "--help"]
        for python, name in ((options.peer, "yoyodyne"), (sys.executable, "regard"), (sys.executable, "regard"))
    ]
    starts = [[seconds(command) for command in helps] for _ in range(5)]
    taken = [f"{statistics.median(column):.2f}" for column in zip(*starts, strict=True)]
    print(f"| `--help`, seconds | {' | '.join(taken)} |")


if __name__ == "__main__":
    main()
