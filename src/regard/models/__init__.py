"""Models that attend: networks that are trained, searched and looked into."""

from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.models.search import Hypothesis, beam_search

__all__ = ["Hypothesis", "RecurrentConfig", "RecurrentSeq2Seq", "beam_search"]
