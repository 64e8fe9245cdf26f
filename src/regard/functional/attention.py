"""The operator: validate, choose a kernel, call it, and tell what was asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from regard._kernels import reference, sdpa
from regard._kernels.statistics import dot as dot_statistics
from regard.functional.additive import attend_additive, broadcast, four_axes, observe_additive
from regard.functional.checks import autocast_dtype, check_arguments, check_observe
from regard.functional.kernel_choice import Impl, choose, explain
from regard.functional.masks import Mask
from regard.functional.nonfinite import Shielded, shield, spoiled_rows
from regard.functional.observe import Observation, Observe, answered, asked_of, summarise
from regard.functional.reporting import is_heard
from regard.functional.scores import Additive, ScaledDot, Score

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

__all__ = ["Impl", "attention", "explain_impl", "observed"]

_SCALED_DOT = ScaledDot()
_Found = tuple[Tensor, Tensor]  # weights, and scores with -inf where masked


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
    if is_heard():
        this: Any = attention
        options = {"score": score, "mask": mask, "bias": bias, "dropout_p": dropout_p, "observe": observe, "impl": impl}
        heard: Tensor | tuple[Tensor, Observation]
        heard = handle_torch_function(this, (query, key, value), query, key, value, **options)
        return heard
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
    if call.kernel in ("cpu", "triton") and isinstance(call.score, Additive):
        rest = (bias, call.mask, call.shape, call.dropout_p, call.observe, call.kernel)
        output, seen = attend_additive(query, key, value, call.score.weight, *rest)
        return output if seen is None else (output, seen)
    trust = trust and call.observe is None and not call.dropout_p
    inputs = (query, key, value)
    trust = trust and not (torch.is_grad_enabled() and _differentiable(*inputs, bias, *call.score.tensors()))
    given, causal = _shielded(call, *inputs, bias, trust)
    query, scale, weight = call.score.terms(given.query)
    given = given._replace(query=query)
    found: _Found | None = None
    if call.kernel == "sdpa":
        output = sdpa.attend(*given[:5], scale=scale, causal=causal, dropout_p=call.dropout_p)
    else:
        attended = reference.attend(*given[:5], scale=scale, weight=weight, dropout_p=call.dropout_p)
        output, found = attended.output, attended[1:]
    if given.trusted and not math.isfinite(output.sum().item()):  # a sum is the quickest look at all numbers
        return _attend(call, *inputs, bias, trust=False)
    output = given.finish(output)
    if call.observe is None:
        return output
    with torch.no_grad():
        return output, _statistics(call, call.observe, found, given, bias, scale, causal)


def _shielded(
    call: _Call, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, trust: bool
) -> tuple[Shielded, bool]:
    """What a kernel may be given, and whether the mask is left to it as `is_causal`."""
    if call.mask is None and bias is None:
        return Shielded(query, key, value, None, None), False
    mask = call.mask or Mask()
    causal = call.kernel == "sdpa" and bias is None and mask.is_causal_from_start(*call.shape[-2:])
    return shield(query, key, value, bias, mask, call.shape, causal=causal, trust=trust), causal


def _statistics(
    call: _Call,
    what: Observe,
    found: _Found | None,
    given: Shielded,
    bias: Tensor | None,
    scale: float,
    causal: bool,
) -> Observation:
    """Of the weights found, or, where there are none, from blocks of them or from a matrix made for it."""
    if call.mask is None and bias is None:  # an infinite query has no finite score: its weights are NaN
        infinite = given.query.isinf().any(-1, keepdim=True)
        given = given._replace(query=given.query.masked_fill(infinite, torch.nan))
    if found is None and _worth_streaming(what, given.query, given.key):
        return _streamed(call, what, given, bias, scale)
    if causal and call.mask is not None:
        given = given._replace(allowed=call.mask.table(call.shape, given.query.device))
    return _observation(what, found, given, scale)


def _worth_streaming(what: Observe, query: Tensor, key: Tensor) -> bool:
    """Whether the matrix is neither asked for nor small. Compiled graphs, whose sizes may be symbols, build it."""
    if what.weights or torch.compiler.is_compiling():
        return False
    return not dot_statistics.fits_one_block(query, key.shape[-2])


def _streamed(call: _Call, what: Observe, given: Shielded, bias: Tensor | None, scale: float) -> Observation:
    """The statistics, from blocks of queries, of which those that may attend to nothing need no other key."""
    low, high, keep, table = (call.mask or Mask()).parts(call.shape, given.query.device)
    query, key = four_axes(given.query), four_axes(given.key)
    bias, table, spoiled = (broadcast(x, call.shape) for x in (bias, table, given.spoiled))
    if keep is not None:
        keep = keep.repeat_interleave(query.shape[0] // max(keep.shape[0], 1), 0)[:, None, None]
        table = keep if table is None else table & keep
    asked = asked_of(what, call.shape[-1])
    looked = dot_statistics.Looked(query, key, scale, low, high, bias, table, spoiled)
    return answered(asked, dot_statistics.gather(looked, asked), call.shape)


def _observation(what: Observe, found: _Found | None, given: Shielded, scale: float) -> Observation:
    """The statistics, from the matrix; rows that the kernel was given in place of empty ones count as empty."""
    query, key, _, bias, allowed = given[:5]
    if found is None:
        weights, logsumexp = reference.weights(query, key, bias, allowed, scale=scale, logsumexp=what.logsumexp)
    else:
        weights, scores = (x.detach() for x in found)
        logsumexp = scores.logsumexp(-1) if what.logsumexp else None
    if allowed is not None and given.empty is not None:
        allowed = allowed & ~given.empty
    if logsumexp is not None and given.empty is not None:
        logsumexp = logsumexp.masked_fill(given.empty.squeeze(-1), -torch.inf)
    if logsumexp is not None and given.spoiled is not None:
        logsumexp = logsumexp.masked_fill(given.spoiled.squeeze(-1), torch.nan)
    return summarise(what, given.finish(weights), logsumexp, None if allowed is None else ~allowed)


def observed(
    query: Float[Tensor, "*heads Tq E"],
    key: Float[Tensor, "*kv_heads Tk E"],
    observe: Observe,
    *,
    score: Score = _SCALED_DOT,
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
    bias: Float[Tensor, "*biased Tq Tk"] | None = None,
) -> Observation:
    """What `attention` would look at, without its output: P_i = softmax_j(score(q_i, k_j) + bias_ij), and no values.

    The arguments are those of `attention`, and so are the answers and the errors. No gradient is kept.

    >>> query, key = torch.tensor([[1.0, 2.0], [1.0, 1.0]]), torch.eye(2)
    >>> seen = observed(query, key, Observe(received=True, max=True))
    >>> print(seen.received, seen.max)
    tensor([0.8302, 1.1698]) tensor([0.6698, 0.5000])
    """
    shape, mask = check_arguments(query, key, key, score, mask, bias, 0.0, None)
    check_observe(observe, shape)
    lower = autocast_dtype(query)
    if lower is not None:
        query, key, bias = query.to(lower), key.to(lower), None if bias is None else bias.to(lower)
    call = _Call(shape, score, mask, 0.0, observe, choose("auto", score, query, key, 0.0))
    with torch.no_grad():
        if lower is None:
            return _look(call, observe, query, key, bias)
        with torch.autocast(query.device.type, enabled=False):
            return _look(call, observe, query, key, bias)


def _look(call: _Call, what: Observe, query: Tensor, key: Tensor, bias: Tensor | None) -> Observation:
    if call.kernel in ("cpu", "triton") and isinstance(call.score, Additive):
        return observe_additive(query, key, call.score.weight, bias, call.mask, call.shape, what, call.kernel)
    mask, found = call.mask, None
    structured = call.kernel == "sdpa" and bias is None and mask is not None and not mask.tables
    if structured and mask is not None and _worth_streaming(what, query, key):
        given, causal = Shielded(query, key, key, None, None, None, spoiled_rows(query, key, mask, call.shape)), False
    else:
        given, causal = _shielded(call, query, key, key, bias, trust=False)
    query, scale, weight = call.score.terms(given.query)
    given = given._replace(query=query)
    if call.kernel == "reference":
        found = reference.weigh(query, given.key, given.bias, given.allowed, scale=scale, weight=weight)
    return _statistics(call, what, found, given, bias, scale, causal)


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
