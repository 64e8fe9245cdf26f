"""Training loop: from examples to a run directory with the best model."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import warnings
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset

from regard.data.batches import TokenBudgetSampler
from regard.data.storage import store
from regard.errors import RunError
from regard.tasks.metrics import Scores
from regard.tasks.run import Run
from regard.training import processes
from regard.training.callbacks import KeepBest, Progress, ProgressBar, SaveState, StopOnSignal
from regard.training.lightning_module import TrainingModule
from regard.training.settings import TrainingSettings

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Outcome", "are_examples_of", "fingerprint", "fit", "record_provenance"]

_TOGETHER = 1000  # examples encoded at once
_EARLIER_FORMS = {
    "seq2seq": "Example(source={}, target={})",
    "tag": "Example(words={}, tags={})",
    "classify": "Labelled(text={}, label={})",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of training: the dev scores of the best model, seconds, and the signal that stopped it, or None."""

    dev: Scores
    seconds: float
    signal: int | None


def record_provenance(
    run: Run, examples: Sequence[Any], settings: TrainingSettings, data_sources: dict[str, Any]
) -> None:
    """Record settings, sources and a fingerprint of the data in the run, so that training can be resumed."""
    run.training = {**data_sources, "recipe": asdict(settings), "fingerprint": fingerprint(examples)}


def fit(
    run: Run,
    train: Sequence[Any],
    dev: Sequence[Any],
    settings: TrainingSettings,
    directory: Path,
    *,
    console: Console,
    resume: bool = False,
) -> Outcome:
    """Train ``run.model`` and save the best weights in ``directory``; afterwards ``run.model`` has them.

    The first SIGINT or SIGTERM stops training after the current update. With ``resume``, training continues from the
    last whole epoch, bit for bit as if it had never stopped (on the CPU, with the same number of threads, and with
    ``epochs``: minutes vary).

    The processes of a `process_group` train one model together: each computes the gradient of its share of a batch,
    and all apply the gradient of the whole. Process 0 scores, prints and writes; all need access to ``directory``.
    """
    encoded = _encoded(run, train)
    share = processes.rank(), processes.world_size()
    sampler = TokenBudgetSampler(*run.lengths(encoded), tokens=settings.batch_tokens, seed=settings.seed, share=share)
    progress = Progress(settings.minutes, (settings.epochs or 0) * len(sampler))
    run.model.train()  # a loaded run is in evaluation mode
    module = TrainingModule(run, settings, progress.fraction)
    averaged = copy(run)
    averaged.model = module.average.module
    stop = StopOnSignal()
    best = KeepBest(
        lambda: averaged.score(dev),
        lambda: averaged.save_weights(directory),
        progress,
        stop,
        directory / "log.csv",
        evaluations=settings.evaluations,
        patience=settings.patience,
        report=console.print,
    )
    state = directory / "resume.ckpt"
    bar = [ProgressBar(console, progress, best)] if console.is_terminal and processes.rank() == 0 else []
    callbacks = [progress, best, stop, SaveState(state), *bar]
    if resume:
        _check(state)
    loader = _loader(run, encoded, sampler)
    _keep_freed_memory()
    with stop.on_signals(), warnings.catch_warnings():
        _warm_up(module, run.collate(encoded[:2]))
        if share != (0, 1):  # each process draws its own dropout
            torch.manual_seed(settings.seed + share[0])
        _trainer(settings, callbacks).fit(module, loader, ckpt_path=state if resume else None)
    scores = processes.from_rank_zero(lambda: best.scores)
    if scores is None:
        raise RunError(
            f"{directory}: expected a model, got none, as training was stopped before its first update; train again"
        )
    if stop.signal is None:
        state.unlink(missing_ok=True)
    run.load_weights(directory)
    run.model.eval()
    return Outcome(scores, progress.seconds, stop.signal)


def _encoded(run: Run, examples: Sequence[Any]) -> Sequence[Any]:
    """Encode the examples part by part, and store the results."""
    parts = (examples[start : start + _TOGETHER] for start in range(0, len(examples), _TOGETHER))
    return store(one for part in parts for one in run.encode(part))


def fingerprint(examples: Iterable[tuple[Any, ...]], form: str | None = None) -> str:
    """Return a short hash of the training examples: of their values, whatever the classes that hold them.

    ``form`` is the format of one example in earlier versions, with the names of its class and fields.
    """
    digest = hashlib.blake2b(digest_size=12)
    for example in examples:
        digest.update((form.format(*map(repr, example)) if form else repr(tuple(example))).encode())
    return digest.hexdigest() if form else f"values-{digest.hexdigest()}"


def are_examples_of(run: Run, examples: Sequence[Any]) -> bool:
    """Return True if these are the examples that the run was trained on."""
    recorded = run.training["fingerprint"]
    form = None if recorded.startswith("values-") else _EARLIER_FORMS[run.task]
    return bool(fingerprint(examples, form) == recorded)


def _keep_freed_memory() -> None:
    """Let this process keep the memory that an update frees.

    glibc keeps pieces of memory as large as the largest that was ever freed, up to 32 MB, and gives others back to the
    system, which would clear new pages for every update again.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


def _warm_up(module: TrainingModule, batch: Any) -> None:
    """Compile the kernels before the clock starts: in a fresh installation this takes seconds."""
    torch.autograd.backward(module.run.loss(batch, 0.0)[0])
    module.zero_grad()


def _check(state: Path) -> None:
    try:
        torch.load(state, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).split("\n")[0]
        raise RunError(
            f"{state}: the saved state of training is damaged ({reason}); restore it, or train again"
        ) from error


def _loader(run: Run, encoded: Sequence[Any], sampler: TokenBudgetSampler) -> DataLoader[Any]:
    data = cast("Dataset[Any]", encoded)  # any sequence is a map-style dataset

    def collate(examples: Sequence[Any]) -> Any:
        return run.collate(examples) if examples else ()

    # A separate generator: the loader draws a seed each epoch, which must not affect dropout
    return DataLoader(data, batch_sampler=sampler, collate_fn=collate, generator=torch.Generator())


def _trainer(settings: TrainingSettings, callbacks: list[Any]) -> Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*`val_dataloader`.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    count = processes.world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if count > 1 else 1
    return Trainer(
        strategy="ddp" if count > 1 else "auto",
        devices=here,
        num_nodes=count // here,
        use_distributed_sampler=False,  # the sampler of each process returns its share
        max_epochs=settings.epochs or -1,
        gradient_clip_val=settings.clip,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
