"""The ids of PAD, UNK, BOS and EOS, with which every vocabulary begins."""

from __future__ import annotations

__all__ = ["BOS", "EOS", "PAD", "SPECIALS", "UNK"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
