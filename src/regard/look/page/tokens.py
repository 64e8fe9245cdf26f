"""The tokens of a model's texts as a page shows them: pieces of text, and where words begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError
from regard.look.reading.heads import Side, sides
from regard.look.reading.words import WordSpans, spell_out

if TYPE_CHECKING:
    from torch import Tensor

    from regard.look.record import Record

    OfText = Sequence[str] | Sequence[Sequence[str]]
    Tokens = OfText | Mapping[str, OfText]

__all__ = ["separator_ids", "texts"]

_INPUTS: dict[Side, tuple[str, str]] = {
    "source": ("input_ids", "attention_mask"),
    "target": ("decoder_input_ids", "decoder_attention_mask"),
}
_ANSWER = "answer"  # the decoder's output at each token of the target: the rows of an alignment


def texts(record: Record, tokens: Tokens | None, tokenizer: Any) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Return all texts, and for each layer which of them are its queries and its keys.

    Tokens are those given, else the tokenizer's names for the ids of the model's call, else numbers; tokens generated
    after the call are numbers, too. Raises ArgumentError for tokens that do not fit.
    """
    given = _given(tokens)
    special = [] if tokenizer is None else list(tokenizer.all_special_tokens)
    known: list[dict[str, Any]] = []
    indices: dict[tuple[str, int, int], int] = {}

    def index_of(side: Side, length: int, batch: int, name: str | None = None) -> int:
        at = name or side, length, batch
        if at not in indices:
            named = given.get(name or side)
            if named is None:
                named = [_numbered(row, length) for row in _called(record, side, tokenizer, batch)]
            _check(side, named, length, batch)
            indices[at] = len(known)
            known.append({"side": side, "examples": [_read(row, special) for row in named]})
            for example, padded in zip(known[-1]["examples"], _padded(record, side, batch, length), strict=True):
                example["padded"] = padded
        return indices[at]

    of_layers = [
        (
            index_of(
                queries,
                layer.first_query + layer.shape[2],
                layer.shape[0],
                _ANSWER if layer.cross and _ANSWER in given else None,
            ),
            index_of(keys, layer.shape[3], layer.shape[0]),
        )
        for layer, (queries, keys) in zip(record.layers, sides(record), strict=True)
    ]
    return known, of_layers


def separator_ids(tokenizer: Any) -> list[int]:
    """Return the ids of the tokens that separate texts, or end one."""
    return [] if tokenizer is None else sorted({tokenizer.sep_token_id, tokenizer.eos_token_id} - {None})


def _given(tokens: Tokens | None) -> dict[str, Sequence[Sequence[str]]]:
    """Return the tokens of each side for each example, in whichever form they were given."""
    if tokens is None:
        return {}
    by_side = tokens if isinstance(tokens, Mapping) else {"source": tokens}
    if unknown := set(by_side) - {*_INPUTS, _ANSWER}:
        raise ArgumentError(f'report: expected tokens of "source", "target" and "answer", got {sorted(unknown)}')
    return {
        side: [[*by_side[side]]] if all(isinstance(token, str) for token in by_side[side]) else [*by_side[side]]
        for side in (*_INPUTS, _ANSWER)
        if side in by_side
    }


def _called(record: Record, side: Side, tokenizer: Any, batch: int) -> list[list[str]]:
    ids = record.inputs.get(_INPUTS[side][0])
    if tokenizer is None or ids is None or len(ids) != batch:
        return [[] for _ in range(batch)]
    return [list(tokenizer.convert_ids_to_tokens(row)) for row in ids.tolist()]


def _numbered(tokens: list[str], length: int) -> list[str]:
    """Return ``length`` tokens: those without a name are numbers, and so are all of them if there are too many."""
    tokens = tokens if len(tokens) <= length else []
    return [*tokens, *map(str, range(len(tokens), length))]


def _check(side: Side, named: Sequence[Sequence[str]], length: int, batch: int) -> None:
    sizes = sorted({len(row) for row in named})
    if len(named) != batch or sizes != [length]:
        raise ArgumentError(
            f"report: expected {length} {side} tokens for each of {batch} examples, got {len(named)} of "
            f"{' and '.join(map(str, sizes))}; give one list for each example, with one token for each position"
        )


def _read(tokens: Sequence[str], special: Sequence[str]) -> dict[str, Any]:
    """Return the text of each token with its leading space, the tokens without text, and where words begin."""
    tokens = [token.encode(errors="replace").decode() for token in tokens]  # half a character cannot be written
    text, offsets = spell_out(tokens, special)
    pieces, end = [], 0
    for first, last in offsets:
        pieces.append("" if first == last else text[end:last])  # empty, too, where a character is cut into tokens
        end = max(end, last)
    named = [
        token if first == last else piece for token, piece, (first, last) in zip(tokens, pieces, offsets, strict=True)
    ]
    return {
        "pieces": named,
        "special": [i for i, (first, last) in enumerate(offsets) if first == last],
        "words": list(WordSpans.of(tokens, special=special).starts[:-1]),
    }


def _padded(record: Record, side: Side, batch: int, length: int) -> list[list[int]]:
    mask: Tensor | None = record.inputs.get(_INPUTS[side][1])
    if mask is None or mask.dim() != 2 or len(mask) != batch:
        return [[] for _ in range(batch)]
    return [(row[:length] == 0).nonzero().flatten().tolist() for row in mask]
