"""Words made of subwords, and their weights, compared with a matrix that is summed and averaged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from regard.errors import ArgumentError
from regard.functional import Top
from regard.look import WordSpans

TEXT = "Don't hello, hello  日本\n\n👨‍👩‍👧🇩🇪🇫🇷👍🏽 नमस्ते مرحبا ภาษา 3,14 می‌روم snake_case e\u0301t\u00e9."
WORDS = [
    *("Don't", "hello", ",", "hello", "日", "本", "\n\n", "👨‍👩‍👧", "🇩🇪", "🇫🇷", "👍🏽", "नमस्ते", "مرحبا"),
    *("ภ", "า", "ษ", "า", "3,14", "می‌روم", "snake_case", "e\u0301té", "."),
]
LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=7)


def bytes_of(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return a text cut into single bytes, the finest pieces of byte-level BPE."""
    tokenizer = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = tokenizer.encode(text)
    return cut.tokens, cut.offsets


def words_of(sizes: list[int]) -> WordSpans:
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return WordSpans(tuple(f"w{i}" for i in range(len(sizes))), tuple(starts))


def test_words_by_offsets_and_by_the_marks_of_bytes_are_the_same() -> None:
    tokens, offsets = bytes_of(TEXT)
    words = WordSpans.of(tokens, TEXT, offsets)
    assert list(words.texts) == WORDS
    assert WordSpans.of(tokens) == words


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_no_text_breaks_it_and_every_token_is_in_one_word(text: str) -> None:
    tokens, offsets = bytes_of(text)
    words = WordSpans.of(tokens, text, offsets)
    assert words.starts[0] == 0
    assert words.starts[-1] == len(tokens)
    assert list(words.starts) == sorted(set(words.starts))
    assert [token for span in words.spans for token in tokens[span]] == tokens
    for before, after in zip(words.spans, words.spans[1:], strict=False):  # no character is cut
        assert offsets[before.stop - 1] != offsets[after.start]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", "un", "##want", "##ed", ",", "run", "##ning", "[SEP]"], "[CLS] unwanted , running [SEP]"),
        (["▁un", "want", "ed", ",", "▁the", "▁", "the", "</s>"], "unwanted , the the </s>"),
        (["<s>", "▁", "<0xE6>", "<0x97>", "<0xA5>", "本", "▁<", "<0x0A>", "a"], "<s> 日 本 < \n a"),
        (["<|im_start|>", "un", "want", "ed", ",", "Ġthe", "Ġ", "the", "Ċ", "Ċ", "Ġæ", "Ĺ", "¥"], None),
        (["a", "a", "a"], "a a a"),
    ],
)
def test_words_by_marks(tokens: list[str], expected: str | None) -> None:
    found = WordSpans.of(tokens).texts
    wanted = ["<|im_start|>", "unwanted", ",", "the", "the", "\n\n", "日"] if expected is None else expected.split(" ")
    assert list(found) == wanted


def test_tokens_named_special_stand_for_no_text() -> None:
    assert WordSpans.of(["▁a", "eos", "b"], special={"eos"}).texts == ("a", "eos", "b")
    assert WordSpans.of(["▁a", "eos", "b"]).texts == ("aeosb",)


def test_what_a_tokenizer_drops_is_still_written() -> None:
    tokens, places = ["naive", "न", "##म", "##स", "##त", "[SEP]"], [(0, 5), (6, 7), (7, 8), (8, 9), (10, 11), (0, 0)]
    words = WordSpans.of(tokens, "naïve नमस्ते", places)
    assert words.texts == ("naïve", "नमस्ते", "[SEP]")


def test_offsets_with_and_without_the_leading_space() -> None:
    text = "the cat  sat"
    for offsets in ([(0, 3), (3, 7), (7, 12)], [(0, 3), (4, 7), (9, 12)], [(0, 4), (4, 9), (9, 12)]):
        assert WordSpans.of(["a", "b", "c"], text, offsets).texts == ("the", "cat", "sat")
    assert WordSpans.of(["a", "b", "c", "d"], text, [(0, 3), (3, 5), (5, 7), (7, 12)]).texts == ("the", "cat", "sat")


@given(LENGTHS, LENGTHS, st.integers(0, 2**31))
def test_weights_are_summed_over_keys_and_averaged_over_queries(rows: list[int], columns: list[int], seed: int) -> None:
    queries, keys = words_of(rows), words_of(columns)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, 3, sum(rows), sum(columns), dtype=torch.float64, generator=generator).softmax(-1)
    oracle = torch.stack(
        [torch.stack([weights[..., q, k].sum(-1).mean(-1) for k in keys.spans], -1) for q in queries.spans],
        -2,
    )
    merged = queries.matrix(weights, keys)
    torch.testing.assert_close(merged, oracle)
    torch.testing.assert_close(merged.sum(-1), torch.ones_like(merged[..., 0]))
    torch.testing.assert_close(keys.keys(weights.sum(-2)), (merged * torch.tensor(rows)[:, None]).sum(-2))
    entropy = torch.special.entr(weights).sum(-1)
    torch.testing.assert_close(queries.queries(entropy)[..., 0], entropy[..., : rows[0]].mean(-1))
    found = queries.top(Top(*weights.topk(sum(columns))), keys)
    count = len(keys)
    torch.testing.assert_close(found.weights[..., :count], oracle.topk(count).values)
    assert found.weights.shape == (2, 3, len(queries), sum(columns))
    torch.testing.assert_close(oracle.gather(-1, found.keys[..., :count]), found.weights[..., :count])
    assert (found.keys[..., count:] == -1).all()


def test_the_largest_of_words_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of([2, 3, 1, 5, 2, 1, 3])
    top = Top(*torch.rand(2, 3, 17, 17, generator=torch.Generator().manual_seed(0)).softmax(-1).topk(5))
    top = Top(top.weights, top.keys.int())
    whole = words.top(top)
    assert whole.keys.dtype == torch.int32
    monkeypatch.setattr("regard.look.reading.words._MOST", 100)
    for a, b in zip(whole, words.top(top), strict=True):
        assert torch.equal(a, b)


def test_a_query_that_sees_nothing_points_nowhere() -> None:
    top = Top(torch.zeros(1, 3, 2), torch.full((1, 3, 2), -1))
    found = words_of([2, 1]).top(top)
    assert not found.weights.any()
    assert (found.keys == -1).all()


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ArgumentError, match="for the 3 tokens of these words, got 4; take the words of the same text"):
        words_of([2, 1]).keys(torch.ones(4))
    with pytest.raises(ArgumentError, match="expected text and offsets together"):
        WordSpans.of(["a"], text="a")
    for offsets in ([(0, 1)], [(0, 1), (1, 3)], [(0, 1), (2, 1)]):
        with pytest.raises(ArgumentError, match="offsets within the text of 2 characters for 2 tokens"):
            WordSpans.of(["a", "b"], "ab", offsets)
    assert WordSpans.of([]).texts == ()
