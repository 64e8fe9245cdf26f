"""The statistics of an attention: alone, or beside its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard._kernels import reference
from regard._kernels.statistics import dot, dot_blocks
from regard.functional import additive
from regard.functional.axes import broadcast, four_axes
from regard.functional.checks import check_observe
from regard.functional.mask import Mask
from regard.functional.nonfinite import SafeInputs, make_safe, nonfinite_rows
from regard.functional.observe import Observation, Observe, observation_of, request_of, statistics_of_weights
from regard.functional.prepared_call import SCALED_DOT, PreparedCall, prepare

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional.scores import Score, Terms

__all__ = ["observed", "of_dot_products", "of_weights"]


def observed(
    query: Float[Tensor, "*heads Tq E"],
    key: Float[Tensor, "*kv_heads Tk E"],
    observe: Observe,
    *,
    score: Score = SCALED_DOT,
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
    bias: Float[Tensor, "*biased Tq Tk"] | None = None,
) -> Observation:
    """Return the statistics of `attention` without its output: P_i = softmax_j(score(q_i, k_j) + bias_ij), no values.

    The arguments, the statistics and the errors are those of `attention`. They have no gradient.

    >>> query, key = torch.tensor([[1.0, 2.0], [1.0, 1.0]]), torch.eye(2)
    >>> statistics = observed(query, key, Observe(received=True, max=True))
    >>> print(statistics.received, statistics.max)
    tensor([0.8302, 1.1698]) tensor([0.6698, 0.5000])
    """
    call = prepare(query, key, key, score=score, mask=mask, bias=bias, dropout_p=0.0, observe=None, impl="auto")
    check_observe(observe, call.shape)
    with torch.no_grad():
        return call.run(lambda call: _observe(call, observe))


def _observe(call: PreparedCall, observe: Observe) -> Observation:
    if call.kernel in ("cpu", "triton"):
        return additive.observe(call, observe)
    structured = call.bias is None and call.mask is not None and not call.mask.tables
    if call.kernel == "sdpa" and structured and _worth_blocks(observe, call.query, call.key):
        safe = SafeInputs(call.query, call.key, call.value, None, None, nonfinite=nonfinite_rows(call))
    else:
        safe = make_safe(call, assume_finite=False)
    if call.kernel == "sdpa":
        return of_dot_products(call, observe, safe, call.score.terms(safe.query))
    inputs = safe.query, safe.key, safe.bias, safe.allowed
    return of_weights(observe, safe, *reference.weights_and_scores(*inputs, scores=call.score.grouped_matrix))


def of_weights(observe: Observe, safe: SafeInputs, weights: Tensor, scores: Tensor) -> Observation:
    """Return the statistics of given weights and of their scores, which are -inf where masked."""
    return _by_matrix(observe, safe, weights, scores.logsumexp(-1) if observe.logsumexp else None)


def of_dot_products(call: PreparedCall, observe: Observe, safe: SafeInputs, terms: Terms) -> Observation:
    """Return the statistics of dot products from blocks of their weights, or from a small matrix made for it."""
    query, bias, allowed = terms.query, safe.bias, safe.allowed
    if call.mask is None and call.bias is None:  # an infinite query has no finite score: its weights are NaN
        query = query.masked_fill(query.isinf().any(-1, keepdim=True), torch.nan)
    if _worth_blocks(observe, query, safe.key):
        return _by_blocks(call, observe, safe, query, terms.scale)
    if safe.is_causal and call.mask is not None:
        allowed = call.mask.table(call.shape, query.device)
    inputs = query, safe.key, bias, allowed
    made = reference.dot_weights_in_place(*inputs, scale=terms.scale, logsumexp=observe.logsumexp)
    return _by_matrix(observe, safe._replace(allowed=allowed), *made)


def _worth_blocks(observe: Observe, query: Tensor, key: Tensor) -> bool:
    """Return whether to avoid the matrix: it is not requested, and large. Compiled graphs (symbolic sizes) build it."""
    if observe.weights or torch.compiler.is_compiling():
        return False
    return not dot_blocks.fits_one_block(query, key.shape[-2])


def _by_blocks(call: PreparedCall, observe: Observe, safe: SafeInputs, query: Tensor, scale: float) -> Observation:
    """Return the statistics from blocks of queries; queries that may attend to no key need no substitute key here."""
    mask = (call.mask or Mask()).parts(call.shape, query.device)
    query, key = four_axes(query), four_axes(safe.key)
    bias, table, nonfinite = (broadcast(x, call.shape) for x in (call.bias, mask.table, safe.nonfinite))
    scores = dot_blocks.prepare(query, key, scale, bias, mask._replace(table=table), nonfinite)
    request = request_of(observe, call.shape[-1])
    if dot_blocks.served_by_scan(scores, request):
        from regard._kernels.cpu import dot_statistics  # brings Numba

        return observation_of(request, dot_statistics.statistics(scores, request), call.shape)
    return observation_of(request, dot.statistics(scores, request), call.shape)


def _by_matrix(observe: Observe, safe: SafeInputs, weights: Tensor, logsumexp: Tensor | None) -> Observation:
    """Return the statistics from the matrix; empty rows that were opened for a kernel count as empty."""
    allowed = safe.allowed
    if allowed is not None and safe.empty is not None:
        allowed = allowed & ~safe.empty
    if logsumexp is not None and safe.empty is not None:
        logsumexp = logsumexp.masked_fill(safe.empty.squeeze(-1), -torch.inf)
    if logsumexp is not None and safe.nonfinite is not None:
        logsumexp = logsumexp.masked_fill(safe.nonfinite.squeeze(-1), torch.nan)
    hidden = None if allowed is None else ~allowed
    return statistics_of_weights(observe, safe.restore_rows(weights), logsumexp, hidden)
