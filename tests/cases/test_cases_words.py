"""Cases from public bug reports on subwords, by id."""

from __future__ import annotations

import pytest
import torch

from regard.look import WordSpans

CUT = {
    "##": ["the", "un", "##seen", "the", "##m", "the", "un", "##seen"],
    "▁": ["▁the", "▁un", "seen", "▁the", "m", "▁the", "▁un", "seen"],
    "Ġ": ["the", "Ġun", "seen", "Ġthe", "m", "Ġthe", "Ġun", "seen"],
}


@pytest.mark.parametrize("tokens", CUT.values(), ids=CUT)
def test_v2_the_same_word_twice_is_two_and_weights_are_merged(tokens: list[str]) -> None:
    words = WordSpans.of(tokens)
    assert words.texts == ("the", "unseen", "them", "the", "unseen")
    weights = torch.rand(3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    merged = words.matrix(weights)
    torch.testing.assert_close(merged[:, 4, 1], (weights[:, 6, 1:3].sum(-1) + weights[:, 7, 1:3].sum(-1)) / 2)
    torch.testing.assert_close(merged[:, 3, 0], weights[:, 5, 0])
    torch.testing.assert_close(merged.sum(-1), torch.ones(3, 5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("日本語を", ["日", "本", "語", "を"]),
        ("مرحبا بك", ["مرحبا", "بك"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("👩🏽‍💻👨‍👩‍👧 🇨🇭🇩🇪", ["👩🏽‍💻", "👨‍👩‍👧", "🇨🇭", "🇩🇪"]),
    ],
)
def test_v2_scripts_and_emoji_stay_whole_however_bytes_are_cut(text: str, expected: list[str]) -> None:
    offsets = [(i, i + 1) for i, char in enumerate(text) for _ in char.encode()]
    words = WordSpans.of(["?"] * len(offsets), text, offsets)
    assert list(words.texts) == expected


def test_v2_2048_tokens() -> None:
    text = "un seen, " * 512
    words = WordSpans.of(list(text), text, [(i, i + 1) for i in range(len(text))])
    assert len(words) == 3 * 512 + 1
    weights = torch.full((2, len(text)), 1 / len(text))
    torch.testing.assert_close(words.keys(weights).sum(-1), torch.ones(2))
