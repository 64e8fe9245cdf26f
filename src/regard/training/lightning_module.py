"""The objective as a Lightning module: loss, optimiser, learning rate, and the moving average of the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from regard.errors import RegardError
from regard.training import processes
from regard.training.schedule import learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from regard.tasks.run import Run
    from regard.training.settings import TrainingSettings

__all__ = ["TrainingModule"]


class TrainingModule(LightningModule):
    """A run as Lightning trains it; each update minimises the task's loss, averaged over the targets of a batch.

    ``progress`` returns the progress of training, 0 to 1, which determines the learning rate. ``average`` has the
    exponential moving average of the model's weights.
    """

    def __init__(self, run: Run, settings: TrainingSettings, progress: Callable[[], float]) -> None:
        super().__init__()
        self.run = run
        self.model = run.model
        self.settings = settings
        self.progress = progress
        self.average = AveragedModel(run.model, multi_avg_fn=self._average).requires_grad_(False)

    def _average(self, average: Sequence[Tensor], current: Sequence[Tensor], updates: Tensor | int) -> None:
        # After few updates the mean of all weights so far is better than one dominated by the initial weights
        decay = min(self.settings.average, (1 + int(updates)) / (10 + int(updates)))
        torch._foreach_lerp_(list(average), list(current), 1 - decay)

    def training_step(self, batch: Any, _: int) -> dict[str, Any]:
        """Return the loss to minimise, its mean over the targets, and the number of targets.

        With several processes, each has its share of the batch, and ``loss`` is scaled so that the mean of their
        gradients is the gradient of the mean over all targets; mean and number are those of the whole batch. Raises
        `RegardError` if the loss is not finite.
        """
        if batch:
            summed, targets = self.run.loss(batch, self.settings.label_smoothing)
        else:  # the batch has fewer examples than there are processes
            summed, targets = sum((0 * p.sum() for p in self.model.parameters()), torch.zeros(())), 0
        total, count = processes.all_sum(summed.item(), targets)
        if not math.isfinite(total):
            raise RegardError(
                f"expected a finite loss, got {total} at update {self.global_step}; lower --lr, or raise --warmup"
            )
        loss = summed / (count / processes.world_size())
        return {"loss": loss, "mean": total / count, "targets": int(count)}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set the learning rate; it may depend on clocks, so all processes use the largest of theirs."""
        (agreed,) = processes.all_max(learning_rate(self.global_step, self.progress(), self.settings))
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = agreed

    def optimizer_step(self, *step: Any) -> None:
        """Update the weights, and their average before a callback can score it."""
        super().optimizer_step(*step)
        self.average.update_parameters(self.model)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW, without weight decay for biases, norms and the vectors of scores."""
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": self.settings.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.settings.learning_rate, betas=(0.9, 0.98), fused=True)
