"""Models that attend: networks that are trained, searched and looked into."""

from __future__ import annotations

from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.search import Hypothesis, beam_search

__all__ = [
    "KINDS",
    "Config",
    "Hypothesis",
    "RecurrentConfig",
    "RecurrentSeq2Seq",
    "Seq2Seq",
    "beam_search",
]

Config = RecurrentConfig
Seq2Seq = RecurrentSeq2Seq
KINDS: dict[str, type[Seq2Seq]] = {model.config_class.kind: model for model in (RecurrentSeq2Seq,)}
