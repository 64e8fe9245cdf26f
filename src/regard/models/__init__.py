"""Models that attend: networks that are trained, searched and looked into."""

from __future__ import annotations

from regard.models.classifier import Classifier, ClassifierConfig
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.search import Hypothesis, beam_search
from regard.models.tagger import Tagger, TaggerConfig
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
    "TransformerConfig",
    "TransformerSeq2Seq",
    "beam_search",
    "build",
]

Config = RecurrentConfig | TransformerConfig
Seq2Seq = RecurrentSeq2Seq | TransformerSeq2Seq
CONFIGS: dict[str, type[Config]] = {config.kind: config for config in (RecurrentConfig, TransformerConfig)}


def build(config: Config) -> Seq2Seq:
    """A new model by its config."""
    return RecurrentSeq2Seq(config) if isinstance(config, RecurrentConfig) else TransformerSeq2Seq(config)
