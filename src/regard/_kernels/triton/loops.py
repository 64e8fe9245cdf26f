"""Loops of additive attention for Triton: blocks of queries against blocks of keys, with an online softmax.

With A = e^(2q) and B = e^(2k), tanh(q + k) = 1 - 2/x where x = 1 + A B, so that no exponential is left in the loop over
features. Four of them share a division, as fractions are added:

w0/x0 + w1/x1 + w2/x2 + w3/x3 = ((w0 x1 + w1 x0) x2 x3 + (w2 x3 + w3 x2) x0 x1) / (x0 x1 x2 x3)

Each x is held below ``cap``, where 2/x is below the precision of tanh, so that the product of four is finite.
The lanes run along queries and keys, so A and B lie in memory as (features, queries) and (features, keys).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class PreparedInputs(NamedTuple):
    """The inputs of all loops, in float32 or float64. A pair of example and query head has one number, z."""

    A: Any  # (L Hq, padded, Tq): e^(2(q + c)), or q itself if `direct`
    B: Any  # (L Hkv, padded, Tk): e^(2(k - c)), or k itself
    value: Any  # (L, Hkv, Tk, Ev), of any strides and dtype
    value_strides: Any
    score_vector: Any  # (vectors, padded), divided by `scale`: large numbers must not overflow a product of four
    scale: Any  # (vectors,)
    query_nan: Any  # (L Hq, Tq): 0, or NaN for a query that is not finite
    key_nan: Any  # (L Hkv, Tk): 0, or NaN where key or value is not finite
    direct: Any  # (1,) int32: 1 where exponentials would leave the range
    keep: Any  # (B, Tk) uint8, or None
    kept: Any  # (B, 2) int32: the first key that padding keeps, and the first behind the last
    table: Any  # uint8 that broadcasts to (L, Hq, Tq, Tk), or None
    table_strides: Any
    bias: Any  # likewise
    bias_strides: Any
    low: Any  # query i may attend to the keys j with i + low <= j < i + high
    high: Any
    heads: Any
    group: Any  # query heads to a key head
    sharing: Any  # examples that share a row of `keep`
    vectors: Any  # 1, or one for each query head
    queries: Any
    keys: Any
    features: Any
    padded: Any  # features, filled up to a multiple of four, with weights of 0 (at least four)
    width: Any  # the features of a value
    cap: Any


@triton.jit
def powers(
    rows, strides, shift, direct, out, heads, length, features, padded,
    SIGN: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Write e^(2(x + SIGN c)) of rows (L, heads, T, H) into ``out`` (L heads, padded, T); x if direct; 0 if not finite.

    In float64, as an exponent of 40 that is rounded to float32 would cost five digits; there are few of them.
    """
    z = tl.program_id(0).to(tl.int64)
    t, h = tl.program_id(1) * BT + tl.arange(0, BT), tl.program_id(2) * BH + tl.arange(0, BH)
    at = rows + z // heads * strides[0] + z % heads * strides[1]
    at += t.to(tl.int64)[:, None] * strides[2] + h[None, :] * strides[3]
    x = tl.load(at, mask=(t < length)[:, None] & (h < features)[None, :], other=0.0).to(tl.float64)
    finite = tl.abs(x) < float("inf")
    x = tl.where(finite, x, 0.0)
    if tl.load(direct) == 0:
        x = tl.exp(2 * (x + SIGN * tl.load(shift + h, mask=h < features, other=0.0)[None, :]))
    x = tl.trans(tl.where(finite, x, 0.0)).to(out.dtype.element_ty)
    at = out + (z * padded + h)[:, None] * length + t[None, :]
    tl.store(at, x, mask=(h < padded)[:, None] & (t < length)[None, :])


@triton.jit
def _vector(p, z):
    """Return the number of a query head's score vector."""
    return z % p.heads % p.vectors


@triton.jit
def _x(at_query, at_key, rows, keys, DIRECT: tl.constexpr):
    """Return 1 + e^(2(q + k)) of one feature for all pairs; it may be infinite, but is never NaN."""
    a, b = tl.load(at_query, mask=rows, other=0.0)[:, None], tl.load(at_key, mask=keys, other=0.0)[None, :]
    e = tl.exp(2 * (a + b)) if DIRECT else a * b
    return 1 + e


