"""Training: settings, the learning rate, and the loop that takes a run from examples to its best model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.training.lightning_module import TrainingModule
    from regard.training.schedule import learning_rate
    from regard.training.settings import TrainingSettings
    from regard.training.trainer import Outcome, fit, record_provenance

__all__ = ["Outcome", "TrainingModule", "TrainingSettings", "fit", "learning_rate", "record_provenance"]
_HOMES = {"TrainingModule": "lightning_module", "TrainingSettings": "settings", "learning_rate": "schedule"}


def __getattr__(name: str) -> Any:
    # Imported when first named: the help of `regard train` reads the settings, and does not wait for torch
    if name not in __all__:
        raise AttributeError(f"module 'regard.training' has no attribute {name!r}")
    home = _HOMES.get(name, "trainer")
    globals()[name] = found = getattr(importlib.import_module(f"regard.training.{home}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
