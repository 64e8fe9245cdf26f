"""Texts in pieces of words: byte-pair encoding, learnt from the texts to train on."""

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

__all__ = ["Subwords"]

# What is never merged across: a word, a run of signs, each with the space before it; a space that stands alone
_PARTS = r" ?[\p{L}\p{M}\p{N}]+| ?[^ \p{L}\p{M}\p{N}]+| "
_UNKNOWN = "\t"  # stands for any character not seen: lines of text hold none


class Subwords:
    """A text falls into the pieces of words that byte-pair encoding has learnt: frequent words whole, rare ones not.

    From single characters on, the pair of neighbours that is most frequent in the texts becomes a unit of its own,
    until there are ``size`` units; words and punctuation stay apart. What begins a word begins with the space before
    it, at the begin of a text too, so that ``join(split(text))`` is the text, whatever it holds: a character that the
    texts did not have is a unit by itself, which a vocabulary of ``units`` does not know.

    Source: Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units", arXiv
    1508.07909, section 3.2.

    >>> subwords = Subwords.from_texts(["low lower lowest", "newer wider new"], 22)
    >>> subwords.split("low new widest"), subwords.join([" low", "er"])
    ([' low', ' new', ' w', 'i', 'd', 'es', 't'], 'lower')
    """

    name = "subword"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_texts(cls, texts: Iterable[str], size: int) -> Subwords:
        """Learn at most ``size`` units from texts: all their characters, then the most frequent pairs.

        The order of the texts has no say. Raises ``ArgumentError`` when ``size`` is below 1, or below the number of
        characters.
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
                f"expected room for the {len(subwords.units):,} different characters of the texts, "
                f"got a size of {size:,}; give more"
            )
        return subwords

    @cached_property
    def units(self) -> tuple[str, ...]:
        """All units, sorted: what a vocabulary has to know, though some may be but steps to longer ones."""
        return tuple(sorted(unit for unit in self._tokenizer.get_vocab() if unit != _UNKNOWN))

    def split(self, text: str) -> list[str]:
        """The units of a text; a character that the texts to learn from did not have makes one of its own."""
        spaced = f" {text}" if text else ""
        return [spaced[start:end] for start, end in self._tokenizer.encode(spaced).offsets]

    def join(self, units: Iterable[str]) -> str:
        """The text of units."""
        return "".join(units).removeprefix(" ")

    @classmethod
    def from_json(cls, text: str) -> Subwords:
        """Read what ``to_json`` wrote; ``RunError`` when it is anything else."""
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library has no narrower one
            reason = " ".join(str(error).split())
            raise RunError(f"the subwords are damaged ({reason}); restore the file, or train again") from error
        if not isinstance(tokenizer.model, BPE) or tokenizer.model.unk_token != _UNKNOWN:
            raise RunError("the subwords are not those of a run; restore the file, or train again")
        return cls(tokenizer)

    def to_json(self) -> str:
        """The units and the pairs that make them, as the library `tokenizers` writes them: the same for equal texts."""
        return self._tokenizer.to_str()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subwords) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __str__(self) -> str:
        return "subwords"
