"""Calls of one module joined into one layer: a single call, or a prompt and the steps of a generation after it.

A step attends with new queries. In self-attention its keys are those of the call before and its own; a cache with a
window drops the oldest, so that keys are counted from the start of the sequence. In cross-attention the keys do not
change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard._kernels.dtypes import accumulation_dtype
from regard.functional.checks import autocast_dtype
from regard.functional.mask import Mask
from regard.functional.masks import causal, dense
from regard.functional.observe import Observation
from regard.look.record import AttentionInputs, Layer

if TYPE_CHECKING:
    from regard.look.watching.attention_call import AttentionCall, CachePosition

__all__ = ["JoinedCalls"]


class _Piece(NamedTuple):
    """One call: its statistics, the numbers of queries and keys, the first key's absolute position, and its inputs."""

    statistics: Observation
    queries: int
    keys: int
    first_key: int
    inputs: AttentionInputs | None


class JoinedCalls:
    """A builder of one `Layer` from the calls of a module."""

    def __init__(
        self,
        name: str,
        heads: tuple[int, ...],
        call: AttentionCall,
        statistics: Observation,
        position: CachePosition | None,
        *,
        keep_inputs: bool,
    ) -> None:
        B, _, Tq, _ = call.shape
        self.name = name
        self.heads = heads
        self.batch = B
        self.keep_inputs = keep_inputs
        self.cache = None if position is None else position.cache
        self.cross = call.cross
        self.end = (0 if position is None else position.first_query) + Tq
        self.is_bottom_right = call.mask is not None and call.mask.is_bottom_right
        self.grows = False
        self.last_pass = 0
        self.first = call.query[:, :, :1].clone(), call.key[:, :, :1].clone()
        self.pieces: list[_Piece] = []
        first_key = 0 if position is None else position.first_key
        self._append(call, statistics, first_key)

    def _append(self, call: AttentionCall, statistics: Observation, first_key: int) -> None:
        _, _, Tq, Tk = call.shape
        inputs = None
        if self.keep_inputs:
            key = call.key if not self.pieces else call.key[:, :, Tk - Tq :] if self.grows else call.key[:, :, :0]
            inputs = _inputs(replace(call, key=key))
        self.pieces.append(_Piece(statistics, Tq, Tk, first_key, inputs))
        self.last_key = call.key[:, :, -1:].clone()

    def continues(self, call: AttentionCall, position: CachePosition | None, same_pass: bool) -> bool:
        """Return whether this call is a step after those before, by the cache, or without one by the keys."""
        B, Hq, Tq, Tk = call.shape
        before = self.pieces[-1]
        if (B, Hq) != (self.batch, len(self.heads)) or Tk == 0 or before.keys == 0:
            return False
        if position is not None:
            known = self.cache is not None and self.cache() is position.cache() and position.cache() is not None
            return known and position.first_query == self.end and (not position.cross or Tk == before.keys)
        if self.cache is not None:
            return False
        if self._has_the_same_keys(call):
            begins_again = torch.equal(call.query[:, :, :1], self.first[0])
            return same_pass and Tq == 1 and not begins_again
        dropped = before.keys + Tq - Tk
        if Tq >= Tk or dropped < 0 or not torch.equal(call.key[:, :, Tk - Tq - 1 : Tk - Tq], self.last_key):
            return False
        return dropped > 0 or torch.equal(call.key[:, :, :1], self.first[1])

    def _has_the_same_keys(self, call: AttentionCall) -> bool:
        """Compare the first and the last key with those of the call before."""
        first, last = call.key[:, :, :1], call.key[:, :, -1:]
        same_number = call.key.shape[2] == self.pieces[-1].keys
        return same_number and torch.equal(first, self.first[1]) and torch.equal(last, self.last_key)

    def add(self, call: AttentionCall, statistics: Observation, position: CachePosition | None) -> None:
        """Append a step."""
        _, _, Tq, Tk = call.shape
        before = self.pieces[-1]
        if position is not None:
            self.grows, first_key = not position.cross, position.first_key
        else:
            self.grows = not self._has_the_same_keys(call)
            first_key = before.first_key + before.keys + Tq - Tk if self.grows else 0
        self._append(call, statistics, first_key)
        self.end += Tq

    def layer(self) -> Layer:
        """Join all calls."""
        queries = sum(piece.queries for piece in self.pieces)
        keys = max(piece.first_key + piece.keys for piece in self.pieces)
        statistics = _joined(self.pieces, keys)
        own = self.grows or self.cross is False or self.is_bottom_right
        cross = not own and (self.cross or queries != keys)
        if cross:  # a query of one sequence has no position in another
            statistics = replace(statistics, distance=None, offsets=None)
        return Layer(
            self.name,
            statistics,
            (self.batch, len(self.heads), queries, keys),
            self.heads,
            first_query=0 if cross else keys - queries,
            inputs=self._joined_inputs(keys, cross) if self.keep_inputs else None,
            cross=cross,
        )

    def _joined_inputs(self, keys: int, cross: bool) -> AttentionInputs:
        parts = [piece.inputs for piece in self.pieces if piece.inputs is not None]
        if len(parts) == 1 and not self.pieces[0].first_key:
            return parts[0]
        query, key = torch.cat([part.query for part in parts], 2), torch.cat([part.key for part in parts], 2)
        key = pad(key, (0, 0, keys - key.shape[2], 0))  # the keys that a window had dropped before the watch began
        shapes = [(self.batch, len(self.heads), piece.queries, piece.keys) for piece in self.pieces]
        mask: Mask | None
        if all(part.mask is None and part.bias is None for part in parts) and cross:
            mask = None
        elif all(_is_causal(part, piece) for part, piece in zip(parts, self.pieces, strict=True)):
            mask = causal()
        else:
            tables = [
                _spread((part.mask or Mask()).table(shape, part.query.device), shape, piece.first_key, keys, False)
                for part, shape, piece in zip(parts, shapes, self.pieces, strict=True)
            ]
            mask = dense(_stack(tables))
        bias = None
        if any(part.bias is not None for part in parts):
            biases = [query.new_zeros(1, 1, 1, 1) if part.bias is None else part.bias for part in parts]
            bias = _stack(
                [
                    _spread(each, shape, piece.first_key, keys, 0.0)
                    for each, shape, piece in zip(biases, shapes, self.pieces, strict=True)
                ]
            )
        return AttentionInputs(query, key, parts[0].score, mask, bias)


