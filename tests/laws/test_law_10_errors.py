"""Law 10: a user's error raises at once, in one line: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from drawn import SHAPES, make_call
from regard import Additive, General, Observe, ScaledDot, attention, causal, dense, padding, window
from regard.errors import ArgumentError, RegardError, UnsupportedError
from regard.functional import from_torch, observed

Q, K, V = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 7, 8), torch.zeros(2, 3, 7, 4)
FLAG = torch.ones(2, 7, dtype=torch.bool)


def call(query: Any = Q, key: Any = K, value: Any = V, **keywords: Any) -> Callable[[], Any]:
    return lambda: attention(query, key, value, **keywords)


WRONG = {
    "not a tensor": (call([[1.0]]), "query must be a tensor, got list"),
    "no time": (call(Q[0, 0, 0]), "same number of axes, at least"),
    "ranks": (call(key=K[0]), r"query \(2, 3, 5, 8\), key \(3, 7, 8\)"),
    "batch": (call(K, K[:1], V[:1]), r"\.expand"),
    "heads": (call(key=K[:, :2], value=V[:, :2]), "multiple of the key's"),
    "no heads": (call(key=K[:, :0], value=V[:, :0]), "multiple of the key's"),
    "key and value": (call(value=V[:, :, :6]), "key and value must agree"),
    "features": (call(key=K[..., :5]), r"General\(weight\)"),
    "no features": (call(Q[..., :0], K[..., :0]), "at least one feature"),
    "integers": (call(Q.long(), K.long(), V.long()), "floating dtype, got torch.int64"),
    "complex": (call(Q.cfloat(), K.cfloat(), V.cfloat()), "floating dtype, got torch.complex64"),
    "dtypes": (call(key=K.double()), r"torch.float64: cast with .to\(torch.float32\)"),
    "device": (call(key=K.to("meta"), value=V.to("meta")), "cpu .* meta"),
    "score by name": (call(score="dot"), "score must be a score"),
    "dropout": (call(dropout_p=1.5), "within 0..1, got 1.5"),
    "dropout nan": (call(dropout_p=float("nan")), "within 0..1"),
    "impl": (call(impl="flash"), "got 'flash'"),
    "float mask": (call(mask=torch.zeros(2, 3, 5, 7)), "bias="),
    "half mask": (call(mask=torch.zeros(2, 3, 5, 7).half()), "bias="),
    "integer mask": (call(mask=torch.zeros(2, 3, 5, 7).long()), r"use \.bool\(\)"),
    "mask of two axes": (call(mask=FLAG), r"padding\(m\) .* dense\(m\)"),
    "mask of three axes": (call(mask=FLAG[:, None]), "query's 4 axes"),
    "mask size": (call(mask=FLAG[:, None, None, :5]), r"got \(2, 1, 1, 5\)"),
    "mask by name": (call(mask="causal"), "got str"),
    "mask function": (call(mask=causal), "got function"),
    "padding size": (call(mask=padding(FLAG[:, :5])), r"\(B, Tk\) = \(2, 7\), got \(2, 5\)"),
    "padding batch": (call(mask=padding(FLAG[:1])), r"got \(1, 7\)"),
    "padding transposed": (call(mask=padding(FLAG.T)), r"got \(7, 2\)"),
    "lengths size": (call(mask=padding(lengths=[1, 2, 3])), r"\(B,\) = \(2,\), got \(3,\)"),
    "padding without batch": (call(Q[0, 0], K[0, 0], V[0, 0], mask=padding(FLAG)), "batch axis"),
    "padding device": (call(mask=padding(FLAG.to("meta"))), "on meta and the query on cpu"),
    "dense size": (call(mask=dense(torch.ones(7, 5).bool())), r"\(Tq, Tk\) = \(5, 7\)"),
    "a column and causal": (call(mask=causal() & dense(torch.ones(3, 1).bool())), r"got \(3, 1\)"),
    "both paddings": (lambda: padding(FLAG, lengths=[1, 2]), "one of the two"),
    "neither padding": (lambda: padding(), "one of the two"),
    "padding of three axes": (lambda: padding(FLAG[None]), r"dense\(table\)"),
    "float padding": (lambda: padding(FLAG.float()), "bias="),
    "lengths of floats": (lambda: padding(lengths=torch.tensor([1.0])), r"\(B,\) integers"),
    "dense of one axis": (lambda: dense(FLAG[0]), "Tq, Tk"),
    "mask and tensor": (lambda: causal() & FLAG, r"padding\(keep\)"),
    "tensor and mask": (lambda: FLAG & causal(), r"padding\(keep\)"),
    "window of nothing": (lambda: window(0), "at least 1"),
    "window of a float": (lambda: window(2.5), "must be an int, got float"),
    "offset of a tensor": (lambda: causal(torch.tensor(1)), "must be an int, got Tensor"),
    "torch's float mask": (lambda: from_torch(attn_mask=torch.zeros(5, 7)), "bias="),
    "torch's heads": (lambda: from_torch(attn_mask=torch.ones(5, 3, 3).bool(), num_heads=2), "num_heads=2"),
    "bool bias": (call(bias=torch.ones(2, 3, 5, 7).bool()), "mask="),
    "bias axes": (call(bias=torch.zeros(5, 7)), "query's 4 axes"),
    "bias size": (call(bias=torch.zeros(1, 1, 7, 7)), r"got \(1, 1, 7, 7\)"),
    "bias dtype": (call(bias=torch.zeros(1, 1, 5, 7).double()), "one dtype"),
    "bias by number": (call(bias=1.0), "got float"),
    "additive weight size": (call(score=Additive(torch.zeros(7))), "H = 8"),
    "additive heads": (call(score=Additive(torch.zeros(2, 8))), "2 heads"),
    "additive features": (call(key=K[..., :5], score=Additive(torch.zeros(8))), "one feature size"),
    "additive axes": (lambda: Additive(torch.zeros(1, 3, 8)), r"\(H,\) or \(heads, H\)"),
    "additive without heads": (call(Q[0, 0], K[0, 0], V[0, 0], score=Additive(torch.zeros(3, 8))), "no heads"),
    "general weight size": (call(score=General(torch.zeros(8, 7))), r"\(8, 8\), got \(8, 7\)"),
    "general integers": (lambda: General(torch.zeros(8, 8).long()), "float tensor"),
    "general list": (lambda: General([[1.0]]), "got list"),
    "weight dtype": (call(score=General(torch.zeros(8, 8).double())), "one dtype"),
    "top": (lambda: Observe(top=0), "at least 1, got 0"),
    "rows": (call(observe=Observe(rows=[5])), "within the 5 queries, got 5"),
    "offsets of text": (lambda: Observe(offsets="ab"), "sequence of distances"),
    "observed without an Observe": (lambda: observed(Q, K, None), "observe must be an Observe"),
    "observed of ranks": (lambda: observed(Q, K[0], Observe(max=True)), r"query \(2, 3, 5, 8\), key \(3, 7, 8\)"),
    "rows of text": (lambda: Observe(rows="ab"), "sequence of query indices"),
    "received": (call(observe=Observe(received=torch.ones(5))), r"\(2, 3, 5\), got \(5,\)"),
    "observe by name": (call(observe="weights"), "must be an Observe"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_said_in_one_line(name: str) -> None:
    function, pattern = WRONG[name]
    with pytest.raises(ArgumentError, match=pattern) as caught:
        function()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_an_impl_that_cannot_serve_names_the_switch() -> None:
    with pytest.raises(UnsupportedError, match='impl="reference"') as caught:
        attention(Q, K, V, score=Additive(torch.zeros(8)), impl="sdpa")
    assert isinstance(caught.value, RuntimeError)


@given(st.permutations(range(4)), st.sampled_from(["query", "key", "value"]))
def test_swapped_axes_raise(order: list[int], name: str) -> None:
    """With sizes that all differ, no permutation of one input's axes passes."""
    arguments = {k: getattr(make_call(SHAPES[0]), k) for k in ("query", "key", "value")}
    arguments[name] = arguments[name].permute(order)
    if order == [0, 1, 2, 3]:
        attention(**arguments)
    else:
        with pytest.raises(RegardError):
            attention(**arguments)


