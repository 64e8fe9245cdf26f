"""A subword tokenizer: byte-pair encoding, learned from the training texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from regard.errors import ArgumentError, RegardError, RunError

try:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Split
    from tokenizers.trainers import BpeTrainer
except ModuleNotFoundError as error:
    raise RegardError(f"subwords need {error.name}, which is not installed: pip install 'regard[train]'") from error

__all__ = ["SubwordTokenizer"]

# Merges stay within a word or a run of other characters, each with the space before it, or within a single space
_PARTS = r" ?[\p{L}\p{M}\p{N}]+| ?[^ \p{L}\p{M}\p{N}]+| "
_UNKNOWN = "\t"  # stands for characters outside the vocabulary: lines of text contain none


class SubwordTokenizer:
    """A tokenizer that splits texts by byte-pair encoding: frequent words stay whole, rare ones are split into pieces.

    Starting from single characters, the most frequent pair of adjacent units in the texts becomes a new unit, until
    there are ``size`` units; merges never cross from words to punctuation. The first unit of a word begins with the
    space before it, also at the start of a text, so that ``join(split(text))`` is the text, whatever it contains: a
    character that the training texts lack is a unit by itself, which a vocabulary of ``units`` does not contain.

    Source: Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units", arXiv
    1508.07909, section 3.2.

    >>> subwords = SubwordTokenizer.from_texts(["low lower lowest", "newer wider new"], 22)
    >>> subwords.split("low new widest"), subwords.join([" low", "er"])
    ([' low', ' new', ' w', 'i', 'd', 'es', 't'], 'lower')
    """

    name = "subword"
    separator = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_texts(cls, texts: Iterable[str], size: int) -> SubwordTokenizer:
        """Learn at most ``size`` units from texts: all their characters, then the most frequent pairs.

        The order of the texts makes no difference. Raises `ArgumentError` when ``size`` is below 1, or below the number
        of characters.
        """
        if size < 1:
            raise ArgumentError(f"expected a number of subwords of at least 1, got {size}")
        tokenizer = Tokenizer(BPE(unk_token=_UNKNOWN))
        tokenizer.pre_tokenizer = Split(Regex(_PARTS), "isolated")
        trainer = BpeTrainer(vocab_size=size + 1, initial_alphabet=[_UNKNOWN], show_progress=False)
        tokenizer.train_from_iterator((f" {text}" for text in texts), trainer)
        subwords = cls(tokenizer)
        if len(subwords.units) > size:
            raise ArgumentError(
                f"expected at least {len(subwords.units):,} subwords, one for each character of the texts, "
                f"got {size:,}; raise the number with --subwords"
            )
        return subwords

    @cached_property
    def units(self) -> tuple[str, ...]:
        """All learned units, sorted, including those that only occur as parts of longer ones."""
        return tuple(sorted(unit for unit in self._tokenizer.get_vocab() if unit != _UNKNOWN))

    def split(self, text: str) -> list[str]:
        """Return the units of a text; a character that the training texts lack is a unit by itself."""
        spaced = f" {text}" if text else ""
        return [spaced[start:end] for start, end in self._tokenizer.encode(spaced).offsets]

    def join(self, units: Iterable[str]) -> str:
        """Return the text of units."""
        return "".join(units).removeprefix(" ")

    @classmethod
    def from_json(cls, text: str) -> SubwordTokenizer:
        """Read the output of ``to_json``; `RunError` for any other text."""
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library has no narrower one
            reason = " ".join(str(error).split())
            raise RunError(f"the subwords are damaged ({reason}); restore the file, or train again") from error
        if not isinstance(tokenizer.model, BPE) or tokenizer.model.unk_token != _UNKNOWN:
            raise RunError(
                "expected the subwords that training wrote, found another tokenizer; restore the file, or train again"
            )
        return cls(tokenizer)

    def to_json(self) -> str:
        """Return units and merges in the format of the library `tokenizers`: the same for equal texts."""
        return self._tokenizer.to_str()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubwordTokenizer) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __str__(self) -> str:
        return "subwords"
