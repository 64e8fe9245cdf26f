"""Tiny language models in local folders, as Hugging Face writes them: new weights, real tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

TEXT = "The cat sat on the mat.\n\nThe dog, unseen by the cat, ran off!\n\nNobody had seen the dog run."
_SIZES = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 9, "intermediate_size": 41}


def wordpiece() -> PreTrainedTokenizerFast:
    """Pieces are listed, not trained: a trainer breaks ties anew in each process, and with the ids weights differ."""
    letters = sorted({letter for letter in TEXT.lower() if letter.isalpha()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "!", ",", ".", *letters, *(f"##{letter}" for letter in letters)]
    pieces += ["the", "cat", "sat", "on", "mat", "dog", "un", "##seen"]
    pieces += ["by", "ran", "off", "no", "##body", "had", "seen", "run"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def bytes_bpe(*, ends: bool) -> PreTrainedTokenizerFast:
    """With ``ends``, as of an encoder-decoder, ``</s>`` ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def write(folder: Path, model: Any, tokenizer: Any) -> Path:
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def encoder(folder: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = wordpiece()
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=53, initializer_range=0.3, **_SIZES)
    return write(folder, BertModel(config), tokenizer)


def causal(folder: Path) -> Path:
    torch.manual_seed(1)
    tokenizer = bytes_bpe(ends=False)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_key_value_heads=3,
        max_position_embeddings=307,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        **_SIZES,
    )
    return write(folder, LlamaForCausalLM(config), tokenizer)


def seq2seq(folder: Path) -> Path:
    torch.manual_seed(2)
    tokenizer = bytes_bpe(ends=True)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=20,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=5,
        decoder_attention_heads=5,
        encoder_ffn_dim=31,
        decoder_ffn_dim=31,
        max_position_embeddings=149,
        init_std=0.5,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    model = BartForConditionalGeneration(config)
    model.generation_config.update(num_beams=4, max_new_tokens=13, decoder_start_token_id=2, length_penalty=0.3)
    return write(folder, model, tokenizer)


KINDS = {"encoder": encoder, "causal": causal, "seq2seq": seq2seq}
