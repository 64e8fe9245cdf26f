"""What training minimises, and how: the loss, the optimiser, its schedule, and the average of the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from regard.errors import ArgumentError, RegardError
from regard.training import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from regard.tasks.run import Run

__all__ = ["Recipe", "Training", "rate"]


@dataclass(frozen=True)
class Recipe:
    """How to train: for so many minutes or so many epochs, with AdamW.

    ``batch_tokens`` bounds B · (longest source + longest target). The learning rate climbs to ``learning_rate`` over
    ``warmup`` updates and falls along a half cosine to 2 % of it. ``average`` is the decay of the exponential moving
    average of the weights, which is what is kept. The dev set is read ``evaluations`` times; after ``patience`` of
    these without a better score training stops.
    """

    minutes: float | None = None
    epochs: int | None = None
    learning_rate: float = 3e-3
    warmup: int = 200
    batch_tokens: int = 1200
    weight_decay: float = 0.01
    label_smoothing: float = 0.05
    clip: float = 1.0
    average: float = 0.998
    evaluations: int = 12
    patience: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.epochs is None):
            raise ArgumentError("expected one of minutes and epochs; give exactly one")
        if (self.minutes or self.epochs or 0) <= 0:
            raise ArgumentError(f"expected a time above 0, got minutes={self.minutes}, epochs={self.epochs}")
        for name in ("learning_rate", "batch_tokens", "clip", "evaluations", "patience"):
            if getattr(self, name) <= 0:
                raise ArgumentError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        for name in ("warmup", "weight_decay"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"{name}: expected a number of at least 0, got {getattr(self, name)}")
        for name in ("label_smoothing", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ArgumentError(f"{name}: expected a number from 0 to below 1, got {getattr(self, name)}")


def rate(step: int, progress: float, recipe: Recipe) -> float:
    """The learning rate at update ``step`` (from 0), when the share ``progress`` of training has passed.

    >>> recipe = Recipe(epochs=1, learning_rate=1.0, warmup=10)
    >>> [round(rate(step, progress, recipe), 3) for step, progress in ((0, 0.0), (9, 0.0), (50, 0.5), (100, 1.0))]
    [0.1, 1.0, 0.51, 0.02]
    """
    climbed = min(1.0, (step + 1) / max(1, recipe.warmup))
    fallen = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return recipe.learning_rate * climbed * fallen


class Training(LightningModule):
    """One update: the loss of the task, averaged over the batch's targets.

    ``progress`` tells which share of training has passed, 0 to 1; it sets the learning rate.
    """

    def __init__(self, run: Run, recipe: Recipe, progress: Callable[[], float]) -> None:
        super().__init__()
        self.run = run
        self.model = run.model
        self.recipe = recipe
        self.progress = progress
        self.average = AveragedModel(run.model, multi_avg_fn=self._average).requires_grad_(False)

    def _average(self, average: Sequence[Tensor], current: Sequence[Tensor], updates: Tensor | int) -> None:
        # Few updates in, the average of all weights so far is better than one that remembers the start
        decay = min(self.recipe.average, (1 + int(updates)) / (10 + int(updates)))
        torch._foreach_lerp_(list(average), list(current), 1 - decay)

    def training_step(self, batch: Any, _: int) -> dict[str, Any]:
        """The loss of a batch, if it is a number, its mean over the targets, and how many targets there are.

        Of several processes each has its share of the batch, and ``loss`` is such that the mean of their gradients,
        which they go on with, is the gradient of the mean over all targets. Mean and targets are those of all.
        """
        if batch:
            summed, targets = self.run.loss(batch, self.recipe.label_smoothing)
        else:  # the batch has fewer examples than there are processes
            summed, targets = sum((0 * p.sum() for p in self.model.parameters()), torch.zeros(())), 0
        whole, everything = processes.total(summed.item(), targets)
        if not math.isfinite(whole):
            raise RegardError(f"the loss became {whole} at update {self.global_step}; lower --lr, or raise --warmup")
        loss = summed / (everything / processes.count())
        return {"loss": loss, "mean": whole / everything, "targets": int(everything)}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set the learning rate; where clocks decide on it, all processes take the same."""
        (agreed,) = processes.largest(rate(self.global_step, self.progress(), self.recipe))
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = agreed

    def optimizer_step(self, *step: Any) -> None:
        """Update the weights, and take them into the average before any callback scores it."""
        super().optimizer_step(*step)
        self.average.update_parameters(self.model)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW; biases, norms and the scores' vectors do not decay."""
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.recipe.learning_rate, betas=(0.9, 0.98), fused=True)
