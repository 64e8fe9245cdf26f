"""Data: files read as examples of texts, sentences and pairs; their units, ids and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard._lazy import lazy_names

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
# Imported when first named: guessing a task needs no torch, and only subwords need tokenizers
__getattr__, __dir__ = lazy_names(
    __name__,
    {
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
    },
)
