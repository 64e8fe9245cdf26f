"""The four symbols that every vocabulary begins with, at fixed ids."""

from __future__ import annotations

__all__ = ["BOS", "EOS", "PAD", "SPECIALS", "UNK"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
