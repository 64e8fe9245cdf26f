"""What an attention looked at, from blocks of its weights: the matrix is not there, unless it is what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Asked", "Seen", "gather"]


class Asked(NamedTuple):
    """What is to be told of an attention: answers in the order of the names."""

    names: Sequence[str]
    received: Tensor | None  # a weight for each query; None: 1
    rows: Sequence[int]
    top: int
    offsets: Sequence[int]


class Seen(NamedTuple):
    """Weights of some rows of some heads, (heads, rows, keys): all that these rows may see.

    Hidden places are -1 where the largest are asked for, else -1 or 0. A kernel may know the entropy (heads, rows).
    """

    head: int
    row: int
    key: int
    weights: Tensor
    entropy: Tensor | None = None

    @property
    def at(self) -> tuple[slice, slice]:
        heads, rows, _ = self.weights.shape
        return slice(self.head, self.head + heads), slice(self.row, self.row + rows)

    @property
    def keys(self) -> slice:
        return slice(self.key, self.key + self.weights.shape[-1])


def gather(
    blocks: Iterable[Seen],
    logsumexp: Tensor,
    group: int,
    keys: int,
    asked: Asked,
) -> list[Tensor]:
    """What is asked for, (N, R, ...) as the logsumexp has it; R is the queries of a group of heads.

    A block holds some queries of one head, or all of some heads of a group. It is overwritten.
    """
    N, R = logsumexp.shape
    queries = R // max(group, 1)
    sizes = {
        "weights": (N, R, keys),
        "rows": (N, group, len(asked.rows), keys),
        "received": (N, group, keys),
        "top": (N, R, asked.top),
        "offsets": (N, R, len(asked.offsets)),
    }
    found = {name: logsumexp.new_zeros(sizes.get(name, (N, R))) for name in asked.names if name != "keys"}
    if "top" in found:
        found["keys"] = torch.full((N, R, asked.top), -1, device=logsumexp.device)
    per_query = None if asked.received is None else asked.received.detach().to(logsumexp.dtype).reshape(N, R)
    for block in blocks:
        if "top" in found:
            _largest(block, found)
        weights = block.weights.clamp_(min=0)
        _per_query(block, found)
        if "distance" in found or "offsets" in found:
            _from_the_query(block, found, queries, keys - queries, asked.offsets)
        if "weights" in found:
            found["weights"][(*block.at, block.keys)] = weights
        if "received" in found:
            weighed = weights if per_query is None else weights * per_query[block.at].unsqueeze(-1)
            first, split = block.row // max(queries, 1), _split(weighed, queries)
            of_group = slice(first, first + split.shape[1])
            found["received"][block.at[0], of_group, block.keys] += split.sum(2)
        if "rows" in found:
            _pick(found["rows"], block, asked.rows, queries)
    if "logsumexp" in found:
        found["logsumexp"] = logsumexp
    return [found[name] for name in asked.names]


def _per_query(block: Seen, found: dict[str, Tensor]) -> None:
    """Fill in what belongs to each query."""
    weights, at = block.weights, block.at
    if "entropy" in found:
        found["entropy"][at] = torch.special.entr(weights).sum(-1) if block.entropy is None else block.entropy
    if "position" in found:
        found["position"][at] = weights @ torch.arange(
            block.key, block.key + weights.shape[-1], dtype=weights.dtype, device=weights.device
        )
    if "max" in found:
        found["max"][at] = weights.amax(-1)


def _from_the_query(block: Seen, found: dict[str, Tensor], queries: int, ahead: int, offsets: Sequence[int]) -> None:
    """Fill in what is told by the distance of a key from the query's place; query i stands at key i + ``ahead``."""
    weights, device = block.weights, block.weights.device
    heads, rows, width = weights.shape
    places = torch.arange(block.row, block.row + rows, device=device) % queries + (ahead - block.key)
    if "distance" in found:
        away = (places[:, None] - torch.arange(width, device=device)).abs()
        found["distance"][block.at] = torch.einsum("hij,ij->hi", weights, away.to(weights.dtype))
    if "offsets" in found:
        keys = places[:, None] + torch.tensor(offsets, dtype=torch.int64, device=device)
        there = weights.gather(-1, keys.clamp(0, width - 1).expand(heads, -1, -1))
        found["offsets"][block.at] = there.masked_fill_((keys < 0) | (keys >= width), 0.0)


def _largest(block: Seen, found: dict[str, Tensor]) -> None:
    """Fill in the largest weights of each query and their keys; hidden ones rank below a weight of 0."""
    count = min(found["top"].shape[-1], block.weights.shape[-1])
    largest, keys = block.weights.topk(count)
    found["top"][(*block.at, slice(count))] = largest.clamp(min=0)
    found["keys"][(*block.at, slice(count))] = (keys + block.key).masked_fill(largest < 0, -1)


def _split(weights: Tensor, queries: int) -> Tensor:
    """(heads, rows, keys) to (heads, group, queries, keys); a part of one head's queries is a group of one."""
    heads, rows, keys = weights.shape
    return weights.view(heads, -1, min(rows, queries), keys) if rows > queries else weights.unsqueeze(1)


def _pick(found: Tensor, block: Seen, rows: Sequence[int], queries: int) -> None:
    """Copy the rows that lie in this block."""
    for place, row in enumerate(rows):
        for group in range(found.shape[1]):
            local = group * queries + row % queries - block.row
            if 0 <= local < block.weights.shape[1]:
                found[block.at[0], group, place, block.keys] = block.weights[:, local]
