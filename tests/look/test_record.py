"""A record and its layers, printed: one line each, whatever their size."""

from __future__ import annotations

import torch

import record_by_hand as by_hand
from regard.look import WatchRecord


def test_a_record_is_printed_in_one_line() -> None:
    record = WatchRecord(by_hand.long(30, 9, 257).layers, {"input_ids": torch.zeros(1, 257, dtype=torch.long)})
    assert repr(record) == str(record) == "<WatchRecord: 30 layers, 270 heads; inputs: input_ids>"
    record.left_out = 2
    assert repr(record) == "<WatchRecord: 30 layers, 270 heads, 2 attentions left out; inputs: input_ids>"
    assert repr(WatchRecord([by_hand.layer("one", 5, heads=1)])) == "<WatchRecord: 1 layer, 1 head; inputs: none>"


def test_a_layer_is_printed_in_one_line() -> None:
    layer = by_hand.layer("layers.0.attn", 5, 7, batch=2, keep=True)
    known = "entropy, received, top, distance, offsets, inputs"
    assert repr(layer) == f"<Layer 'layers.0.attn': B=2, Hq=3, Tq=5, Tk=7; {known}>"
    assert len(repr([layer] * 30)) < 30 * 120
