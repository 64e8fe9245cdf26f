"""Additive attention on a GPU in linear memory: inputs and outputs of `triton.loops`.

Nothing here looks at a value, so no call waits for the GPU. Under TRITON_INTERPRET=1 all of it runs on the CPU, slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from regard._kernels.dtypes import accumulation_dtype
from regard._kernels.mask_parts import MaskParts
from regard._kernels.statistics.from_weights import WeightBlock, accumulate
from regard._kernels.statistics.request import StatisticsRequest
from regard._kernels.triton import loops
from regard._kernels.triton.loops import PreparedInputs

__all__ = ["Inputs", "backward", "forward", "statistics"]

_WEIGHTS = 2**24  # in a block, for statistics
_NO_STRIDES = (0, 0, 0, 0)


class Inputs(NamedTuple):
    """The inputs of the operators."""

    query: Tensor  # (L, Hq, Tq, H)
    key: Tensor  # (L, Hkv, Tk, H)
    value: Tensor  # (L, Hkv, Tk, Ev)
    score_vector: Tensor  # (H,) or (Hq, H)
    bias: Tensor | None  # broadcasts to (L, Hq, Tq, Tk)
    mask: MaskParts

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(L, Hq, Tq, Tk)."""
        L, heads, queries, _ = self.query.shape
        return L, heads, queries, self.key.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the loops compute."""
        return accumulation_dtype(self.query.dtype)


def forward(inputs: Inputs, seed: Tensor | None, dropout_p: float) -> tuple[Tensor, Tensor]:
    """Return the output (L, Hq, Tq, Ev), in the value's dtype, and logsumexp (L, Hq, Tq)."""
    L, heads, queries, keys = inputs.shape
    values = inputs.value.shape[-1]
    output = inputs.value.new_zeros(L, heads, queries, values)
    logsumexp = output.new_full((L, heads, queries), -torch.inf, dtype=inputs.dtype)
    if not L * heads * queries * keys:
        return output, logsumexp
    BE = min(_power(values), 256)  # scores are computed anew for each part of wider values
    BM = max(16, min(_block(queries), 4096 // BE))  # accumulators of BM x BE must fit into registers
    grid = (L * heads, triton.cdiv(queries, BM), max(1, triton.cdiv(values, BE)))
    with _device_of(output):
        prepared = _prepare(inputs)
        loops.attend[grid](
            prepared, output, logsumexp, *_drop(seed, dropout_p), BM=BM, BN=_block(keys), BE=BE,
            num_warps=8 if BE > 64 else 4, num_stages=1,
        )  # fmt: skip
    return output, logsumexp


def backward(
    inputs: Inputs, grad_output: Tensor, output: Tensor, logsumexp: Tensor, seed: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value, score vector and bias, the last of them empty without a bias."""
    L, heads, queries, keys = inputs.shape
    kv_heads, H = inputs.key.shape[1], inputs.key.shape[3]
    grad_output = grad_output.detach().to(inputs.dtype).contiguous()
    new = grad_output.new_zeros
    dq, dk = new(L, heads, H, queries), new(L, kv_heads, H, keys)
    dv, dw = new(L, kv_heads, keys, inputs.value.shape[-1]), new(L, heads, H)
    dbias = None if inputs.bias is None else new(inputs.bias.shape)
    if L * heads * queries * keys:
        delta = (grad_output * output.detach()).sum(-1)
        BM, BN, BE = _block(queries), _block(keys), min(_power(dv.shape[-1]), 32)
        grads = (dq, dk, dv, dw, dbias, _strides(dbias, inputs.shape))
        with _device_of(grad_output):
            loops.backward[L * heads, triton.cdiv(keys, BN)](
                _prepare(inputs), grad_output, delta, logsumexp, *grads, *_drop(seed, dropout_p),
                BM=BM, BN=BN, BE=BE, num_stages=1,
            )  # fmt: skip
    grad_vector = -2 * (dw.sum(0) if inputs.score_vector.ndim == 2 else dw.sum((0, 1)))  # sum_j dS_ij is 0
    grad_bias = new(0) if dbias is None else dbias
    return (
        dq.mT.contiguous().to(inputs.query.dtype),
        dk.mT.contiguous().to(inputs.key.dtype),
        dv.to(inputs.value.dtype),
        grad_vector.to(inputs.score_vector.dtype),
        grad_bias.to(inputs.value.dtype),
    )


def statistics(inputs: Inputs, request: StatisticsRequest, most: int = _WEIGHTS) -> list[Tensor]:
    """Return the answers, with heads as (L Hq, ...), from blocks of at most so many weights."""
    L, heads, queries, keys = inputs.shape
    _, logsumexp = forward(inputs, None, 0.0)
    logsumexp = logsumexp.view(L * heads, queries)
    return accumulate(_weight_blocks(inputs, logsumexp, most), logsumexp, 1, keys, request)


def _weight_blocks(inputs: Inputs, logsumexp: Tensor, most: int) -> Iterator[WeightBlock]:
    """Yield all weights, some rows at a time."""
    L, heads, queries, keys = inputs.shape
    if not L * heads * queries * keys:
        return
    count = min(queries, max(1, most // keys))
    together = min(L * heads, max(1, most // (count * keys)))
    BM, BN = _block(count), _block(keys)
    with _device_of(logsumexp):
        prepared = _prepare(inputs)
        for head in range(0, L * heads, together):
            for row in range(0, queries, count):
                size = (min(together, L * heads - head), min(count, queries - row))
                weights = logsumexp.new_empty(*size, keys)
                grid = (size[0], triton.cdiv(size[1], BM), triton.cdiv(keys, BN))
                loops.weights_of_rows[grid](prepared, logsumexp, weights, head, row, size[1], BM=BM, BN=BN)
                yield WeightBlock(head, row, 0, weights)


def _prepare(inputs: Inputs) -> PreparedInputs:
    """Return exponentials, and all else that the loops read."""
    query, key, value, vector, bias, (low, high, keep, table) = inputs
    (L, heads, queries, keys), dtype, H = inputs.shape, inputs.dtype, query.shape[-1]
    query, key, value, vector = query.detach(), key.detach(), value.detach(), vector.detach().to(dtype).view(-1, H)
    of_q, of_k = (torch.where(x.isfinite(), x, -torch.inf).amax((0, 1, 2)).double() for x in (query, key))
    # A product below 2^-24 (float32) vanishes beside 1: A or B may be as small as exponents allow, and the other as
    # large as that permits.
    room, cap = (70.0, 2.0**30) if dtype == torch.float32 else (670.0, 2.0**60)
    direct = (~(of_q + of_k <= room)).any().int()
    shift = torch.where(torch.maximum(of_q, of_k) > room / 2, (of_k - of_q) / 2, 0.0)
    shift = torch.where(shift.isfinite(), shift, 0.0)
    scale, padded = torch.linalg.vector_norm(vector, torch.inf, -1), max(4, H + -H % 4)
    return PreparedInputs(
        _powers(query, shift, direct, 1, padded, dtype),
        _powers(key, shift, direct, -1, padded, dtype),
        value,
        value.stride(),
        torch.nn.functional.pad(vector / torch.where(scale > 0, scale, 1.0)[:, None], (0, padded - H)),
        scale,
        _nan_if_nonfinite(query).to(dtype),
        (_nan_if_nonfinite(key) + _nan_if_nonfinite(value)).to(dtype),
        direct,
        None if keep is None else keep.contiguous().view(torch.uint8),
        None if keep is None else _extent(keep),
        None if table is None else table.view(torch.uint8),
        _strides(table, inputs.shape),
        None if bias is None else bias.detach(),
        _strides(bias, inputs.shape),
        low,
        high,
        heads,
        heads // key.shape[1],
        1 if keep is None else max(1, L // keep.shape[0]),
        vector.shape[0],
        queries,
        keys,
        H,
        padded,
        value.shape[-1],
        cap,
    )


def _powers(rows: Tensor, shift: Tensor, direct: Tensor, sign: int, padded: int, dtype: torch.dtype) -> Tensor:
    """See `loops.powers`."""
    L, heads, length, H = rows.shape
    out = rows.new_empty(L * heads, padded, length, dtype=dtype)
    BT, BH = min(64, _power(length)), 32
    loops.powers[L * heads, triton.cdiv(length, BT), triton.cdiv(padded, BH)](
        rows, rows.stride(), shift, direct, out, heads, length, H, padded, SIGN=sign, BT=BT, BH=BH
    )
    return out


def _nan_if_nonfinite(rows: Tensor) -> Tensor:
    """Return 0 for each row that is finite, NaN for the others."""
    return rows.mul(0).sum(-1).contiguous()


def _extent(keep: Tensor) -> Tensor:
    """Return (B, 2) int32: the first key that is kept, and the first behind the last."""
    index = torch.arange(keep.shape[1], device=keep.device)
    first, end = torch.where(keep, index, keep.shape[1]).amin(1), torch.where(keep, index + 1, 0).amax(1)
    return torch.stack((first, end), 1).int()


def _strides(tensor: Tensor | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides with which a tensor broadcasts to the shape."""
    return _NO_STRIDES if tensor is None else tensor.expand(shape).stride()


def _drop(seed: Tensor | None, dropout_p: float) -> tuple[int, int, bool]:
    """Return the seed, how many of 2^32 numbers drop a weight, and whether there is dropout at all."""
    if not dropout_p or seed is None:
        return 0, 0, False
    return int(seed), min(int(dropout_p * 2**32), 2**32), True


def _power(size: int) -> int:
    """Return the size of a block for so many: a power of two, at least 16, as `tl.dot` requires."""
    return max(16, 1 << (size - 1).bit_length())


def _block(size: int) -> int:
    """Return the queries or keys of a block. With more than 32 x 32 pairs, code for sm_90 spills its registers."""
    return min(32, _power(size))


def _device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's GPU the current one, on which Triton starts kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
