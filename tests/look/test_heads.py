"""Summaries, rollout and attention on passages: compared with numbers from the whole matrices, in float64."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import Mask, ScaledDot, causal, padding
from regard.errors import ArgumentError, UnsupportedError
from regard.functional import Observe, observed
from regard.look import AttentionInputs, Layer, WatchRecord
from regard.look.reading.heads import Summary, sides

B, H, T, S, E = 2, 3, 11, 7, 5
HEADS = (0, 2, 5)
SEPARATORS = (7, 13)
WHAT = Observe(entropy=True, received=True, distance=True, offsets=(0, -1))
SHARES = ("first", "previous", "itself", "separators", "distance", "entropy")


def layer(
    name: str,
    queries: int = T,
    keys: int = T,
    *,
    mask: Mask | None = None,
    keep: bool = True,
    what: Observe = WHAT,
    **more: Any,
) -> Layer:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    query = torch.randn(B, H, queries, E, generator=generator) * 2
    key = torch.randn(B, H, keys, E, generator=generator) * 2
    kept = AttentionInputs(query, key, ScaledDot(), mask, None)
    alone = Layer(name, observed(query, key, what, mask=mask), (B, H, queries, keys), HEADS, inputs=kept, **more)
    return alone if keep else dataclasses.replace(alone, inputs=None)


def matrix(of: Layer) -> Tensor:
    """P in float64, straight from its definition."""
    assert of.inputs is not None
    query, key, _, mask, _ = of.inputs
    scores = query.double() @ key.double().mT / math.sqrt(E)
    if mask is not None:
        scores = scores.masked_fill(~mask.table(scores.shape, scores.device), -torch.inf)
    return scores.softmax(-1).nan_to_num(0)


def expected(weights: Tensor, kept: Tensor, first: list[int], separators: Tensor, head: int) -> dict[str, float]:
    """Compute the summary of one head, query by query."""
    of: dict[str, list[float]] = {name: [] for name in SHARES}
    for b in range(B):
        for i in range(weights.shape[2]):
            if kept[b, i]:
                row = weights[b, head, i]
                of["first"].append(row[first[b]].item())
                of["previous"].append(row[i - 1].item() if i else 0.0)
                of["itself"].append(row[i].item())
                of["separators"].append(row[separators[b]].sum().item())
                of["distance"].append(sum(abs(i - j) * p for j, p in enumerate(row.tolist())))
                of["entropy"].append(-sum(p * math.log(p) for p in row.tolist() if p))
    return {name: sum(numbers) / len(numbers) for name, numbers in of.items()}


IDS = torch.tensor([[1, 4, 7, 9, 13, 7, 2, 4, 4, 9, 13], [7, 7, 1, 5, 2, 6, 13, 3, 3, 8, 7]])


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("padded", ["no", "left", "right"])
def test_a_summary_is_what_the_matrix_says(padded: str, keep: bool) -> None:
    mask = torch.ones(B, T, dtype=torch.long)
    if padded != "no":
        mask[1, slice(0, 3) if padded == "left" else slice(T - 3, T)] = 0
    first = [0, 3 if padded == "left" else 0]
    attended = causal() & padding(mask.bool())
    of_mask = dataclasses.replace(WHAT, received=mask[:, None].expand(B, H, T).float())  # as a watch has it
    record = WatchRecord([layer(name, mask=attended, keep=keep, what=of_mask) for name in ("one", "two")])
    record.inputs = {"input_ids": IDS, "attention_mask": mask}
    found = record.summary(SEPARATORS)
    assert [(one.layer, one.head) for one in found] == [(name, head) for name in ("one", "two") for head in HEADS]
    separators = (IDS[..., None] == torch.tensor(SEPARATORS)).any(-1) & mask.bool()
    for at, one in enumerate(found):
        weights = matrix(layer(one.layer, mask=attended))
        wanted = expected(weights, mask.bool(), first, separators, at % H)
        for name in SHARES:
            assert getattr(one, name) == pytest.approx(wanted[name], abs=2e-6), name


def test_cross_attention_has_neither_place_nor_distance() -> None:
    record = WatchRecord(
        [layer("encoder"), layer("decoder.self", S, S, mask=causal()), layer("decoder.cross", S, T, cross=True)]
    )
    record.inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :S]}
    of_encoder, of_decoder, of_cross = (record.summary(SEPARATORS)[head] for head in (1, H + 1, 2 * H + 1))
    assert all(math.isnan(number) for number in (of_cross.previous, of_cross.itself, of_cross.distance))
    weights = matrix(record["decoder.cross"])[:, 1]
    apart = (IDS[..., None] == torch.tensor(SEPARATORS)).any(-1)[:, None].expand(B, S, T)
    assert of_cross.first == pytest.approx(weights[..., 0].mean().item(), abs=2e-6)
    assert of_cross.separators == pytest.approx(torch.where(apart, weights, 0).sum(-1).mean().item(), abs=2e-6)
    assert of_cross.entropy == pytest.approx(torch.special.entr(weights).sum(-1).mean().item(), abs=2e-6)
    weights = matrix(record["decoder.self"])[:, 1]
    apart = apart[:, :, :S]
    assert of_decoder.separators == pytest.approx(torch.where(apart, weights, 0).sum(-1).mean().item(), abs=2e-6)
    assert of_encoder.previous == pytest.approx(
        matrix(record["encoder"])[:, 1].diagonal(-1, 1, 2).sum().item() / B / T, abs=2e-6
    )


def test_padding_of_a_target_is_not_that_of_its_source() -> None:
    record = WatchRecord([layer("decoder.self", S, S, mask=causal()), layer("decoder.cross", S, T, cross=True)])
    kept = torch.ones(B, S, dtype=torch.long)
    kept[0, S - 2 :] = 0
    record.inputs = {"attention_mask": torch.ones(B, T, dtype=torch.long), "decoder_attention_mask": kept}
    weights = matrix(record["decoder.cross"])[:, 0][kept.bool()]
    found = record.summary()[H]
    assert found.entropy == pytest.approx(torch.special.entr(weights).sum(-1).mean().item(), abs=2e-6)
    assert found.first == pytest.approx(weights[:, 0].mean().item(), abs=2e-6)
    record.layers[1] = layer("decoder.cross", S, T, cross=True, keep=False)
    assert math.isnan(record.summary()[H].first)  # what keys received, they received of padding too


def test_places_are_found_among_the_offsets_asked_for() -> None:
    expected = WatchRecord([layer("one")]).summary()
    for offsets in ((3, -1), (-1, 0), (2, 0, -1, 5)):
        what = Observe(offsets=offsets)
        found = WatchRecord([layer("one", keep=False, what=what)], observe=what).summary()
        for one, whole in zip(found, expected, strict=True):
            assert one.previous == pytest.approx(whole.previous, abs=1e-6)
            assert one.itself == pytest.approx(whole.itself if 0 in offsets else math.nan, abs=1e-6, nan_ok=True)


def test_what_was_not_asked_for_is_nan() -> None:
    record = WatchRecord(
        [
            dataclasses.replace(
                layer("one", keep=False),
                statistics=observed(torch.ones(B, H, T, E), torch.ones(B, H, T, E), Observe(entropy=True)),
            )
        ]
    )
    for one in record.summary(SEPARATORS):
        assert one.entropy == pytest.approx(math.log(T), abs=1e-5)
        assert all(math.isnan(getattr(one, name)) for name in SHARES if name != "entropy")


def test_without_ids_or_separators_there_is_no_share_on_them() -> None:
    record = WatchRecord([layer("one")])
    assert all(math.isnan(one.separators) for one in record.summary(SEPARATORS))
    record.inputs = {"input_ids": IDS}
    assert all(math.isnan(one.separators) for one in record.summary())


def test_a_query_that_sees_nothing_counts_as_zero() -> None:
    dark = padding(torch.tensor([[True] * T, [False] * T]))
    found = WatchRecord([layer("one", mask=dark)]).summary()[0]
    entropy = torch.special.entr(matrix(layer("one", mask=dark))).sum(-1)[:, 0]
    assert found.entropy == pytest.approx(entropy.mean().item(), abs=2e-6)


def test_summaries_say_in_words_where_most_of_the_weight_lies() -> None:
    nan = math.nan
    assert Summary("a", 0, 0.61, nan, 0.1, 0.9, 3.0, 1.0).words == "separators 0.90, first token 0.61"
    assert Summary("a", 0, 0.2, 0.3, 0.1, nan, 3.0, 1.0).words == ""


def test_sides_are_told_by_the_order_of_calls() -> None:
    own, other = ("source", "source"), ("target", "target")
    encoder = [layer("e0"), layer("e1")]
    decoder = [layer("s0", S, S), layer("c0", S, T, cross=True), layer("s1", S, S), layer("c1", S, T, cross=True)]
    assert sides(WatchRecord(encoder)) == [own, own]
    assert sides(WatchRecord(encoder + decoder)) == [own, own, other, ("target", "source"), other, ("target", "source")]
    assert sides(WatchRecord([*encoder, decoder[1]])) == [own, own, ("target", "source")]
    assert sides(WatchRecord(decoder[:2])) == [other, ("target", "source")]
    assert sides(WatchRecord([])) == []


@pytest.mark.parametrize("mask", [None, causal()])
def test_rollout_is_the_product_of_the_matrices(mask: Mask | None) -> None:
    record = WatchRecord([layer(name, mask=mask) for name in ("a", "b", "c")])
    mixed = torch.eye(T, dtype=torch.float64).expand(B, T, T)
    for one in record.layers:
        mixed = (matrix(one).mean(1) + torch.eye(T, dtype=torch.float64)) / 2 @ mixed
    for token in (0, 4, T - 1, -1, -T):
        for batch in range(B):
            found = record.rollout(token, batch=batch)
            torch.testing.assert_close(found, mixed[batch, token].float(), rtol=0, atol=1e-6)
            assert found.sum().item() == pytest.approx(1, abs=1e-6)


def test_rollout_says_what_it_needs() -> None:
    with pytest.raises(UnsupportedError, match=r"watch\(model, keep_inputs=True\)"):
        WatchRecord([layer("a", keep=False)]).rollout(0)
    with pytest.raises(ArgumentError, match=r"got b with 7 queries and 11 keys; choose the layers with watch\(layers"):
        WatchRecord([layer("a"), layer("b", S, T, cross=True)]).rollout(0)
    with pytest.raises(UnsupportedError, match="expected every layer of the model, got 1, and 2 were left out"):
        WatchRecord([layer("a")], left_out=2).rollout(0)
    for token, batch in ((T, 0), (-T - 1, 0), (0, B), (0, -1)):
        with pytest.raises(ArgumentError, match="expected a token from -11 to 10 and a batch from 0 to 1"):
            WatchRecord([layer("a")]).rollout(token, batch=batch)


@pytest.mark.parametrize("queries", [slice(T - 3, None), [8, -2, 10], slice(0, T)])
@pytest.mark.parametrize("cross", [False, True])
def test_what_an_answer_read_is_the_mass_of_its_rows(queries: slice | list[int], cross: bool) -> None:
    layers = (
        [layer(name, T, S, cross=True) for name in ("c0", "c1")]
        if cross
        else [layer(name, mask=causal()) for name in "ab"]
    )
    record = WatchRecord([*([layer("self")] if cross else []), *layers])
    passages = [slice(0, 2), slice(2, 6), slice(5, None)]
    found = record.attention_on(queries, passages)
    assert found.shape == (2, H, 3)
    for at, one in enumerate(layers):
        rows = matrix(one)[0][:, torch.arange(T)[queries] if isinstance(queries, slice) else queries]
        wanted = torch.stack([rows[..., passage].sum(-1).mean(-1) for passage in passages], -1)
        torch.testing.assert_close(found[at], wanted.float(), rtol=0, atol=1e-6)


def test_reading_says_what_it_needs() -> None:
    record = WatchRecord([layer("a")])
    for queries, passages in (
        ([T], [slice(0, 2)]),
        ([], [slice(0, 2)]),
        (slice(3, 3), [slice(0, 2)]),
        ([0], [slice(4, 4)]),
    ):
        with pytest.raises(ArgumentError, match="expected some of 11 queries, passages within 11 tokens"):
            record.attention_on(queries, passages)
    with pytest.raises(UnsupportedError, match=r"watch\(model, keep_inputs=True\)"):
        WatchRecord([layer("a", keep=False)]).attention_on([0], [slice(0, 2)])
    with pytest.raises(ArgumentError, match="expected layers with equally many heads, queries and keys, got none"):
        WatchRecord([]).attention_on([0], [slice(0, 2)])


def test_the_whole_matrix_serves_where_it_was_asked_for() -> None:
    one = layer("a")
    bare = dataclasses.replace(
        one, inputs=None, statistics=dataclasses.replace(one.statistics, weights=matrix(one).float())
    )
    torch.testing.assert_close(WatchRecord([bare]).rollout(5), WatchRecord([one]).rollout(5), rtol=0, atol=1e-6)
