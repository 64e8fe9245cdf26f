"""Layers of attention: projections with parameters around `regard.attention`.

Layers hold parameters only, never the state of a call. Batch comes first everywhere. ``mask=``, ``bias=`` and
``observe=`` are those of `regard.attention`, with an axis for the heads: (B, heads, Tq, Tk), of size 1 in the
single-head layers.
"""

from __future__ import annotations

from regard.nn._attention_pooling import AttentionPooling
from regard.nn._block import BlockConfig, BlockObservation, DecoderBlock, EncoderBlock
from regard.nn._decoder_attention import BahdanauAttention, LuongAttention
from regard.nn._dropout import Dropout
from regard.nn._kv_cache import KeyValueCache
from regard.nn._multi_head import MultiHeadAttention
from regard.nn._single_head import CrossAttention, SelfAttention
from regard.nn._torch_multi_head import TorchMultiheadAttention
from regard.nn._transformer import DecoderObservation, DecoderState, TransformerDecoder, TransformerEncoder

__all__ = [
    "AttentionPooling",
    "BahdanauAttention",
    "BlockConfig",
    "BlockObservation",
    "CrossAttention",
    "DecoderBlock",
    "DecoderObservation",
    "DecoderState",
    "Dropout",
    "EncoderBlock",
    "KeyValueCache",
    "LuongAttention",
    "MultiHeadAttention",
    "SelfAttention",
    "TorchMultiheadAttention",
    "TransformerDecoder",
    "TransformerEncoder",
]


def __dir__() -> list[str]:
    return __all__
