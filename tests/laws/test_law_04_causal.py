"""Law 4: causal: what comes after t changes nothing at or before t; with a cache, padding, statistics, dropout."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from drawn import SHAPES, Call, calls, fixed_like, gradients
from regard import Observe

SQUARE = [(B, heads, group, Tq, Tq, E, Ev) for B, heads, group, Tq, _, E, Ev in SHAPES if Tq > 1]
CAUSAL = ["causal", "from_start", "left", "window"]


@given(
    calls(shapes=SQUARE, masks=CAUSAL, biases=["none", "full"], ranks=(4, 4, 3, 5)),
    st.sampled_from([1.0, torch.nan, torch.inf]),
    st.integers(0, 16),
    st.sampled_from([0.0, 0.5]),
)
def test_the_future_changes_nothing(call: Call, junk: float, time: int, dropout_p: float) -> None:
    time = time % (call.shape[-1] - 1)
    later = torch.arange(call.shape[-1]) > time
    changed = replace(
        call, **{n: getattr(call, n).masked_fill(later[:, None], junk) for n in ("query", "key", "value")}
    )
    of_output = fixed_like(call.run()).masked_fill(later[:, None], 0.0)
    observe = Observe(weights=True, entropy=True, logsumexp=True)
    torch.manual_seed(1)
    before, of_before = gradients(call, of_output, dropout_p=dropout_p, observe=observe)
    torch.manual_seed(1)
    after, of_after = gradients(changed, of_output, dropout_p=dropout_p, observe=observe)
    torch.testing.assert_close(after[..., : time + 1, :], before[..., : time + 1, :])
    for a, b in zip(of_after, of_before, strict=True):
        torch.testing.assert_close(a, b)
    before, after = call.run(observe=observe)[1], changed.run(observe=observe)[1]
    for name in ("weights", "entropy", "logsumexp"):
        a, b = getattr(after, name), getattr(before, name)
        rows = slice(0, time + 1)
        torch.testing.assert_close(*((x[..., rows, :] if name == "weights" else x[..., rows]) for x in (a, b)))


@given(
    calls(shapes=SQUARE, masks=["none"], biases=["none"]),
    st.integers(1, 5),
    st.sampled_from([regard.causal(), regard.causal() & regard.window(3)]),
)
def test_cached_equals_chunked_equals_full(call: Call, chunk: int, mask: regard.Mask) -> None:
    """New queries against a cache of all keys so far: the default offset stands the last query at the last key."""
    full = replace(call, mask=mask).run()
    parts = []
    for start in range(0, call.shape[-2], chunk):
        end = min(start + chunk, call.shape[-2])
        pieces = (call.query[..., start:end, :], call.key[..., :end, :], call.value[..., :end, :])
        parts.append(replace(call, query=pieces[0], key=pieces[1], value=pieces[2], mask=mask).run())
    torch.testing.assert_close(torch.cat(parts, -2), full)


@given(calls(shapes=SQUARE, masks=["none"], biases=["none"]), st.integers(0, 16))
def test_a_cache_that_is_longer_than_what_is_written(call: Call, time: int) -> None:
    """One step at a given place in a buffer whose rest was never written."""
    time = time % call.shape[-1]
    full = replace(call, mask=regard.causal()).run()
    unwritten = (torch.arange(call.shape[-1]) > time)[:, None]
    step = replace(
        call,
        query=call.query[..., time : time + 1, :],
        key=call.key.masked_fill(unwritten, torch.nan),
        value=call.value.masked_fill(unwritten, 3e38),
        mask=regard.causal(offset=time),
    )
    torch.testing.assert_close(step.run(), full[..., time : time + 1, :])
