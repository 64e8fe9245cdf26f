"""Tasks: runs for sequence to sequence, tagging and classification, from reading examples to scoring answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard._lazy import lazy_names

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
# Imported when first named: scores need no model, and runs need no ONNX
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Answer": "seq2seq",
        "Classification": "classify",
        "ClassifyRun": "classify",
        "Prediction": "seq2seq",
        "Run": "run",
        "Scores": "metrics",
        "Search": "seq2seq",
        "Seq2SeqRun": "seq2seq",
        "TagRun": "tag",
        "edit_distance": "metrics",
        "export_run": "onnx_folder",
        "open_run": "registry",
        "score_labels": "metrics",
        "score_tags": "metrics",
        "score_texts": "metrics",
        "score_units": "metrics",
    },
)
