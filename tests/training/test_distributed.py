"""Several processes that train one model: they compute what one process would, and stop together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard.data import Pair, TokenBudgetSampler
from regard.errors import RunError
from regard.tasks import Seq2SeqRun
from regard.training import TrainingSettings, fit, processes
from small_runs import at_update, backwards, new_run, rows, short_training, silent

pytestmark = pytest.mark.slow

# The program of one process, which calls a function of this module.
PART = "import sys, test_distributed; getattr(test_distributed, sys.argv[1])(*sys.argv[2:])"


def together(work: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start two processes with the environment that torchrun would give them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-c", PART, work, *arguments],
            cwd=Path(__file__).parent,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),  # modules that tests share are in another folder
                "OMP_NUM_THREADS": "1",
                "TORCHELASTIC_RUN_ID": "test",
                **{name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def ended(parts: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for all processes; each must succeed."""
    try:
        for part in parts:
            _, error = part.communicate(timeout=300)
            assert part.returncode == 0, error
    finally:
        for part in parts:  # the other waits forever if one has failed
            part.kill()
            part.communicate()


def uneven() -> Any:
    """Return short words and one that fills a batch by itself, of which the second of two processes has no share."""
    pairs = backwards(19)
    long = tuple("abcdefabcdefabcdefabcdefabc")
    pairs.examples.append(Pair(long, long[::-1]))
    return pairs


def watched(look: Callable[[Any], object], work: Callable[[], object]) -> list[Any]:
    """Return ``look(module)`` of the training module before each step of the optimiser, while ``work`` trains."""
    seen: list[Any] = []

    def begin(self: Any) -> None:
        self.on_before_optimizer_step = lambda _: seen.append(look(self))

    with pytest.MonkeyPatch.context() as patch:
        at_update(patch, None, begin)
        work()
    return seen


def gradients(module: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in module.model.named_parameters() if p.grad is not None}


def weights(module: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters()]).clone()


def learn(directory: Path, kind: str) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of every update of a training in float64, without dropout."""
    pairs, plan = uneven(), short_training(epochs=2, clip=1e9, label_smoothing=0.1)
    run = processes.from_rank_zero(lambda: new_run(directory, pairs, plan, kind=kind, dropout=0.0))
    run.model.double()
    return watched(gradients, lambda: fit(run, pairs.examples, pairs.examples, plan, directory, console=silent()))


def begin(directory: Path, plan: TrainingSettings) -> tuple[Seq2SeqRun, Any]:
    """Return a run with dropout, and a function that trains it."""
    pairs = uneven()
    run = processes.from_rank_zero(lambda: new_run(directory, pairs, plan, dropout=0.3))
    return run, lambda run, **how: fit(run, pairs.examples, pairs.examples, plan, directory, console=silent(), **how)


def work(folder: str) -> None:
    """Do, in one of the processes, all that the tests need of them: starting processes takes seconds."""
    torch.set_num_threads(1)
    here, found = Path(folder), {}
    with processes.process_group():
        last = processes.rank() == processes.world_size() - 1
        for kind in ("recurrent", "transformer"):
            found[kind] = learn(here / kind, kind)

        plan = short_training(epochs=3, evaluations=3)
        run, train = begin(here / "whole", plan)
        found["whole"] = watched(weights, lambda: train(run))

        run, train = begin(here / "stopped", plan)
        amid = len(found["whole"]) // 2
        with pytest.MonkeyPatch.context() as patch:
            at_update(patch, amid, lambda _: last and signal.raise_signal(signal.SIGTERM))
            found["signal"] = train(run).signal
        found["resumable"] = (here / "stopped" / "resume.ckpt").exists()
        run = Seq2SeqRun.load(here / "stopped", trained=False)
        found["resumed"] = watched(weights, lambda: train(run, resume=True))

        run, train = begin(here / "minutes", short_training(epochs=None, minutes=0.02, patience=99))
        found["minutes"] = watched(weights, lambda: train(run))

        def fail() -> None:
            raise RunError("no room")

        try:
            processes.from_rank_zero(fail)
        except RunError as error:
            found["error"] = str(error)
        torch.save(found, here / f"{processes.rank()}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder in which two processes worked, and the findings of each."""
    folder = tmp_path_factory.mktemp("together")
    ended(together("work", str(folder)))
    return folder, [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_two_processes_make_every_gradient_of_one(kind: str, found: Any, tmp_path: Path) -> None:
    folder, both = found
    alone = learn(tmp_path, kind)
    assert len(alone) > 10
    for ours in both:
        assert len(ours[kind]) == len(alone)
        for update, (gradient, wanted) in enumerate(zip(ours[kind], alone, strict=True)):
            assert gradient.keys() == wanted.keys()
            for name in wanted:
                torch.testing.assert_close(
                    gradient[name], wanted[name], rtol=1e-9, atol=1e-13, msg=lambda m, at=(update, name): f"{at}: {m}"
                )
    one, two = rows(tmp_path), rows(folder / kind)
    for row in (*one, *two):  # these depend on the clock
        del row["minutes"], row["tokens_per_second"]
    assert two == one


def test_a_batch_that_is_too_small_for_all_was_among_them(tmp_path: Path) -> None:
    pairs, plan = uneven(), short_training()
    run = new_run(tmp_path, pairs, plan)
    lengths = run.lengths(run.encode(pairs.examples))
    shares = list(TokenBudgetSampler(*lengths, tokens=plan.batch_tokens, share=(1, 2)))
    assert [] in shares


@pytest.mark.parametrize("training", ["whole", "minutes"])
def test_all_have_the_same_weights_throughout(training: str, found: Any) -> None:
    _, (first, second) = found
    assert len(first[training]) == len(second[training]) > 1
    for one, other in zip(first[training], second[training], strict=True):
        assert torch.equal(one, other)


def test_a_signal_to_one_ends_all_and_all_go_on_as_if_never_stopped(found: Any) -> None:
    folder, both = found
    for ours in both:
        assert ours["signal"] == signal.SIGTERM
        assert ours["resumable"]
        assert 0 < len(ours["resumed"]) < len(ours["whole"])
        assert torch.equal(ours["resumed"][-1], ours["whole"][-1])
    whole, stopped = (load_file(folder / name / "model.safetensors") for name in ("whole", "stopped"))
    for name, tensor in whole.items():
        assert torch.equal(stopped[name], tensor)


def test_what_fails_in_the_first_fails_in_all(found: Any) -> None:
    assert [ours["error"] for ours in found[1]] == ["no room", "no room"]


def test_torchrun_starts_the_command(tmp_path: Path) -> None:
    text = "".join(f"{''.join(a)}\t{''.join(b)}\n" for a, b in uneven().examples)
    (tmp_path / "words.tsv").write_text(text, encoding="utf-8")
    options = ["--epochs", "1", "--batch-tokens", "50", "--embed-dim", "8", "--hidden-dim", "16", "--units", "chars"]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "regard.cli"]
    launched = subprocess.run(
        [sys.executable, *start, "train", "words.tsv", *options],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert launched.returncode == 0, launched.stderr
    assert launched.stdout.count("best model in runs/words: ") == 1
    assert launched.stdout.count("training for 1 epoch") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["words"]
    assert Seq2SeqRun.load(tmp_path / "runs" / "words").score(uneven().examples).count == 20
    updates = [int(row["update"]) for row in rows(tmp_path / "runs" / "words")]
    assert updates == sorted(set(updates))  # one process writes the log
