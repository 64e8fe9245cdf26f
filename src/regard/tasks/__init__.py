"""Tasks: runs of sequence to sequence, tagging and classification, which read, train, predict and score."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.tasks.classify import Classification, ClassifyRun
    from regard.tasks.metrics import Scores, edit_distance, score_labels, score_tags, score_texts, score_units
    from regard.tasks.onnx_folder import export_run
    from regard.tasks.registry import open_run
    from regard.tasks.run import Run
    from regard.tasks.seq2seq import Answer, Prediction, Search, Seq2SeqRun
    from regard.tasks.tag import TagRun

__all__ = [
    "Answer",
    "Classification",
    "ClassifyRun",
    "Prediction",
    "Run",
    "Scores",
    "Search",
    "Seq2SeqRun",
    "TagRun",
    "edit_distance",
    "export_run",
    "open_run",
    "score_labels",
    "score_tags",
    "score_texts",
    "score_units",
]
_HOMES = {
    "Answer": "seq2seq",
    "Classification": "classify",
    "ClassifyRun": "classify",
    "Prediction": "seq2seq",
    "Run": "run",
    "Search": "seq2seq",
    "Seq2SeqRun": "seq2seq",
    "TagRun": "tag",
    "export_run": "onnx_folder",
    "open_run": "registry",
}


def __getattr__(name: str) -> Any:
    # Imported when first named: scores need no model, and runs need no ONNX
    if name not in __all__:
        raise AttributeError(f"module 'regard.tasks' has no attribute {name!r}")
    home = _HOMES.get(name, "metrics")
    globals()[name] = found = getattr(importlib.import_module(f"regard.tasks.{home}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
