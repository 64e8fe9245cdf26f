"""Words made of subword tokens, and the weights of words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from regard.errors import ArgumentError
from regard.functional import Top

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

__all__ = ["WordSpans", "spell_out"]

_SPECIAL = re.compile(r"<\|.*\|>|<[^<>\s]+>|\[[A-Z]+\]")  # <|im_start|>, </s>, [CLS]
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece writes a byte that no piece covers
_FLAG = range(0x1F1E6, 0x1F200)  # two of these letters make a flag
_SHAPERS = {0x200C, 0x200D, *range(0x1F3FB, 0x1F400), *range(0xE0020, 0xE0080)}  # joiners, skin tones, tags
_JOINER = "\N{ZERO WIDTH JOINER}"
# Thai, Lao, Burmese, Khmer, kana, Han: written without spaces, so that these do not separate words
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
_WITHIN, _IN_WORDS, _IN_NUMBERS = "_\N{ZERO WIDTH NON-JOINER}", "'’", ".,"
_MOST = 2**22  # numbers in the table through which the largest weights are merged


@dataclass(frozen=True)
class WordSpans:
    """The words of a text as spans of its tokens: word i is tokens ``starts[i]`` to ``starts[i + 1]``.

    Adjacent tokens of letters and digits make a word, its leading space included. Punctuation stands alone. In scripts
    written without spaces tokens stay as they are, but no character is ever split: a letter with its marks, a flag, a
    family of emoji. Words are distinguished by position, not by text: a repeated word counts as two. Weights are summed
    over the keys of a word and averaged over its queries, so that rows still sum to 1.

    >>> words = WordSpans.of(["[CLS]", "un", "##see", "##n", "!", "[SEP]"])
    >>> words.texts
    ('[CLS]', 'unseen', '!', '[SEP]')
    >>> words.keys(torch.tensor([0.1, 0.2, 0.3, 0.1, 0.1, 0.2]))
    tensor([0.1000, 0.6000, 0.1000, 0.2000])
    """

    texts: tuple[str, ...]
    starts: tuple[int, ...]
    """The first token of each word, then the number of tokens."""

    @classmethod
    def of(
        cls,
        tokens: Sequence[str],
        text: str | None = None,
        offsets: Sequence[tuple[int, int]] | None = None,
        special: Collection[str] = (),
    ) -> WordSpans:
        """Find the words in tokens, written as by a tokenizer.

        ``text`` and ``offsets`` give the position of each token in the text, as ``tokenizer(text,
        return_offsets_mapping=True)`` returns them; a token of no characters is a word by itself. Without them words
        follow the marks in the tokens: ``##`` (WordPiece), ``▁`` (SentencePiece) or ``Ġ`` (bytes); ``special`` are
        tokens without text, besides those of the form ``<s>``, ``<|end|>`` or ``[SEP]``.

        Raises ArgumentError if the offsets do not fit the tokens and the text.
        """
        if (text is None) != (offsets is None):
            raise ArgumentError(
                "WordSpans.of: expected text and offsets together, got one of them; give both or neither"
            )
        if text is None or offsets is None:
            text, offsets = spell_out(tokens, special)
        if len(offsets) != len(tokens) or any(not 0 <= first <= end <= len(text) for first, end in offsets):
            raise ArgumentError(
                f"WordSpans.of: expected offsets within the text of {len(text)} characters for {len(tokens)} tokens, "
                f"got {len(offsets)} up to {max((end for _, end in offsets), default=0)}"
            )
        cuts = _cuts(text)
        starts = [i for i in range(len(tokens)) if i == 0 or _parted(text, offsets[i - 1], offsets[i], cuts)]
        starts.append(len(tokens))
        texts = (_label(tokens, text, offsets, slice(a, b), cuts) for a, b in pairwise(starts))
        return cls(tuple(texts), tuple(starts))

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def spans(self) -> list[slice]:
        """The tokens of each word."""
        return [slice(first, end) for first, end in pairwise(self.starts)]

    def keys(self, weights: Float[Tensor, "*axes Tk"]) -> Float[Tensor, "*axes words"]:
        """Sum the weights of tokens as keys, such as ``received`` or ``rows``, over each word."""
        index = self._of_tokens(weights.shape[-1], weights.device)
        return weights.new_zeros(*weights.shape[:-1], len(self)).index_add_(-1, index, weights)

    def queries(self, values: Float[Tensor, "*axes Tq"]) -> Float[Tensor, "*axes words"]:
        """Average the values of tokens as queries, such as ``entropy``, over each word."""
        return self.keys(values) / torch.tensor(self._sizes(), dtype=values.dtype, device=values.device)

    def matrix(
        self, weights: Float[Tensor, "*axes Tq Tk"], keys: WordSpans | None = None
    ) -> Float[Tensor, "*axes words keys"]:
        """Compute the weights of each word on each word of ``keys``, by default on these words themselves."""
        keys = self if keys is None else keys
        return self.queries(keys.keys(weights).mT).mT

    def top(self, top: Top, keys: WordSpans | None = None) -> Top:
        """Compute the largest weights of each word on words, (..., words, k), from those of tokens, (..., Tq, k).

        A weight that was not among the k largest of its token counts as 0, so that these are lower bounds.
        """
        keys = self if keys is None else keys
        lead, (length, count) = top.weights.shape[:-2], top.weights.shape[-2:]
        self._of_tokens(length, top.keys.device)
        of_key = torch.tensor(keys._ids(), dtype=torch.long, device=top.keys.device)
        weights = top.weights.reshape(-1, length, count)
        places = of_key[top.keys.long().clamp(min=0)].reshape(-1, length, count)  # of no key the weight is 0
        most = min(count, len(keys))
        found = Top(weights.new_zeros(*lead, len(self), count), top.keys.new_full((*lead, len(self), count), -1))
        flat = [each.view(-1, len(self), count) for each in found]
        step = max(1, _MOST // max(1, len(weights) * len(keys)))
        for first in range(0, len(self), step):
            part = WordSpans(self.texts[first : first + step], self.starts[first : first + step + 1])
            tokens, rows = slice(part.starts[0], part.starts[-1]), len(part)
            own = torch.tensor(part._ids(), device=top.keys.device)[:, None]
            table = weights.new_zeros(len(weights), rows * len(keys))
            table.scatter_add_(1, (own * len(keys) + places[:, tokens]).flatten(1), weights[:, tokens].flatten(1))
            sizes = torch.tensor(part._sizes(), dtype=weights.dtype, device=weights.device)
            merged = table.view(len(weights), rows, len(keys)) / sizes[:, None]
            largest, at = merged.topk(most)
            flat[0][:, first : first + rows, :most] = largest
            flat[1][:, first : first + rows, :most] = at.masked_fill(largest == 0, -1).to(top.keys.dtype)
        return found

    def _sizes(self) -> list[int]:
        return [end - first for first, end in pairwise(self.starts)]

    def _ids(self) -> list[int]:
        """The word of each token."""
        return [word for word, size in enumerate(self._sizes()) for _ in range(size)]

    def _of_tokens(self, length: int, device: torch.device) -> Tensor:
        """The word of each token, once their number is known to be right."""
        if length != self.starts[-1]:
            raise ArgumentError(
                f"WordSpans: expected weights for the {self.starts[-1]} tokens of these words, got {length}; "
                "take the words of the same text"
            )
        return torch.tensor(self._ids(), dtype=torch.long, device=device)


def spell_out(tokens: Sequence[str], special: Collection[str]) -> tuple[str, list[tuple[int, int]]]:
    """Decode the marks in tokens to text; return it with the offsets of each token."""
    pieces = [b"" if token in special or _is_special(token) else None for token in tokens]
    plain = [token for token, piece in zip(tokens, pieces, strict=True) if piece is None]
    if any("▁" in token for token in plain):
        read = _of_sentencepiece
    elif any("Ġ" in token or "Ċ" in token for token in plain):
        read = _of_bytes
    else:
        read = _of_wordpiece
    parts = [read(token) if piece is None else piece for token, piece in zip(tokens, pieces, strict=True)]
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    text, places = _decoded(b"".join(parts))
    return text, [(places[a], places[b - 1] + 1 if a < b else places[a]) for a, b in pairwise(ends)]


def _is_special(token: str) -> bool:
    return _SPECIAL.fullmatch(token) is not None and _BYTE.fullmatch(token) is None


def _of_wordpiece(token: str) -> bytes:
    return (token.removeprefix("##") if token.startswith("##") else f" {token}").encode()


def _of_sentencepiece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _of_bytes(token: str) -> bytes:
    if all(char in _BYTE_OF for char in token):
        return bytes(_BYTE_OF[char] for char in token)
    return token.encode()


def _byte_alphabet() -> Iterator[tuple[str, int]]:
    """Yield the letter for each byte in byte-level BPE: itself if it is visible, otherwise from U+0100 on."""
    unseen = 0x100
    for byte in range(0x100):
        if 0x21 <= byte <= 0x7E or (byte >= 0xA1 and byte != 0xAD):
            yield chr(byte), byte
        else:
            yield chr(unseen), byte
            unseen += 1


_BYTE_OF = dict(_byte_alphabet())


def _decoded(content: bytes) -> tuple[str, list[int]]:
    """Decode UTF-8 into text and the index of the character of each byte, and of the end; errors become U+FFFD."""
    chars: list[str] = []
    places: list[int] = []
    first = 0
    while first < len(content):
        lead = content[first]
        size = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        char = content[first : first + size].decode(errors="replace")
        if len(char) != 1 or char == "\ufffd":
            char, size = "\ufffd", 1
        places += [len(chars)] * size
        chars.append(char)
        first += size
    return "".join(chars), [*places, len(chars)]


def _cuts(text: str) -> list[bool]:
    """Return whether a word may end before each character, and at the end."""
    cuts, flags = [True] * (len(text) + 1), 0
    for i, (before, char) in enumerate(pairwise(text), 1):
        flags = flags + 1 if ord(before) in _FLAG else 0
        paired = flags % 2 == 1 and ord(char) in _FLAG
        cuts[i] = not paired and before != _JOINER and not _shapes(char) and _cut(text, i)
    return cuts


def _shapes(char: str) -> bool:
    """Return whether the character belongs to the one before it."""
    return unicodedata.category(char)[0] == "M" or ord(char) in _SHAPERS


def _cut(text: str, i: int) -> bool:
    before, char = text[i - 1], text[i]
    if "\n" in (before, char):  # line ends stand alone, spaces belong to the word after them
        return before != char
    if before.isspace() or char.isspace():
        return not before.isspace()
    if _UNSPACED.match(before) or _UNSPACED.match(char):
        return True
    if _in_word(before) and _in_word(char):
        return False
    around = (text[i - 2 : i - 1], char) if not _in_word(before) else (before, text[i + 1 : i + 2])
    middle = before if not _in_word(before) else char
    if middle in _IN_WORDS:
        return not all(side.isalpha() for side in around)
    return middle not in _IN_NUMBERS or not all(side.isdigit() for side in around)


def _in_word(char: str) -> bool:
    return unicodedata.category(char)[0] in "LMN" or char in _WITHIN


def _parted(text: str, left: tuple[int, int], right: tuple[int, int], cuts: Sequence[bool]) -> bool:
    """Return whether two tokens, given by their offsets, belong to two words."""
    if left[0] == left[1] or right[0] == right[1]:
        return True
    end = _end(text, *left)
    return right[0] >= end and any(cuts[end : right[0] + 1])


def _end(text: str, first: int, end: int) -> int:
    """Return the end of this part without its trailing space; a part of spaces alone is not shortened."""
    return first + (len(text[first:end].rstrip()) or end - first)


def _label(
    tokens: Sequence[str], text: str, offsets: Sequence[tuple[int, int]], word: slice, cuts: Sequence[bool]
) -> str:
    first = offsets[word.start][0]
    end = _end(text, first, max(end for _, end in offsets[word]))
    behind = next((a for a, b in offsets[word.stop :] if a < b), len(text))
    while (
        first < end < behind and not cuts[end]
    ):  # characters that a tokenizer drops, such as an accent, are still shown
        end += 1
    return text[first:end].strip() or text[first:end] or "".join(tokens[word])
