"""Data: files read as examples of texts, sentences and pairs; their units, ids and batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.data.batches import TokenBudgetSampler, pad
    from regard.data.labelled_texts import LabelledText, LabelledTexts, read_labelled
    from regard.data.on_disk import disk_store
    from regard.data.pairs import Pair, Pairs, read_pairs
    from regard.data.splits import split_off
    from regard.data.subwords import SubwordTokenizer
    from regard.data.tagged_sentences import TaggedSentence, TaggedSentences, read_tagged
    from regard.data.task_guess import guess_task
    from regard.data.tokenizer import SeparatorTokenizer, Tokenizer
    from regard.data.vocabulary import Vocabulary

__all__ = [
    "LabelledText",
    "LabelledTexts",
    "Pair",
    "Pairs",
    "SeparatorTokenizer",
    "SubwordTokenizer",
    "TaggedSentence",
    "TaggedSentences",
    "TokenBudgetSampler",
    "Tokenizer",
    "Vocabulary",
    "disk_store",
    "guess_task",
    "pad",
    "read_labelled",
    "read_pairs",
    "read_tagged",
    "split_off",
]
_HOMES = {
    "LabelledText": "labelled_texts",
    "LabelledTexts": "labelled_texts",
    "Pair": "pairs",
    "Pairs": "pairs",
    "SeparatorTokenizer": "tokenizer",
    "SubwordTokenizer": "subwords",
    "TaggedSentence": "tagged_sentences",
    "TaggedSentences": "tagged_sentences",
    "TokenBudgetSampler": "batches",
    "Tokenizer": "tokenizer",
    "Vocabulary": "vocabulary",
    "disk_store": "on_disk",
    "guess_task": "task_guess",
    "pad": "batches",
    "read_labelled": "labelled_texts",
    "read_pairs": "pairs",
    "read_tagged": "tagged_sentences",
    "split_off": "splits",
}


def __getattr__(name: str) -> Any:
    # Imported when first named: guessing a task needs no torch, and only subwords need tokenizers
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.data' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(f"regard.data.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return __all__
