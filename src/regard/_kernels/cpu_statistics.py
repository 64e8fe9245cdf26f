"""What an additive attention looked at, block by block: the matrix is never there, unless it is what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard._kernels import numba_rows
from regard._kernels.cpu import Problem, blocks, dropout, shaped, size, weigh
from regard._kernels.numba_rows import Block

__all__ = ["gather"]


def gather(
    problem: Problem, received: Tensor | None, rows: Sequence[int], top: int, names: Sequence[str]
) -> list[Tensor]:
    """The statistics of these names, one tensor each, with key heads and their rows as (N, R, ...)."""
    N, R, _ = problem.query.shape
    queries, keys = problem.reach.queries, problem.key.shape[1]
    sizes = {
        "weights": (N, R, keys),
        "rows": (N, problem.reach.group, len(rows), keys),
        "received": (N, problem.reach.group, keys),
        "top": (N, R, top),
        "keys": (N, R, top),
    }
    found = {name: problem.key.new_zeros(sizes.get(name, (N, R))) for name in names}
    if "keys" in names:
        found["keys"] = torch.full((N, R, top), -1)
    logsumexp = problem.key.new_full((N, R), -torch.inf)
    per_query = None if received is None else received.detach().to(problem.key.dtype).reshape(N, R)
    for block in blocks(problem):
        buffer = problem.key.new_empty(size(block))
        weigh(problem, block, buffer.numpy(), logsumexp.numpy(), dropout(0.0, None))
        numba_rows.hide(buffer.numel() * 2.0, buffer.numpy(), block, problem.reach)
        seen = shaped(buffer, block, keys)
        _per_query(seen, block, found)
        weights = seen.clamp_(min=0)
        at = (slice(block.head, block.head + block.heads), slice(block.row, block.row + block.rows))
        span = slice(block.key, block.key + weights.shape[-1])
        if "weights" in found:
            found["weights"][(*at, span)] = weights
        if "received" in found:
            weighed = weights if per_query is None else weights * per_query[at].unsqueeze(-1)
            _per_head(found["received"], weighed, block, queries)[..., span] += _split(weighed, queries).sum(2)
        if "rows" in found:
            _pick(found["rows"], weights, block, rows, queries)
    if "logsumexp" in found:
        found["logsumexp"] = logsumexp
    return [found[name] for name in names]


def _per_query(seen: Tensor, block: Block, found: dict[str, Tensor]) -> None:
    """Fill in what belongs to each query; hidden places are -1."""
    at = (slice(block.head, block.head + block.heads), slice(block.row, block.row + block.rows))
    weights = seen.clamp(min=0)
    if "entropy" in found:
        found["entropy"][at] = torch.special.entr(weights).sum(-1)
    if "position" in found:
        found["position"][at] = weights @ torch.arange(
            block.key, block.key + weights.shape[-1], dtype=weights.dtype, device=weights.device
        )
    if "max" in found:
        found["max"][at] = weights.amax(-1)
    if "top" in found:
        count = min(found["top"].shape[-1], seen.shape[-1])
        largest, keys = seen.topk(count)
        found["top"][(*at, slice(count))] = largest.clamp(min=0)
        found["keys"][(*at, slice(count))] = (keys + block.key).masked_fill(largest < 0, -1)


def _split(weights: Tensor, queries: int) -> Tensor:
    """(heads, rows, keys) to (heads, group, queries, keys); a part of one head's queries is a group of one."""
    heads, rows, keys = weights.shape
    return weights.view(heads, -1, min(rows, queries), keys) if rows > queries else weights.unsqueeze(1)


def _per_head(received: Tensor, weights: Tensor, block: Block, queries: int) -> Tensor:
    first = block.row // queries
    count = max(1, block.rows // queries)
    return received[block.head : block.head + block.heads, first : first + count]


def _pick(found: Tensor, weights: Tensor, block: Block, rows: Sequence[int], queries: int) -> None:
    """Copy the rows that lie in this block."""
    for place, row in enumerate(rows):
        for group in range(found.shape[1]):
            local = group * queries + row % queries - block.row
            if 0 <= local < block.rows:
                keys = slice(block.key, block.key + weights.shape[-1])
                found[block.head : block.head + block.heads, group, place, keys] = weights[:, local]
