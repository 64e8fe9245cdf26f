"""Training: settings, the learning rate, and the loop that takes a run from examples to its best model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard._lazy import lazy_names

if TYPE_CHECKING:
    from regard.training.lightning_module import TrainingModule
    from regard.training.schedule import learning_rate
    from regard.training.settings import TrainingSettings
    from regard.training.trainer import Outcome, fit, record_provenance

__all__ = ["Outcome", "TrainingModule", "TrainingSettings", "fit", "learning_rate", "record_provenance"]
# Imported when first named: the help of `regard train` reads the settings, and does not wait for torch
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Outcome": "trainer",
        "TrainingModule": "lightning_module",
        "TrainingSettings": "settings",
        "fit": "trainer",
        "learning_rate": "schedule",
        "record_provenance": "trainer",
    },
)
