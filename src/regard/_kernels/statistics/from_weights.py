"""The formula of each statistic of attention weights: for the whole matrix, and added up over blocks of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard._kernels.statistics.request import StatisticsRequest

__all__ = ["WeightBlock", "accumulate", "of_matrix"]


class WeightBlock(NamedTuple):
    """The weights of some rows of some heads, (heads, rows, keys), with all keys that these rows may attend to.

    Hidden keys have weight -1 where the largest weights are requested, else -1 or 0.
    """

    head: int
    row: int
    key: int
    weights: Tensor
    entropy: Tensor | None = None  # (heads, rows), if the kernel has computed it

    @property
    def at(self) -> tuple[slice, slice]:
        heads, rows, _ = self.weights.shape
        return slice(self.head, self.head + heads), slice(self.row, self.row + rows)

    @property
    def keys(self) -> slice:
        return slice(self.key, self.key + self.weights.shape[-1])


def of_matrix(
    weights: Tensor, logsumexp: Tensor | None, hidden: Tensor | None, request: StatisticsRequest
) -> list[Tensor]:
    """Return the answers from the matrix of weights (..., Tq, Tk); ``hidden`` marks the keys that are masked."""
    queries, keys = weights.shape[-2:]
    names, answers = request.names, {"weights": weights}
    if "rows" in names:
        answers["rows"] = weights[..., list(request.rows), :]
    if "entropy" in names:
        answers["entropy"] = _entropy(weights)
    if logsumexp is not None:
        answers["logsumexp"] = logsumexp
    if "received" in names:
        factors = request.received
        answers["received"] = (weights if factors is None else factors.to(weights.dtype)[..., None] * weights).sum(-2)
    if "top" in names:
        visible = weights if hidden is None else weights.masked_fill(hidden, -1.0)
        answers["top"], answers["keys"] = _largest(visible, request.top)
    if "position" in names:
        answers["position"] = _position(weights, 0)
    if "max" in names:
        answers["max"] = weights.amax(-1) if keys else weights.new_zeros(weights.shape[:-1])
    if "distance" in names or "offsets" in names:
        positions = torch.arange(keys - queries, keys, device=weights.device)
        if "distance" in names:
            answers["distance"] = (weights * _distances(positions, keys)).sum(-1)
        if "offsets" in names:
            answers["offsets"] = _at_offsets(weights, positions, request.offsets)
    return [answers[name] for name in names]


def accumulate(
    blocks: Iterable[WeightBlock],
    logsumexp: Tensor,
    group: int,
    keys: int,
    request: StatisticsRequest,
) -> list[Tensor]:
    """Return the answers, (N, R, ...) as logsumexp has it or (N, group, ...); R is the queries of a group of heads.

    A block holds some queries of one head, or all of some heads of a group. It is overwritten.
    """
    N, R = logsumexp.shape
    queries = R // max(group, 1)
    answers = {
        name: logsumexp.new_zeros((N, group, *size) if name in ("received", "rows") else (N, R, *size[1:]))
        for name, size in request.sizes(queries, keys).items()
        if name != "keys"
    }
    if "top" in answers:
        answers["keys"] = torch.full((N, R, request.top), -1, device=logsumexp.device)
    factors = None if request.received is None else request.received.detach().to(logsumexp.dtype).reshape(N, R)
    for block in blocks:
        if "top" in answers:
            count = min(request.top, block.weights.shape[-1])
            at = (*block.at, slice(count))
            answers["top"][at], answers["keys"][at] = _largest(block.weights, count, block.key)
        weights = block.weights.clamp_(min=0)
        _fill_rows(block, answers)
        if "distance" in answers or "offsets" in answers:
            _fill_relative(block, answers, queries, keys - queries, request.offsets)
        if "weights" in answers:
            answers["weights"][(*block.at, block.keys)] = weights
        if "received" in answers:
            shares = weights if factors is None else weights * factors[block.at].unsqueeze(-1)
            first, split = block.row // max(queries, 1), _split(shares, queries)
            of_group = slice(first, first + split.shape[1])
            answers["received"][block.at[0], of_group, block.keys] += split.sum(2)
        if "rows" in answers:
            _copy_rows(answers["rows"], block, request.rows, queries)
    if "logsumexp" in answers:
        answers["logsumexp"] = logsumexp
    return [answers[name] for name in request.names]


def _fill_rows(block: WeightBlock, answers: dict[str, Tensor]) -> None:
    """Fill in the statistics of a row that need nothing but its weights."""
    weights, at = block.weights, block.at
    if "entropy" in answers:
        answers["entropy"][at] = _entropy(weights) if block.entropy is None else block.entropy
    if "position" in answers:
        answers["position"][at] = _position(weights, block.key)
    if "max" in answers:
        answers["max"][at] = weights.amax(-1)


def _fill_relative(
    block: WeightBlock, answers: dict[str, Tensor], queries: int, ahead: int, offsets: Sequence[int]
) -> None:
    """Fill in the statistics of distances between key and query; query i stands at key i + ``ahead``."""
    weights = block.weights
    _, rows, width = weights.shape
    positions = torch.arange(block.row, block.row + rows, device=weights.device) % queries + (ahead - block.key)
    if "distance" in answers:
        distances = _distances(positions, width).to(weights.dtype)
        answers["distance"][block.at] = torch.einsum("hij,ij->hi", weights, distances)  # with no copy of the block
    if "offsets" in answers:
        answers["offsets"][block.at] = _at_offsets(weights, positions, offsets)


def _entropy(weights: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(weights).sum(-1)
    return entropy


def _position(weights: Tensor, first_key: int) -> Tensor:
    """Return the expected index of the key."""
    end = first_key + weights.shape[-1]
    return weights @ torch.arange(first_key, end, dtype=weights.dtype, device=weights.device)


def _distances(positions: Tensor, keys: int) -> Tensor:
    """Return how far each key is from each query's position, (Tq, Tk)."""
    return (positions[:, None] - torch.arange(keys, device=positions.device)).abs()


def _at_offsets(weights: Tensor, positions: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return the weights of the keys at these offsets from each query's position, 0 where there is no such key."""
    keys = positions[:, None] + torch.tensor(list(offsets), dtype=torch.int64, device=weights.device)
    last = weights.shape[-1] - 1
    if last < 0:
        return weights.new_zeros(*weights.shape[:-1], len(offsets))
    found = weights.gather(-1, keys.clamp(0, last).expand(*weights.shape[:-1], -1))
    return found.masked_fill((keys < 0) | (keys > last), 0.0)


def _largest(weights: Tensor, count: int, first_key: int = 0) -> tuple[Tensor, Tensor]:
    """Return the largest weights of each row and their keys; a hidden key, of weight -1, gives weight 0 and key -1."""
    largest, keys = weights.topk(count)
    keys = keys + first_key if first_key else keys
    return largest.clamp(min=0), keys.masked_fill(largest < 0, -1)


def _split(weights: Tensor, queries: int) -> Tensor:
    """(heads, rows, keys) to (heads, group, queries, keys); a part of one head's queries is a group of one."""
    heads, rows, keys = weights.shape
    return weights.view(heads, -1, min(rows, queries), keys) if rows > queries else weights.unsqueeze(1)


def _copy_rows(answer: Tensor, block: WeightBlock, rows: Sequence[int], queries: int) -> None:
    """Copy the requested rows that lie in this block."""
    for index, row in enumerate(rows):
        for group in range(answer.shape[1]):
            local = group * queries + row % queries - block.row
            if 0 <= local < block.weights.shape[1]:
                answer[block.at[0], group, index, block.keys] = block.weights[:, local]
