"""The operator: `attention` for users, and `attend`, which layers call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from regard._kernels import reference, sdpa
from regard.functional import additive
from regard.functional.axes import broadcast, four_axes
from regard.functional.kernel_choice import Impl, explain
from regard.functional.nonfinite import SafeInputs, make_safe
from regard.functional.observed import of_dot_products, of_weights
from regard.functional.prepared_call import SCALED_DOT, PreparedCall, prepare
from regard.functional.reporting import is_watched

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from regard.functional.mask import Mask
    from regard.functional.observe import Observation, Observe
    from regard.functional.scores import Score

__all__ = ["Impl", "attend", "attention", "explain_impl"]


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
    score: Score = SCALED_DOT,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    observe: Observe | None = None,
    impl: Impl = "auto",
) -> Tensor | tuple[Tensor, Observation]:
    """Return for each query the mean of the values, weighted by how well the query matches each key.

    output_i = sum_j P_ij v_j,  P_i = softmax_j(score(q_i, k_j) + bias_ij) over the keys j that i may attend to
    (Bahdanau et al. 2015, equations 5 and 6; Vaswani et al. 2017, equation 1).

    Shapes: query (..., Hq, Tq, E), key (..., Hkv, Tk, E), value (..., Hkv, Tk, Ev), output (..., Hq, Tq, Ev), leading
    axes equal. Hq is a multiple of Hkv, and each key head serves Hq/Hkv consecutive query heads. Without heads:
    (Tq, E), (Tk, E), (Tk, Ev). All have one floating dtype; half precision accumulates in float32.

    - ``score``: `ScaledDot` (the default), `Dot`, `General`, `Additive`, or a subclass of `regard.functional.Score`.
    - ``mask``: `causal`, `window`, `padding`, `dense`, composed by ``&``, or a bool tensor of the query's rank with
      sizes 1 or equal. True = may attend. A query that may attend to no key gives 0. Masked keys have no influence.
    - ``bias``: added to the scores, of the query's rank and dtype, sizes 1 or equal; -inf masks.
    - ``dropout_p``: applied to the weights whenever it is above 0, so a layer passes 0 in evaluation.
    - ``observe``: the statistics to compute, an `Observe`; then ``(output, Observation)`` is returned.
    - ``impl``: "auto", or "reference", "sdpa", "cpu" or "triton", which never fall back to another. See `explain_impl`.

    Raises ArgumentError for arguments that do not fit together, UnsupportedError if the named ``impl`` cannot serve.

    >>> import torch
    >>> from regard import Observe, attention
    >>> query, key = torch.tensor([[1.0, 2.0], [1.0, 1.0]]), torch.eye(2)
    >>> output, statistics = attention(query, key, key, observe=Observe(weights=True))
    >>> print(statistics.weights)
    tensor([[0.3302, 0.6698],
            [0.5000, 0.5000]])
    """
    output, statistics = attend(
        query, key, value, score=score, mask=mask, bias=bias, dropout_p=dropout_p, observe=observe, impl=impl
    )
    return output if statistics is None else (output, statistics)


def attend(
    query: Float[Tensor, "*heads Tq E"],
    key: Float[Tensor, "*kv_heads Tk E"],
    value: Float[Tensor, "*kv_heads Tk Ev"],
    *,
    score: Score = SCALED_DOT,
    mask: Mask | Bool[Tensor, "*masked Tq Tk"] | None = None,
    bias: Float[Tensor, "*biased Tq Tk"] | None = None,
    dropout_p: float = 0.0,
    observe: Observe | None = None,
    impl: Impl = "auto",
    heads: Tensor | None = None,
) -> tuple[Float[Tensor, "*heads Tq Ev"], Observation | None]:
    """Return the output of `attention`, and the statistics, which are None without ``observe``.

    A watcher receives each call of this function once. ``heads`` (Hq,) are the numbers of the query's heads within a
    layer that attends with some of its heads at a time: they are for the watcher alone.
    """
    if is_watched():
        this: Any = attend
        options = {"score": score, "mask": mask, "bias": bias, "dropout_p": dropout_p, "observe": observe, "impl": impl}
        answer: tuple[Tensor, Observation | None]
        answer = handle_torch_function(this, (query, key, value), query, key, value, **options, heads=heads)
        return answer
    return prepare(
        query, key, value, score=score, mask=mask, bias=bias, dropout_p=dropout_p, observe=observe, impl=impl
    ).run(_attend)


def _attend(call: PreparedCall) -> tuple[Tensor, Observation | None]:
    if call.kernel in ("cpu", "triton"):
        return additive.attend(call)
    compute = _by_sdpa if call.kernel == "sdpa" else _by_reference
    # The effect of masked NaN and inf is detectable in an output, but not in gradients and statistics.
    assume_finite = call.observe is None and not call.dropout_p and not call.wants_gradient()
    safe = make_safe(call, assume_finite=assume_finite)
    output, statistics = compute(call, safe)
    if safe.assumed_finite and not math.isfinite(output.sum().item()):  # a sum is the quickest check of all numbers
        safe = make_safe(call, assume_finite=False)
        output, statistics = compute(call, safe)
    return safe.restore_rows(output), statistics


def _by_sdpa(call: PreparedCall, safe: SafeInputs) -> tuple[Tensor, Observation | None]:
    terms = call.score.terms(safe.query)
    inputs = four_axes(terms.query), four_axes(safe.key), four_axes(safe.value)
    masked = broadcast(safe.bias, call.shape), broadcast(safe.allowed, call.shape)
    output = sdpa.attend(*inputs, *masked, scale=terms.scale, causal=safe.is_causal, dropout_p=call.dropout_p)
    if output.ndim != call.query.ndim:
        output = output.reshape(*call.query.shape[:-1], output.shape[-1])
    if call.observe is None:
        return output, None
    with torch.no_grad():
        return output, of_dot_products(call, call.observe, safe, terms)


def _by_reference(call: PreparedCall, safe: SafeInputs) -> tuple[Tensor, Observation | None]:
    inputs = safe.query, safe.key, safe.value, safe.bias, safe.allowed
    by_numba = call.impl != "reference"  # the oracle is torch alone
    made = reference.attend(
        *inputs, scores=call.score.grouped_matrix, dropout_p=call.dropout_p, dropout_by_numba=by_numba
    )
    if call.observe is None:
        return made.output, None
    with torch.no_grad():
        return made.output, of_weights(call.observe, safe, made.weights.detach(), made.scores.detach())


def explain_impl(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = SCALED_DOT,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    observe: Observe | None = None,
    impl: Impl = "auto",
) -> str:
    """Explain the choice of kernel for these arguments of `attention`: one line for it and one for each other kernel.

    >>> import torch
    >>> from regard import Additive, explain_impl
    >>> query = torch.zeros(2, 3)
    >>> print(explain_impl(query, query, query, score=Additive(torch.ones(3))))
    auto takes cpu: a kernel for additive scores, in linear memory
    not reference: it builds the matrix of scores
    not sdpa: it computes dot products; Additive is not one
    not triton: the tensors are on cpu
    """
    call = prepare(
        query, key, value, score=score, mask=mask, bias=bias, dropout_p=dropout_p, observe=observe, impl=impl
    )
    note = ""
    if torch.is_grad_enabled() and bias is not None and bias.requires_grad:
        note = " (for the gradient of a bias torch builds the matrix too)"
    return explain(impl, call.kernel, score, call.query, call.key, dropout_p, note)