def test_explain_impl_checks_alike() -> None:
    with pytest.raises(ArgumentError):
        regard.explain_impl(Q, K[..., :3], V)
    assert "auto takes sdpa" in regard.explain_impl(Q, K, V, score=ScaledDot())
    assert "sdpa takes sdpa" in regard.explain_impl(Q, K, V, impl="sdpa", mask=causal())
    assert (
        "auto takes reference: the plain formula, which builds the matrix of scores, as torch's kernel does on a CPU"
        in (regard.explain_impl(Q, K, V, dropout_p=0.1))
    )
    small = torch.zeros(64, 8, 16, 4)
    assert "the fastest at this size\nnot sdpa: it would take longer" in regard.explain_impl(*[small] * 3)
    bias = torch.zeros(1, 3, 5, 7, requires_grad=True)
    assert "the gradient of a bias" in regard.explain_impl(Q, K, V, bias=bias)
    assert 'not sdpa: impl="reference" was requested' in regard.explain_impl(Q, K, V, impl="reference")
    assert "not sdpa: it computes dot products" in regard.explain_impl(Q, K, V, score=Additive(torch.zeros(8)))
    seen = []
    torch.func.grad(lambda q: (seen.append(regard.explain_impl(q, K, V)), q.sum())[1])(Q)
    assert "not sdpa: it has no rule for the transforms of torch.func" in seen[0]
