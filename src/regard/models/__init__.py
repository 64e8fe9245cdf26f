"""Trainable models with attention: sequence-to-sequence, tagging and classification, and beam search."""

from __future__ import annotations

from regard.models.classifier import Classifier, ClassifierConfig, TextBatch
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.search import Hypothesis, beam_search
from regard.models.tagger import Tagger, TaggerConfig, WordBatch
from regard.models.transformer import TransformerConfig, TransformerSeq2Seq

__all__ = [
    "CONFIGS",
    "Classifier",
    "ClassifierConfig",
    "Config",
    "Hypothesis",
    "RecurrentConfig",
    "RecurrentSeq2Seq",
    "Seq2Seq",
    "Tagger",
    "TaggerConfig",
    "TextBatch",
    "TransformerConfig",
    "TransformerSeq2Seq",
    "WordBatch",
    "beam_search",
]


def __dir__() -> list[str]:
    return __all__


Config = RecurrentConfig | TransformerConfig
Seq2Seq = RecurrentSeq2Seq | TransformerSeq2Seq
CONFIGS: dict[str, type[Config]] = {config.kind: config for config in (RecurrentConfig, TransformerConfig)}
