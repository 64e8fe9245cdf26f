"""The operator: validate, choose a kernel, call it, and tell what was asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, overload

import torch
from torch import Tensor

from regard._kernels import dot_statistics, reference, sdpa
from regard.functional.checks import autocast_dtype, check_arguments
from regard.functional.choice import Impl, choose, explain
from regard.functional.fused import attend_additive, broadcast, four_axes
from regard.functional.masks import Mask
from regard.functional.observe import Asked, Observation, Observe, summarise
from regard.functional.scores import Additive, ScaledDot, Score
from regard.functional.shield import Shielded, shield

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

__all__ = ["Impl", "attention", "explain_impl"]

_SCALED_DOT = ScaledDot()


@overload
def attention(
    query: Float[Tensor, "*heads Tq E"],
    key: Float[Tensor, "*kv_heads Tk E"],
    value: Float[Tensor, "*kv_heads Tk Ev"],
    *,
    score: Score = ...,
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = ...,
    bias: Float[Tensor, "*biased Tq Tk"] | None = ...,
    dropout_p: float = ...,
    observe: None = ...,
    impl: Impl = ...,
) -> Float[Tensor, "*heads Tq Ev"]: ...
@overload
def attention(
    query: Float[Tensor, "*heads Tq E"],
    key: Float[Tensor, "*kv_heads Tk E"],
    value: Float[Tensor, "*kv_heads Tk Ev"],
    *,
    score: Score = ...,
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = ...,
    bias: Float[Tensor, "*biased Tq Tk"] | None = ...,
    dropout_p: float = ...,
    observe: Observe,
    impl: Impl = ...,
) -> tuple[Float[Tensor, "*heads Tq Ev"], Observation]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = _SCALED_DOT,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    observe: Observe | None = None,
    impl: Impl = "auto",
) -> Tensor | tuple[Tensor, Observation]:
    """Each query takes a weighted mean of the values, with weights from how well it agrees with their keys.

    output_i = sum_j P_ij v_j,  P_i = softmax_j(score(q_i, k_j) + bias_ij) over the keys j that i may attend to
    (Bahdanau et al. 2015, equations 5 and 6; Vaswani et al. 2017, equation 1).

    Shapes: query (..., Hq, Tq, E), key (..., Hkv, Tk, E), value (..., Hkv, Tk, Ev), output (..., Hq, Tq, Ev), leading
    axes equal. Hq is a multiple of Hkv, and each key head serves Hq/Hkv query heads that stand side by side. Without
    heads: (Tq, E), (Tk, E), (Tk, Ev). One floating dtype for all; half precision accumulates in float32.

    - ``score``: `ScaledDot` (the default), `Dot`, `General` or `Additive`.
    - ``mask``: `causal`, `window`, `padding`, `dense`, composed by ``&``, or a bool tensor of the query's rank with
      sizes 1 or equal. True = may attend. A query that may attend to nothing gives 0. What is masked has no influence.
    - ``bias``: added to the scores, of the query's rank and dtype, sizes 1 or equal; -inf masks.
    - ``dropout_p``: applied to the weights whenever it is above 0, so a layer passes 0 in evaluation.
    - ``observe``: an `Observe` asks for statistics; then ``(output, Observation)`` is returned.
    - ``impl``: "auto", or "reference", "sdpa", "cpu" or "triton", which never fall back to another. See `explain_impl`.

    Raises ArgumentError for arguments that do not fit together, UnsupportedError where the named ``impl`` cannot serve.

    >>> query, key = torch.tensor([[1.0, 2.0], [1.0, 1.0]]), torch.eye(2)
    >>> output, seen = attention(query, key, key, observe=Observe(weights=True))
    >>> print(seen.weights)
    tensor([[0.3302, 0.6698],
            [0.5000, 0.5000]])
    """
    shape, mask = check_arguments(query, key, value, score, mask, bias, dropout_p, observe)
    lower = autocast_dtype(query)
    if lower is not None:
        query, key, value = query.to(lower), key.to(lower), value.to(lower)
        bias = None if bias is None else bias.to(lower)
    call = _Call(shape, score, mask, dropout_p, observe, choose(impl, score, query, key, dropout_p))
    if lower is None:
        return _attend(call, query, key, value, bias)
    with torch.autocast(query.device.type, enabled=False):
        return _attend(call, query, key, value, bias)


class _Call(NamedTuple):
    """What was asked, checked."""

    shape: tuple[int, ...]  # of the scores
    score: Score
    mask: Mask | None
    dropout_p: float
    observe: Observe | None
    kernel: str


def _attend(
    call: _Call, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, trust: bool = True
) -> Tensor | tuple[Tensor, Observation]:
    causal, inputs = False, (query, key, value)
    if call.kernel in ("cpu", "triton") and isinstance(call.score, Additive):
        rest = (bias, call.mask, call.shape, call.dropout_p, call.observe, call.kernel)
        output, seen = attend_additive(query, key, value, call.score.weight, *rest)
        return output if seen is None else (output, seen)
    if call.mask is None and bias is None:
        given = Shielded(query, key, value, None, None)
    else:
        mask = call.mask or Mask()
        causal = call.kernel == "sdpa" and bias is None and mask.is_causal_from_start(*call.shape[-2:])
        trust = trust and call.observe is None and not call.dropout_p
        trust = trust and not (torch.is_grad_enabled() and _differentiable(*inputs, bias, *call.score.tensors()))
        given = shield(*inputs, bias, mask, call.shape, causal=causal, trust=trust)
    query, scale, weight = call.score.terms(given.query)
    given = given._replace(query=query)
    attended: reference.Attended | None = None
    if call.kernel == "sdpa":
        output = sdpa.attend(*given[:5], scale=scale, causal=causal, dropout_p=call.dropout_p)
    else:
        attended = reference.attend(*given[:5], scale=scale, weight=weight, dropout_p=call.dropout_p)
        output = attended.output
    if given.trusted and not math.isfinite(output.sum().item()):  # a sum is the quickest look at all numbers
        return _attend(call, *inputs, bias, trust=False)
    output = given.finish(output)
    if call.observe is None:
        return output
    with torch.no_grad():
        if attended is None and _worth_streaming(call.observe, given):
            return output, _streamed(call, call.observe, given, scale)
        if causal and call.mask is not None:
            given = given._replace(allowed=call.mask.table(call.shape, query.device))
        return output, _observation(call.observe, attended, given, scale)


def _worth_streaming(what: Observe, given: Shielded) -> bool:
    """Whether the matrix is neither asked for nor small. Compiled graphs, whose sizes may be symbols, build it."""
    if what.weights or torch.compiler.is_compiling():
        return False
    return not dot_statistics.fits_one_block(given.query, given.key.shape[-2])


def _streamed(call: _Call, what: Observe, given: Shielded, scale: float) -> Observation:
    """The statistics, from blocks of queries."""
    low, high, _, _ = (call.mask or Mask()).parts(call.shape, given.query.device)
    masked = (broadcast(x, call.shape) for x in (given.bias, given.allowed, given.empty, given.spoiled))
    query, key = four_axes(given.query), four_axes(given.key)
    asked = Asked.of(what, call.shape[-1])
    looked = dot_statistics.Looked(query, key, scale, low, high, *masked)
    answers = dot_statistics.gather(looked, asked.per_query, asked.rows, asked.top, asked.names)
    return asked.answer(answers, call.shape)


def _observation(what: Observe, attended: reference.Attended | None, given: Shielded, scale: float) -> Observation:
    """The statistics, from the matrix; rows that the kernel was given in place of empty ones count as empty."""
    query, key, _, bias, allowed = given[:5]
    if attended is None:
        weights, logsumexp = reference.weights(query, key, bias, allowed, scale=scale, logsumexp=what.logsumexp)
    else:
        weights = attended.weights.detach()
        logsumexp = attended.scores.detach().logsumexp(-1) if what.logsumexp else None
    if allowed is not None and given.empty is not None:
        allowed = allowed & ~given.empty
    if logsumexp is not None and given.empty is not None:
        logsumexp = logsumexp.masked_fill(given.empty.squeeze(-1), -torch.inf)
    if logsumexp is not None and given.spoiled is not None:
        logsumexp = logsumexp.masked_fill(given.spoiled.squeeze(-1), torch.nan)
    return summarise(what, given.finish(weights), logsumexp, None if allowed is None else ~allowed)


def explain_impl(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = _SCALED_DOT,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    observe: Observe | None = None,
    impl: Impl = "auto",
) -> str:
    """Say which kernel `attention` takes for the same arguments, and why not the others.

    >>> query = torch.zeros(2, 3)
    >>> print(explain_impl(query, query, query, score=Additive(torch.ones(3))))
    auto takes cpu: a kernel for additive scores, in linear memory
    not reference: it builds the matrix of scores
    not sdpa: it computes dot products, and Additive is none
    not triton: the tensors are on cpu
    """
    check_arguments(query, key, value, score, mask, bias, dropout_p, observe)
    note = ""
    if torch.is_grad_enabled() and _differentiable(bias):
        note = " (for the gradient of a bias torch builds the matrix too)"
    return explain(impl, score, query, key, dropout_p, note)


def _differentiable(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)