@triton.jit
def _tanh_sum(p, z, rows, keys, DIRECT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Return sum_h w_h tanh(q_h + k_h), with a score vector w divided by its scale."""
    w, q, k = p.score_vector + _vector(p, z) * p.padded, p.queries, p.keys
    a, b, cap = p.A + z * p.padded * q + rows, p.B + z // p.group * p.padded * k + keys, p.cap
    of_rows, of_keys = rows < q, keys < k
    total = tl.load(w) * 0
    shares = tl.zeros((BM, BN), p.A.dtype.element_ty)
    for h in range(0, p.padded, 4):
        w0, w1, w2, w3 = tl.load(w + h), tl.load(w + h + 1), tl.load(w + h + 2), tl.load(w + h + 3)
        x0 = tl.minimum(_x(a + h * q, b + h * k, of_rows, of_keys, DIRECT), cap)
        x1 = tl.minimum(_x(a + (h + 1) * q, b + (h + 1) * k, of_rows, of_keys, DIRECT), cap)
        x2 = tl.minimum(_x(a + (h + 2) * q, b + (h + 2) * k, of_rows, of_keys, DIRECT), cap)
        x3 = tl.minimum(_x(a + (h + 3) * q, b + (h + 3) * k, of_rows, of_keys, DIRECT), cap)
        left, right = x0 * x1, x2 * x3
        shares += ((w0 * x1 + w1 * x0) * right + (w2 * x3 + w3 * x2) * left) / (left * right)
        total += (w0 + w1) + (w2 + w3)
    return total - 2 * shares


@triton.jit
def _scores(p, z, rows, keys, BM: tl.constexpr, BN: tl.constexpr):
    """Return the scores of a block, -inf if masked and NaN if nonfinite, and which pairs are visible."""
    if tl.load(p.direct) != 0:
        scores = _tanh_sum(p, z, rows, keys, True, BM, BN)
    else:
        scores = _tanh_sum(p, z, rows, keys, False, BM, BN)
    query_nan = tl.load(p.query_nan + z * p.queries + rows, mask=rows < p.queries, other=0.0)
    key_nan = tl.load(p.key_nan + z // p.group * p.keys + keys, mask=keys < p.keys, other=0.0)
    scores = tl.load(p.scale + _vector(p, z)) * scores + query_nan[:, None] + key_nan[None, :]
    i, j = rows[:, None], keys[None, :]
    inside = (i < p.queries) & (j < p.keys)
    visible = inside & (j >= i + p.low) & (j < i + p.high)
    if p.keep is not None:
        keep = tl.load(p.keep + z // p.heads // p.sharing * p.keys + keys, mask=keys < p.keys, other=0)
        visible = visible & (keep != 0)[None, :]
    if p.table is not None:
        visible = visible & (tl.load(p.table + _offset(p, z, i, j, p.table_strides), mask=inside, other=0) != 0)
    if p.bias is not None:
        bias = tl.load(p.bias + _offset(p, z, i, j, p.bias_strides), mask=inside, other=0.0).to(scores.dtype)
        visible = visible & (bias != float("-inf"))
        scores += bias
    return tl.where(visible, scores, float("-inf")), visible


@triton.jit
def _offset(p, z, i, j, strides):
    """Return offsets into a tensor that broadcasts to (L, Hq, Tq, Tk); they may exceed 2^31."""
    of_head = z // p.heads * strides[0] + z % p.heads * strides[1]
    return of_head + i.to(tl.int64) * strides[2] + j.to(tl.int64) * strides[3]


@triton.jit
def _finite_values(p, z, keys, values):
    """Return the values of a block, 0 if nonfinite, which makes the scores NaN instead: 0 weight times NaN is NaN."""
    at = p.value + z // p.heads * p.value_strides[0] + z % p.heads // p.group * p.value_strides[1]
    at += keys.to(tl.int64)[:, None] * p.value_strides[2] + values[None, :] * p.value_strides[3]
    v = tl.load(at, mask=(keys < p.keys)[:, None] & (values < p.width)[None, :], other=0.0).to(p.A.dtype.element_ty)
    return tl.where(tl.abs(v) < float("inf"), v, 0.0)


@triton.jit
def _dropout_factors(seed, threshold, z, rows, keys, dtype: tl.constexpr):
    """Return the factors of dropout, 0 or 1/(1 - p): a function of the seed, the head, the query and the key alone."""
    i, j = tl.broadcast(rows[:, None].to(tl.uint32), keys[None, :].to(tl.uint32))
    bits, _, _, _ = tl.philox(seed, j, i, 0 * i + z.to(tl.uint32), 0 * i)
    factor = 4294967296.0 / (4294967296 - threshold.to(tl.int64)).to(dtype)
    return tl.where(bits.to(tl.int64) < threshold.to(tl.int64), 0.0, factor)


@triton.jit
def _key_range(p, z, row, BM: tl.constexpr):
    """Return the first key that band and padding leave to any of the rows from ``row`` on, and the end of the last."""
    first, end = tl.maximum(row + p.low, 0), tl.minimum(tl.minimum(row + BM, p.queries) - 1 + p.high, p.keys)
    if p.keep is not None:
        example = z // p.heads // p.sharing
        first = tl.maximum(first, tl.load(p.kept + 2 * example))
        end = tl.minimum(end, tl.load(p.kept + 2 * example + 1))
    return first, end


@triton.jit
def _row_range(p, z, key, BN: tl.constexpr):
    """Return the first and the end of the rows to which band and padding leave any of the keys from ``key`` on."""
    first, end = tl.maximum(key - p.high + 1, 0), tl.minimum(tl.minimum(key + BN, p.keys) - p.low, p.queries)
    if p.keep is not None:
        example = z // p.heads // p.sharing
        kept = (tl.load(p.kept + 2 * example) < key + BN) & (tl.load(p.kept + 2 * example + 1) > key)
        end = tl.where(kept, end, 0)
    return first, end


@triton.jit(do_not_specialize=["seed", "threshold"])
def attend(
    p, out, logsumexp, seed, threshold, DROP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr
):
    """Write output (L Hq, Tq, Ev) and logsumexp (L Hq, Tq) of BM rows; axis 2 of the grid cuts values wider than BE."""
    z, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * BM
    rows, values = row + tl.arange(0, BM), tl.program_id(2) * BE + tl.arange(0, BE)
    dtype: tl.constexpr = p.A.dtype.element_ty
    largest = tl.full((BM,), float("-inf"), dtype)
    total, mixed = tl.zeros((BM,), dtype), tl.zeros((BM, BE), dtype)
    first, end = _key_range(p, z, row, BM)
    for start in range(first // BN * BN, end, BN):
        keys = start + tl.arange(0, BN)
        scores, _ = _scores(p, z, rows, keys, BM, BN)
        new = tl.maximum(largest, tl.max(scores, 1))
        finite = tl.where(new == float("-inf"), 0.0, new)
        weights, old = tl.exp(scores - finite[:, None]), tl.exp(largest - finite)
        total = total * old + tl.sum(weights, 1)
        if DROP:
            weights *= _dropout_factors(seed, threshold, z, rows, keys, dtype)
        mixed = mixed * old[:, None] + tl.dot(
            weights, _finite_values(p, z, keys, values), input_precision="ieee", out_dtype=dtype
        )
        largest = new
    empty = total == 0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    at = out + (z * p.queries + rows)[:, None] * p.width + values[None, :]
    tl.store(at, mixed, mask=(rows < p.queries)[:, None] & (values < p.width)[None, :])
    found = tl.where(empty, float("-inf"), largest + tl.log(total))
    if tl.program_id(2) == 0:
        tl.store(logsumexp + z * p.queries + rows, found, mask=rows < p.queries)


@triton.jit
def _backward_features(p, z, rows, keys, grad_scores, dq, dk, dw, DIRECT: tl.constexpr):
    """Add 4 w sum t (1 - r) to dq over keys and to dk over queries, and sum t to dw, where r = 1/x and t = dS r."""
    w, scale, q, k = p.score_vector + _vector(p, z) * p.padded, 4 * tl.load(p.scale + _vector(p, z)), p.queries, p.keys
    a, b = p.A + z * p.padded * q + rows, p.B + z // p.group * p.padded * k + keys
    of_rows, of_keys = rows < q, keys < k
    at_query, at_key, at_weight = dq + z * p.features * q, dk + z // p.group * p.features * k, dw + z * p.features
    for h in range(0, p.features):
        r = 1 / _x(a + h * q, b + h * k, of_rows, of_keys, DIRECT)
        t = grad_scores * r
        of_both = t - t * r
        factor = scale * tl.load(w + h)
        tl.atomic_add(at_query + h * q + rows, factor * tl.sum(of_both, 1), mask=of_rows, sem="relaxed")
        tl.atomic_add(at_key + h * k + keys, factor * tl.sum(of_both, 0), mask=of_keys, sem="relaxed")
        tl.atomic_add(at_weight + h, tl.sum(tl.sum(t, 1), 0), sem="relaxed")


@triton.jit(do_not_specialize=["seed", "threshold"])
def backward(
    p, grad_output, delta, logsumexp, dq, dk, dv, dw, dbias, dbias_strides, seed, threshold,
    DROP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Add gradients by BN keys of a query head: dq (L Hq, H, Tq), dk (L Hkv, H, Tk), dv (L Hkv, Tk, Ev), dw (L Hq, H).

    dS_ij = P_ij (m_ij dP_ij - delta_i) with dropout's m, and delta_i = dO_i . O_i, (L Hq, Tq). Scores are computed once
    for all gradients; that several programs add to a query makes the order of additions, and the last bits, vary.
    """
    z, key = tl.program_id(0).to(tl.int64), tl.program_id(1) * BN
    keys = key + tl.arange(0, BN)
    dtype: tl.constexpr = p.A.dtype.element_ty
    first, end = _row_range(p, z, key, BN)
    for start in range(first // BM * BM, end, BM):
        rows = start + tl.arange(0, BM)
        total = tl.load(logsumexp + z * p.queries + rows, mask=rows < p.queries, other=float("-inf"))
        usable = (total == total) & (total > float("-inf"))  # rows without a visible key, or with NaN, have no gradient
        scores, visible = _scores(p, z, rows, keys, BM, BN)
        visible = visible & usable[:, None]
        weights = tl.where(visible, tl.exp(scores - tl.where(usable, total, 0.0)[:, None]), 0.0)
        dropped, factors = weights, tl.full((BM, BN), 1.0, dtype)
        if DROP:
            factors = _dropout_factors(seed, threshold, z, rows, keys, dtype)
            dropped = weights * factors
        grad_weights = tl.zeros((BM, BN), dtype)
        for e in range(0, p.width, BE):
            values = e + tl.arange(0, BE)
            there = values < p.width
            at = grad_output + (z * p.queries + rows)[:, None] * p.width + values[None, :]
            d = tl.load(at, mask=usable[:, None] & there[None, :], other=0.0)
            grad_weights += tl.dot(
                d, tl.trans(_finite_values(p, z, keys, values)), input_precision="ieee", out_dtype=dtype
            )
            grad_values = tl.dot(tl.trans(dropped), d, input_precision="ieee", out_dtype=dtype)
            at = dv + (z // p.group * p.keys + keys)[:, None] * p.width + values[None, :]
            tl.atomic_add(at, grad_values, mask=(keys < p.keys)[:, None] & there[None, :], sem="relaxed")
        of_row = tl.load(delta + z * p.queries + rows, mask=usable, other=0.0)
        grad_scores = tl.where(visible, weights * (factors * grad_weights - of_row[:, None]), 0.0)
        if dbias is not None:
            at = dbias + _offset(p, z, rows[:, None], keys[None, :], dbias_strides)
            tl.atomic_add(at, grad_scores, mask=visible, sem="relaxed")
        if tl.load(p.direct) != 0:
            _backward_features(p, z, rows, keys, grad_scores, dq, dk, dw, True)
        else:
            _backward_features(p, z, rows, keys, grad_scores, dq, dk, dw, False)


@triton.jit
def weights_of_rows(p, logsumexp, out, head, row, count, BM: tl.constexpr, BN: tl.constexpr):
    """Write the weights (heads, count, Tk) of heads from ``head`` and ``count`` rows from ``row`` on; -1 if masked."""
    z = tl.program_id(0).to(tl.int64) + head
    local, keys = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(2) * BN + tl.arange(0, BN)
    rows = row + local
    inside = (local < count) & (rows < p.queries)
    scores, visible = _scores(p, z, rows, keys, BM, BN)
    total = tl.load(logsumexp + z * p.queries + rows, mask=inside, other=0.0)
    weights = tl.where(visible, tl.exp(scores - total[:, None]), -1.0)
    at = out + (tl.program_id(0).to(tl.int64) * count + local)[:, None] * p.keys + keys[None, :]
    tl.store(at, weights, mask=inside[:, None] & (keys < p.keys)[None, :])
