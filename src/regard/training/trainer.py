"""Training as a whole: from examples to a run directory that holds the best model."""

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
from regard.training.callbacks import Bar, Best, Pace, Resume, Stop
from regard.training.lightning_module import Recipe, Training

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Outcome", "are_examples_of", "fingerprint", "fit", "remember"]

_TOGETHER = 1000  # examples that are encoded at once
_EARLIER_FORMS = {
    "seq2seq": "Example(source={}, target={})",
    "tag": "Example(words={}, tags={})",
    "classify": "Labelled(text={}, label={})",
}


@dataclass(frozen=True)
class Outcome:
    """How training ended: the dev scores of the model that was kept, and the signal that stopped it, if one did."""

    dev: Scores
    seconds: float
    signal: int | None


def remember(run: Run, examples: Sequence[Any], recipe: Recipe, facts: dict[str, Any]) -> None:
    """Let a run tell how it was trained, so that training can be resumed."""
    run.training = {**facts, "recipe": asdict(recipe), "fingerprint": fingerprint(examples)}


def fit(
    run: Run,
    train: Sequence[Any],
    dev: Sequence[Any],
    recipe: Recipe,
    directory: Path,
    *,
    console: Console,
    resume: bool = False,
) -> Outcome:
    """Train ``run.model`` and keep the best weights in ``directory``; afterwards ``run.model`` has them.

    The first SIGINT or SIGTERM ends training after the update under way. With ``resume`` training goes on from the
    last whole epoch, bit for bit as if it had never stopped (on the CPU, with the same number of threads; with
    ``epochs``, as minutes differ).

    Several processes that have `joined` train one model together: each sees its share of every batch, and they go on
    with the gradient of the whole. The first one scores, says and writes; all must see ``directory``.
    """
    parts = (train[start : start + _TOGETHER] for start in range(0, len(train), _TOGETHER))
    encoded = store(one for part in parts for one in run.encode(part))
    share = processes.rank(), processes.count()
    sampler = TokenBudgetSampler(*run.lengths(encoded), tokens=recipe.batch_tokens, seed=recipe.seed, share=share)
    pace = Pace(recipe.minutes, (recipe.epochs or 0) * len(sampler))
    run.model.train()  # an opened run predicts, without dropout
    module = Training(run, recipe, pace.progress)
    averaged = copy(run)
    averaged.model = module.average.module
    stop = Stop()
    best = Best(
        lambda: averaged.score(dev),
        lambda: averaged.save_weights(directory),
        pace,
        stop,
        directory / "log.csv",
        evaluations=recipe.evaluations,
        patience=recipe.patience,
        say=console.print,
    )
    state = directory / "resume.ckpt"
    shown = [Bar(console, pace, best)] if console.is_terminal and processes.rank() == 0 else []
    callbacks = [pace, best, stop, Resume(state), *shown]
    if resume:
        _check(state)
    loader = _loader(run, encoded, sampler)
    with stop.on_signals(), warnings.catch_warnings():
        _warm_up(module, run.collate(encoded[:2]))
        if share != (0, 1):  # or all would drop the same units
            torch.manual_seed(recipe.seed + share[0])
        _trainer(recipe, callbacks).fit(module, loader, ckpt_path=state if resume else None)
    scores = processes.from_first(lambda: best.scores)
    if scores is None:
        raise RunError(f"{directory}: training was stopped before its first update; nothing was learned")
    if stop.signal is None:
        state.unlink(missing_ok=True)
    run.load_weights(directory)
    run.model.eval()
    return Outcome(scores, pace.seconds, stop.signal)


def fingerprint(examples: Iterable[tuple[Any, ...]], form: str | None = None) -> str:
    """Return a short hash of the training examples: of their values, whatever the classes that hold them.

    ``form`` is how runs before this version wrote one example, with the names of its class and fields.
    """
    digest = hashlib.blake2b(digest_size=12)
    for example in examples:
        digest.update((form.format(*map(repr, example)) if form else repr(tuple(example))).encode())
    return digest.hexdigest() if form else f"values-{digest.hexdigest()}"


def are_examples_of(run: Run, examples: Sequence[Any]) -> bool:
    """Whether a run was trained on these examples."""
    recorded = run.training["fingerprint"]
    form = None if recorded.startswith("values-") else _EARLIER_FORMS[run.task]
    return bool(fingerprint(examples, form) == recorded)


def _warm_up(module: Training, batch: Any) -> None:
    """Let kernels compile before the clock runs: in a fresh installation they take seconds of the minutes."""
    torch.autograd.backward(module.run.loss(batch, 0.0)[0])
    module.zero_grad()


def _check(state: Path) -> None:
    try:
        torch.load(state, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).split("\n")[0]
        raise RunError(f"{state}: the state of training is damaged ({reason}); restore it, or train again") from error


def _loader(run: Run, encoded: Sequence[Any], sampler: TokenBudgetSampler) -> DataLoader[Any]:
    data = cast("Dataset[Any]", encoded)  # a sequence has all that a map-style data set needs

    def collate(examples: Sequence[Any]) -> Any:
        return run.collate(examples) if examples else ()

    # A generator of its own: the loader draws a seed each epoch, which must not disturb dropout's numbers
    return DataLoader(data, batch_sampler=sampler, collate_fn=collate, generator=torch.Generator())


def _trainer(recipe: Recipe, callbacks: list[Any]) -> Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*`val_dataloader`.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    count = processes.count()
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if count > 1 else 1
    return Trainer(
        strategy="ddp" if count > 1 else "auto",
        devices=here,
        num_nodes=count // here,
        use_distributed_sampler=False,  # each process's sampler gives its own share
        max_epochs=recipe.epochs or -1,
        gradient_clip_val=recipe.clip,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
