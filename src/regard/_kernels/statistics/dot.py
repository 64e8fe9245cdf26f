"""Statistics of attention by dot products in blocks, computed by torch's operators.

The entropy is computed from the scores, which are in the cache, for no more than a product and a sum:

entropy_i = -sum_j P_ij ln P_ij = ln Z_i - sum_j P_ij (s_ij - max_i),  Z_i = sum_j exp(s_ij - max_i)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard._kernels.mask_parts import MaskParts
from regard._kernels.statistics.dot_blocks import BlockSlices, DotScores, score_blocks, set_nan
from regard._kernels.statistics.from_weights import WeightBlock, accumulate
from regard._kernels.statistics.request import StatisticsRequest

__all__ = ["statistics"]

_NEGLIGIBLE = -1000.0  # exp of it is 0 in every dtype, and so is 0 times it


def statistics(scores: DotScores, request: StatisticsRequest) -> list[Tensor]:
    """Return the answers, in the order of the scores' axes."""
    L, Hq, Tq, _ = scores.query.shape
    Hkv, Tk = scores.key.shape[1:3]
    group = Hq // Hkv
    logsumexp = scores.key.new_full((L * Hkv, group * Tq), -torch.inf)
    answers = accumulate(_weight_blocks(scores, logsumexp, request.names), logsumexp, group, Tk, request)
    set_nan(logsumexp.isnan().view(L, Hq, Tq, 1), scores, request, answers)
    return answers


def _weight_blocks(scores: DotScores, logsumexp: Tensor, names: Sequence[str]) -> Iterator[WeightBlock]:
    """Yield the weights of each block, and fill in the logsumexp of its rows."""
    Hq, Tq = scores.query.shape[1:3]
    Hkv = scores.key.shape[1]
    group = Hq // Hkv
    buffer = logsumexp.new_empty(0)
    for block, s in score_blocks(scores):
        if buffer.numel() < s.numel() and "entropy" in names:
            buffer = logsumexp.new_empty(s.numel())
        w = buffer[: s.numel()].view(s.shape) if "entropy" in names else s
        _hide(scores.mask, block, s)
        hidden = s == -torch.inf if "top" in names else None
        sums, entropy = _softmax_block(scores.nan_rows, block, s, w)
        if hidden is not None:
            w.masked_fill_(hidden, -1.0)
        head = block.examples.start * Hkv + block.heads.start // group
        row = block.heads.start % group * Tq + block.rows.start
        heads = s.shape[0] * max(s.shape[1] // group, 1)
        row_entropy = None if entropy is None else entropy.view(heads, -1)
        weights = WeightBlock(head, row, block.keys.start, w.view(heads, -1, s.shape[3]), row_entropy)
        logsumexp[weights.at] = sums.view(heads, -1)
        yield weights


def _hide(mask: MaskParts, block: BlockSlices, scores: Tensor) -> None:
    """Set to -inf the scores of keys that may not be attended to."""
    if mask.table is not None:
        scores.masked_fill_(~block.of(mask.table), -torch.inf)
    key = block.keys.start
    first = 0 if key < block.rows.stop - 1 + mask.low else max(block.rows.start + mask.high - key, 0)
    if key + first < block.keys.stop:
        rows = torch.arange(block.rows.start, block.rows.stop, device=scores.device)
        ahead = torch.arange(key + first, block.keys.stop, device=scores.device) - rows[:, None]
        scores[..., first:].masked_fill_((ahead < mask.low) | (ahead >= mask.high), -torch.inf)


def _softmax_block(
    nan_rows: Tensor | None, block: BlockSlices, scores: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Turn scores into weights, which may share their memory; return the logsumexp and, if they do not, the entropy."""
    largest = scores.amax(-1, keepdim=True)
    empty = largest == -torch.inf
    torch.exp(scores.sub_(largest), out=weights)
    total = weights.sum(-1, keepdim=True)
    weights.div_(total)
    log_total = total.log_()
    entropy = None
    if weights is not scores:
        entropy = log_total - scores.clamp_(min=_NEGLIGIBLE).mul_(weights).sum(-1, keepdim=True)
    sums = largest + log_total
    for rows, weight, row_sum in ((empty, 0.0, -torch.inf), (nan_rows, torch.nan, torch.nan)):
        if rows is not None:
            at = rows if rows is empty else block.of(rows)
            weights.masked_fill_(at, weight)
            sums.masked_fill_(at, row_sum)
            entropy = None if entropy is None else entropy.masked_fill_(at, weight)
    return sums, entropy
