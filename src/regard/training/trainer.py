"""Training as a whole: from pairs to a run directory that holds the best model."""

from __future__ import annotations

import hashlib
import logging
import pickle
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset

from regard.errors import RunError
from regard.models import Config, Seq2Seq, TransformerConfig, build
from regard.training.batches import Batch, Encoded, TokenBudgetSampler, collate, encode
from regard.training.callbacks import Bar, Best, Pace, Resume, Stop
from regard.training.data import Example, Pairs
from regard.training.metrics import Scores
from regard.training.module import Recipe, Seq2SeqTraining
from regard.training.run import Run, Search, growth, limits
from regard.training.vocabulary import Vocabulary

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Outcome", "fingerprint", "fit", "prepare"]


@dataclass(frozen=True)
class Outcome:
    """How training ended: the dev scores of the model that was kept, and the signal that stopped it, if one did."""

    dev: Scores
    seconds: float
    signal: int | None


def prepare(train: Pairs, config: Config, recipe: Recipe, *, max_length: int, facts: dict[str, Any]) -> Run:
    """A run with a new model for these pairs; the vocabularies and lengths of ``config`` become those of the data."""
    source = Vocabulary.from_units(unit for example in train.examples for unit in example.source)
    target = Vocabulary.from_units(unit for example in train.examples for unit in example.target)
    share = growth((len(a), len(b)) for a, b in train.examples)
    sizes: dict[str, Any] = {"source_size": len(source), "target_size": len(target)}
    if isinstance(config, TransformerConfig):  # whose positions may be learned, each by itself, up to the longest
        sizes["max_length"] = max(1 + max_length, int(limits(torch.tensor(max_length), share)))
    torch.manual_seed(recipe.seed)
    model = build(replace(config, **sizes))
    return Run(
        model,
        source,
        target,
        train.source_units,
        train.target_units,
        max_length,
        share,
        {**facts, "recipe": asdict(recipe), "fingerprint": fingerprint(train.examples)},
    )


def fit(
    run: Run, train: Pairs, dev: Pairs, recipe: Recipe, directory: Path, *, console: Console, resume: bool = False
) -> Outcome:
    """Train ``run.model`` and keep the best weights in ``directory``; afterwards ``run.model`` has them.

    The first SIGINT or SIGTERM ends training after the update under way. With ``resume`` training goes on from the
    last whole epoch, bit for bit as if it had never stopped (on the CPU, with the same number of threads; with
    ``epochs``, as minutes differ).
    """
    encoded = encode(train.examples, run.source, run.target)
    sampler = TokenBudgetSampler(
        [len(example.source) for example in encoded],
        [len(example.target) + 2 for example in encoded],
        tokens=recipe.batch_tokens,
        seed=recipe.seed,
    )
    pace = Pace(recipe.minutes, (recipe.epochs or 0) * len(sampler))
    run.model.train()  # an opened run predicts, without dropout
    module = Seq2SeqTraining(run.model, recipe, pace.progress)
    averaged = replace(run, model=cast(Seq2Seq, module.average.module))
    stop = Stop()
    best = Best(
        lambda: averaged.score(dev.examples, Search(beam=1)),
        lambda: averaged.save_weights(directory),
        pace,
        stop,
        directory / "log.csv",
        evaluations=recipe.evaluations,
        patience=recipe.patience,
        unit_error=run.unit_error,
        say=console.print,
    )
    state = directory / "resume.ckpt"
    callbacks = [pace, stop, best, Resume(state), *([Bar(console, pace, best)] if console.is_terminal else [])]
    if resume:
        _check(state)
    loader = _loader(encoded, sampler)
    with stop.on_signals(), warnings.catch_warnings():
        _warm_up(module, collate(encoded[:2]))
        _trainer(recipe, callbacks).fit(module, loader, ckpt_path=state if resume else None)
    if best.scores is None:
        raise RunError(f"{directory}: training was stopped before its first update; nothing was learned")
    if stop.signal is None:
        state.unlink(missing_ok=True)
    run.model.load_state_dict(Run.load(directory).model.state_dict())
    run.model.eval()
    return Outcome(best.scores, pace.seconds, stop.signal)


def fingerprint(examples: list[Example]) -> str:
    """A short hash of the training examples, to see on resuming that they are the same."""
    digest = hashlib.blake2b(digest_size=12)
    for example in examples:
        digest.update(repr(example).encode())
    return digest.hexdigest()


def _warm_up(module: Seq2SeqTraining, batch: Batch) -> None:
    """Let kernels compile before the clock runs: in a fresh installation they take seconds of the minutes."""
    torch.autograd.backward(module.loss(batch))
    module.zero_grad()


def _check(state: Path) -> None:
    try:
        torch.load(state, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).split("\n")[0]
        raise RunError(f"{state}: the state of training is damaged ({reason}); restore it, or train again") from error


def _loader(encoded: list[Encoded], sampler: TokenBudgetSampler) -> DataLoader[Encoded]:
    data = cast("Dataset[Encoded]", encoded)  # a list has all that a map-style data set needs
    # A generator of its own: the loader draws a seed each epoch, which must not disturb dropout's numbers
    return DataLoader(data, batch_sampler=sampler, collate_fn=collate, generator=torch.Generator())


def _trainer(recipe: Recipe, callbacks: list[Any]) -> Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*`val_dataloader`.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    return Trainer(
        max_epochs=recipe.epochs or -1,
        gradient_clip_val=recipe.clip,
        callbacks=callbacks,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
