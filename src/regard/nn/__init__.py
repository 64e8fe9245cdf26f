"""Layers of attention: projections with parameters around `regard.attention`.

They hold parameters alone, never the state of a call. Batch comes first everywhere; ``mask=``, ``bias=`` and
``observe=`` are those of `regard.attention`, which sees heads on an axis of their own: (B, heads, Tq, Tk), with one
head in the single-head layers.
"""

from __future__ import annotations

from regard.nn._decoder import BahdanauAttention, LuongAttention
from regard.nn._multi_head import MultiHeadAttention
from regard.nn._single_head import CrossAttention, SelfAttention

__all__ = ["BahdanauAttention", "CrossAttention", "LuongAttention", "MultiHeadAttention", "SelfAttention"]
