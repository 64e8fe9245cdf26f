"""A small example of each layer, encoding and model, by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from regard import models, positions
from regard.nn import (
    AttentionPooling,
    BahdanauAttention,
    BlockConfig,
    CrossAttention,
    DecoderBlock,
    Dropout,
    EncoderBlock,
    LuongAttention,
    MultiHeadAttention,
    SelfAttention,
    TorchMultiheadAttention,
    TransformerDecoder,
    TransformerEncoder,
)

BLOCK = BlockConfig(6, 2)
PRE_NORM = BlockConfig(6, 2, norm_first=True, bias=False, positions=lambda: positions.Shaw(3, 2))
SIZES = {"dim": 12, "heads": 3, "feedforward": 5, "encoder_layers": 1, "decoder_layers": 1}
MIXED = ("dot", "scaled_dot", "general", "additive", "additive", "general")

EXAMPLES: dict[str, Callable[[], nn.Module]] = {
    **{
        f"SelfAttention {score}": lambda score=score: SelfAttention(5, score=score, bias=True)
        for score in ("dot", "scaled_dot", "general", "additive")
    },
    "CrossAttention": lambda: CrossAttention(5, 7),
    "MultiHeadAttention": lambda: MultiHeadAttention(6, 3),
    "MultiHeadAttention without biases": lambda: MultiHeadAttention(6, 3, bias=False),
    "MultiHeadAttention of many scores": lambda: MultiHeadAttention(12, 6, score=MIXED),
    "MultiHeadAttention with T5Bias": lambda: MultiHeadAttention(6, 3, positions=positions.T5Bias(3)),
    "BahdanauAttention": lambda: BahdanauAttention(5, 7, 3),
    "LuongAttention dot": lambda: LuongAttention(5, 5),
    "LuongAttention general": lambda: LuongAttention(5, 7, "general"),
    "AttentionPooling": lambda: AttentionPooling(6, heads=3),
    "AttentionPooling dot": lambda: AttentionPooling(6, score="dot"),
    "Dropout": lambda: Dropout(0.1),
    "TorchMultiheadAttention": lambda: TorchMultiheadAttention(6, 3),
    "TorchMultiheadAttention of other sizes": lambda: TorchMultiheadAttention(6, 3, kdim=5, vdim=7, add_bias_kv=True),
    "EncoderBlock": lambda: EncoderBlock(BLOCK),
    "DecoderBlock": lambda: DecoderBlock(BLOCK),
    "TransformerEncoder": lambda: TransformerEncoder(BLOCK, 2),
    "TransformerEncoder with pre-norm": lambda: TransformerEncoder(PRE_NORM, 1),
    "TransformerDecoder": lambda: TransformerDecoder(BLOCK, 1),
    "TransformerDecoder with pre-norm": lambda: TransformerDecoder(PRE_NORM, 2),
    "Sinusoidal": lambda: positions.Sinusoidal(5),
    "Learned": lambda: positions.Learned(7, 5),
    "Rotary": lambda: positions.Rotary(4),
    "ALiBi": lambda: positions.ALiBi(3),
    "T5Bias": lambda: positions.T5Bias(3),
    "Shaw": lambda: positions.Shaw(4, 2),
    **{
        f"RecurrentSeq2Seq {score} {cell}{' with input feeding' if feeding else ''}": (
            lambda score=score, cell=cell, feeding=feeding: models.RecurrentSeq2Seq(
                models.RecurrentConfig(7, 11, 5, 6, 2, cell, score, feeding)
            )
        )
        for score in ("additive", "general", None)
        for cell in ("gru", "lstm")
        for feeding in (True, False)
    },
    **{
        f"TransformerSeq2Seq {name}": lambda name=name: models.TransformerSeq2Seq(
            models.TransformerConfig(7, 11, positions=name, **SIZES)
        )
        for name in ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw")
    },
    "TransformerSeq2Seq with post-norm": lambda: models.TransformerSeq2Seq(
        models.TransformerConfig(7, 11, norm_first=False, **SIZES)
    ),
    "TransformerSeq2Seq of shared embeddings": lambda: models.TransformerSeq2Seq(
        models.TransformerConfig(7, 7, shared_embeddings=True, **SIZES)
    ),
    **{
        f"Tagger {encoder}": lambda encoder=encoder: models.Tagger(
            models.TaggerConfig(7, 11, 5, encoder, 3, 4, 6, 2, heads=3)
        )
        for encoder in ("recurrent", "transformer")
    },
    **{
        f"Classifier {encoder}": lambda encoder=encoder: models.Classifier(
            models.ClassifierConfig(7, 5, encoder, 6, 12, 2, heads=3, gram_size=13, pair_size=17)
        )
        for encoder in ("none", "recurrent", "transformer")
    },
}