def _is_causal(inputs: AttentionInputs, piece: _Piece) -> bool:
    """Return whether the call is causal without other masks or biases, like a single query that attends to all keys."""
    if inputs.bias is not None or piece.first_key:
        return False
    if inputs.mask is None:
        return piece.queries == 1
    return inputs.mask.is_causal_from_start(piece.queries, piece.keys) and piece.queries == piece.keys


def _spread(tensor: Tensor, shape: tuple[int, int, int, int], first: int, keys: int, fill: float) -> Tensor:
    """Expand a mask or bias to scores of this shape, then pad it to all keys with ``fill``."""
    tensor = tensor[(None,) * (4 - tensor.ndim)]
    tensor = tensor.expand(*tensor.shape[:2], *shape[2:])
    return pad(tensor, (first, keys - first - shape[3]), value=fill)


def _stack(tensors: list[Tensor]) -> Tensor:
    """Stack tensors (B or 1, H or 1, Tq, Tk) along the queries."""
    lead = [max(sizes) for sizes in zip(*(tensor.shape[:2] for tensor in tensors), strict=True)]
    return torch.cat([tensor.expand(*lead, *tensor.shape[2:]) for tensor in tensors], 2)


def _inputs(call: AttentionCall) -> AttentionInputs:
    """Return the inputs of a call on the CPU, in float32 or wider; copies, as models overwrite query and key."""
    lower = autocast_dtype(call.query) or call.query.dtype  # in which the model computes
    wide = accumulation_dtype(lower)

    def here(tensor: Tensor) -> Tensor:
        return tensor.detach().to(lower).to("cpu", wide)

    mask = None if call.mask is None else call.mask.to("cpu")
    score = call.score.map(lambda weight: weight.detach().to("cpu", wide, copy=True))
    bias = None if call.bias is None else here(call.bias)
    return AttentionInputs(here(call.query).clone(), here(call.key).clone(), score, mask, bias)


def _joined(pieces: list[_Piece], keys: int) -> Observation:
    """Join the statistics of all queries, with keys by their absolute position."""
    if len(pieces) == 1 and not pieces[0].first_key:
        return pieces[0].statistics

    def join(name: str, tensors: list[Tensor]) -> Tensor:
        if name in ("top", "keys"):
            most = max(tensor.shape[-1] for tensor in tensors)
            tensors = [pad(x, (0, most - x.shape[-1]), value=-1 if name == "keys" else 0) for x in tensors]
        for k, (tensor, piece) in enumerate(zip(tensors, pieces, strict=True)):
            first = piece.first_key
            if name in ("received", "rows", "weights"):
                tensors[k] = pad(tensor, (first, keys - first - piece.keys))
            elif name == "position":
                tensors[k] = tensor + first
            elif name == "keys":
                tensors[k] = torch.where(tensor < 0, tensor, tensor + first)
        return torch.stack(tensors).sum(0) if name == "received" else torch.cat(tensors, 2)

    return Observation.combine([piece.statistics for piece in pieces], join)
