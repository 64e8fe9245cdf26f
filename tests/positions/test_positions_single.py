"""Positions within attention, one by one: slopes, buckets, scalings, and the errors of each."""

from __future__ import annotations

import math

import pytest
import torch

from positions_by_hand import bucket, slopes
from regard.errors import ArgumentError
from regard.positions import (
    ALiBi,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Rotary,
    Scaling,
    Shaw,
    T5Bias,
    YarnScaling,
)
from regard.positions._places import frequencies


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12, 13, 16])
def test_slopes_of_any_number_of_heads(heads: int) -> None:
    found = ALiBi(heads).slopes(torch.float64)
    assert found.tolist() == pytest.approx(slopes(heads), rel=1e-12)


def test_the_slopes_that_the_paper_names() -> None:
    assert ALiBi(8).slopes().tolist() == [2.0**-h for h in range(1, 9)]
    assert ALiBi(16).slopes()[:2].tolist() == pytest.approx([2**-0.5, 2**-1])


@pytest.mark.parametrize("buckets", [4, 6, 32, 66])
@pytest.mark.parametrize("max_distance", [20, 64, 128, 1000])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_of_every_distance(buckets: int, max_distance: int, bidirectional: bool) -> None:
    if max_distance <= buckets // (4 if bidirectional else 2):
        return
    positions = T5Bias(1, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    distances = range(-max_distance - 50, max_distance + 51)
    expected = [bucket(distance, buckets, max_distance, bidirectional) for distance in distances]
    assert positions.bucket(torch.tensor(list(distances))).tolist() == expected
    assert max(expected) == buckets - 1


def test_scalings_at_their_ends() -> None:
    speeds = frequencies(64, 10000.0, torch.device("cpu"))
    for scaling in (NTKScaling(8.0), YarnScaling(8.0, original_length=4096), Llama3Scaling(original_length=1024)):
        slowed_by = speeds / scaling.frequencies(speeds, 10000.0)
        assert slowed_by[0].item() == pytest.approx(1.0)
        assert slowed_by[-1].item() == pytest.approx(8.0)
        assert (slowed_by.diff() >= -1e-9).all()
    assert torch.equal(LinearScaling(8.0).frequencies(speeds, 10000.0), speeds / 8)
    for scaling in (LinearScaling(1.0), NTKScaling(1.0), YarnScaling(1.0, original_length=64), Llama3Scaling(1.0)):
        torch.testing.assert_close(scaling.frequencies(speeds, 10000.0), speeds)
        assert scaling.magnitude == 1.0
    assert NTKScaling(8.0).frequencies(speeds[:1], 10000.0) == 1  # one pair alone


def test_yarns_ramp() -> None:
    speeds = frequencies(64, 10000.0, torch.device("cpu"))
    kept = YarnScaling(8.0, original_length=4096).frequencies(speeds, 10000.0) / speeds
    # 32 turns in 4096 places are made by j = 32 ln(4096 / 64π) / ln 10000 = 10.47, one turn by j = 22.51.
    ramp = torch.tensor([min(max((j - 10) / 13, 0), 1) for j in range(32)]).double()
    torch.testing.assert_close(kept, 1 - ramp * 7 / 8, rtol=0, atol=1e-7)


def test_llamas_ramp() -> None:
    turns = torch.tensor([0.5, 1.0, 1.75, 2.5, 4.0, 9.0]).double()  # in the trained length; the ramp is from 1 to 4
    speeds = 2 * math.pi * turns / 8192
    kept = Llama3Scaling(8.0).frequencies(speeds, 500000.0) / speeds
    expected = torch.tensor([1 / 8, 1 / 8, (1 + 3 / 8) / 4, (1 + 1 / 8) / 2, 1.0, 1.0]).double()
    torch.testing.assert_close(kept, expected)


def test_a_stretched_model_meets_places_it_knows() -> None:
    x = torch.randn(1, 7, 8)
    near, far = torch.arange(7), 4 * torch.arange(7)
    torch.testing.assert_close(Rotary(8, scaling=LinearScaling(4.0)).rotate(x, far), Rotary(8).rotate(x, near))


# --- errors and names

at = torch.arange(5)
x = torch.zeros(2, 3, 5, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Rotary(8, features=3), "features must be even and 2 or more, got 3"),
        (lambda: Rotary(0), "head_dim must be even and 2 or more, got 0"),
        (lambda: Rotary(8, features=10), "up to head_dim=8 features, got features=10"),
        (lambda: Rotary(8, base=1.0), "above 1, got 1.0"),
        (lambda: Rotary(8, scaling="linear"), r"a Scaling such as LinearScaling\(2.0\), got 'linear'"),
        (lambda: Rotary(8).rotate(x, at), r"expect heads \(\.\.\., H, T, 8\), got shape \(2, 3, 5, 4\)"),
        (lambda: Rotary(4).rotate(x[0, 0], at), r"got shape \(5, 4\)"),
        (lambda: Rotary(4).rotate(x, at[1:]), r"shape \(5,\) or \(2, 5\).*got torch.int64 of shape \(4,\)"),
        (lambda: Rotary(4).rotate(x, at.float()), "must be integers.*got torch.float32"),
        (lambda: Rotary(4).rotate(x, at.expand(3, 5)), r"got torch.int64 of shape \(3, 5\)"),
        (lambda: Rotary(4).rotate(x[0], at.expand(3, 5)), r"shape \(5,\), one for each token"),
        (lambda: ALiBi(0), "num_heads >= 1, got 0"),
        (lambda: ALiBi(4).bias(x, at, at), r"ALiBi has 4 heads, but the query is \(2, 3, 5, 4\)"),
        (lambda: ALiBi(3).bias(x, at[1:], at), "query_places must be integers"),
        (lambda: T5Bias(0), "num_heads >= 1, got 0"),
        (lambda: T5Bias(2, buckets=5), "an even number of buckets, 4 or more, got 5"),
        (lambda: T5Bias(2, buckets=2), "4 or more, got 2"),
        (lambda: T5Bias(2, buckets=1, bidirectional=False), "2 buckets or more, got 1"),
        (lambda: T5Bias(2, max_distance=8), "max_distance > 8.*got 8"),
        (lambda: T5Bias(2).bias(x, at, at), "T5Bias has 2 heads"),
        (lambda: Shaw(0, 3), "of 1 or more, got 0 and 3"),
        (lambda: Shaw(4, 0), "of 1 or more, got 4 and 0"),
        (lambda: Shaw(5, 2).bias(x, at, at), r"head_dim=5 expects \(\.\.\., H, Tq, 5\), got \(2, 3, 5, 4\)"),
        (lambda: Shaw(4, 2).of_weights(x, at, at), "key_places must be integers of shape"),
        (lambda: LinearScaling(0.5), "factor of 1 or more, got 0.5"),
        (lambda: LinearScaling(math.nan), "factor of 1 or more, got nan"),
        (lambda: YarnScaling(2.0, original_length=0), "original_length is the length .* got 0"),
        (lambda: YarnScaling(2.0, original_length=9, beta_fast=1.0), "beta_slow < beta_fast, got 1.0 and 1.0"),
        (lambda: Llama3Scaling(original_length=-1), "original_length is the length .* got -1"),
        (lambda: Llama3Scaling(low_freq_factor=4.0), "low_freq_factor < high_freq_factor, got 4.0 and 4.0"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_an_encoding_of_ones_own_must_define() -> None:
    with pytest.raises(NotImplementedError, match="ALiBi adds nothing to the output"):
        ALiBi(3).of_weights(x, at, at)
    with pytest.raises(NotImplementedError, match="Shaw adds nothing to the output"):
        Shaw(4, 2, values=False).of_weights(x, at, at)
    with pytest.raises(NotImplementedError, match="Scaling must define frequencies"):
        Scaling(2.0).frequencies(at, 10.0)


def test_what_a_layer_prints() -> None:
    assert repr(Rotary(8, features=4)) == "Rotary(8, base=10000.0, scaling=None, interleaved=False, features=4)"
    assert "scaling=LinearScaling(factor=2.0), interleaved=True)" in repr(
        Rotary(8, scaling=LinearScaling(2.0), interleaved=True)
    )
    assert repr(ALiBi(3)) == "ALiBi(3)"
    assert repr(T5Bias(3)) == "T5Bias(3, buckets=32, max_distance=128, bidirectional=True)"
    assert repr(Shaw(4, 2, values=False)) == "Shaw(4, 2, values=False)"
