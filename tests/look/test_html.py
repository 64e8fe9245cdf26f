"""The page as a file: its data, its size, and that no token can break out of it. `test_page.py` opens it."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import record_by_hand as by_hand
from regard import errors, look
from regard.functional import Observe
from regard.look import Layer, WatchRecord
from regard.look.page import encoding
from regard.look.page import html as report
from regard.look.page.encoding import EncodedLayers, encode_layers
from regard.look.pictures import layout
from regard.look.reading.heads import NUMBERS, SHARES

pytest_plugins = ["browser_fixtures"]

HALF_STEP = 0.5 / encoding.LEVELS + 1e-5  # of the roots of weights
ABOUT = re.compile(r'<script type="application/json" id="regard-about">(.*?)</script>', re.DOTALL)


def about(path: Path) -> dict:
    return json.loads(ABOUT.search(path.read_text("utf-8"))[1])


def links(page: EncodedLayers, number: int, example: int = 0) -> np.ndarray:
    """Decode the links of a layer into a matrix of weights (H, Tq, Tk), as the page's JavaScript does."""
    layer = page.layers[number]
    content = np.frombuffer(gzip.decompress(page.blobs[f"{example}.{number}.links"]), np.uint8)
    heads, queries, how = len(layer["heads"]), layer["queries"], layer["links"]
    counts, rest = content[: heads * queries].reshape(heads, queries), content[heads * queries :]
    *places, levels = rest.reshape(how["bytes"] + 1, counts.sum())
    matrix, at = np.zeros((heads, queries, layer["keys"])), 0
    for head in range(heads):
        for rank in range(how["most"]):
            for query in np.flatnonzero(counts[head] > rank):
                code = sum(int(place[at]) << 8 * n for n, place in enumerate(places))
                count, way = divmod(code, how["ways"])
                here = layer["first"] + int(query)
                matrix[head, query, (count, here - count, here + count)[way]] = (levels[at] / how["levels"]) ** 2
                at += 1
    return matrix


def written(page: EncodedLayers) -> int:
    """Count the characters of base64 and of the tags around it."""
    return sum(len(base64.b64encode(blob)) + encoding._TAG for blob in page.blobs.values())


@pytest.mark.parametrize(("queries", "keys"), [(7, None), (13, 5), (3, 11), (1, None), (257, None)])
def test_links_are_the_largest_weights(queries: int, keys: int | None) -> None:
    layer = by_hand.layer("layer", queries, keys, batch=2, keep=True)
    found = encode_layers([layer], 1e9)
    for example, whole in enumerate(by_hand.weights(layer).numpy()):
        matrix = links(found, 0, example)
        kept = matrix > 0
        assert kept.sum(-1).max() <= 8
        np.testing.assert_allclose(matrix[kept] ** 0.5, whole[kept] ** 0.5, atol=HALF_STEP)
        largest = np.sort(whole, -1)[..., -min(8, whole.shape[-1])]
        assert np.all(kept | (whole < largest[..., None] + 1e-6) | (whole < 1e-5))
    assert found.threshold == 0


def test_a_window_of_queries_keeps_its_place() -> None:
    layer = by_hand.layer("layer", 3, 11, keep=True)
    late = Layer(layer.name, layer.statistics, layer.shape, layer.heads, first_query=8)
    assert encode_layers([late], 1e9).layers[0]["first"] == 8
    np.testing.assert_allclose(links(encode_layers([late], 1e9), 0), links(encode_layers([layer], 1e9), 0))


@pytest.mark.parametrize("share", [0.5, 0.7, 0.8, 0.95])
def test_where_room_is_short_the_lightest_links_go_first(share: float) -> None:
    layers = by_hand.long(2, 3, 257).layers
    whole = encode_layers(layers, 1e9)
    room = share * written(whole)
    small = encode_layers(layers, room)
    assert 0.85 * room < written(small) <= room
    assert 0 < small.threshold < 1
    for number in range(2):
        before, after = links(whole, number), links(small, number)
        np.testing.assert_array_equal(after, np.where(before >= small.threshold - 1e-9, before, 0))


def test_matrices_that_do_not_fit_are_left_out_and_told() -> None:
    layers = [by_hand.layer(f"layers.{n}", 61, what=Observe(weights=True), seed=n) for n in range(3)]
    found = encode_layers(layers, 50_000)
    assert 0 < found.left_out["matrix"] < 3
    assert ["matrix" in layer for layer in found.layers].count(False) == found.left_out["matrix"]
    assert all("links" in layer for layer in found.layers)  # made from the matrix


def test_a_matrix_is_there_where_it_was_asked_for_or_is_small() -> None:
    asked = by_hand.layer("layer", 101, what=Observe(weights=True))
    small, large = (by_hand.layer("layer", size, keep=True) for size in (13, 101))
    plain = by_hand.layer("layer", 13)
    kinds = [
        sorted(encode_layers([each], 1e9).layers[0].keys() & {"matrix", "steps"})
        for each in (asked, small, large, plain)
    ]
    assert kinds == [["matrix"], ["matrix", "steps"], [], []]
    content = gzip.decompress(encode_layers([small], 1e9).blobs["0.0.matrix"])
    matrix = (np.frombuffer(content, np.uint8).reshape(3, 13, 13) / encoding.LEVELS) ** 2
    np.testing.assert_allclose(matrix**0.5, by_hand.weights(small)[0] ** 0.5, atol=HALF_STEP)


def test_spoiled_numbers_are_nothing() -> None:
    layer = by_hand.layer("layer", 5)
    layer.statistics.entropy[0, 0, 1] = math.nan
    layer.statistics.received[0, 0, 2] = math.nan
    layer.statistics.top.weights[0, 0, 3] = math.nan
    assert not links(encode_layers([layer], 1e9), 0)[0, 3].any()


def test_thirty_layers_of_nine_heads_over_4096_tokens_are_below_5_mb(large: tuple[Path, WatchRecord]) -> None:
    path, _ = large
    assert 3_000_000 < path.stat().st_size < 5_000_000  # and what room there is, is used
    (note, _) = about(path)["notes"]
    assert re.fullmatch(r"Links lighter than \d+(\.\d+)? % are omitted\.", note)


# --- the file


def test_tokens_cannot_end_the_data(tmp_path: Path) -> None:
    tokens = ["</script><img src=x onerror=alert(1)>", "<!--", "]]>", "\u2028", "&lt;"]
    path = by_hand.model(5).report(tmp_path / "out.html", tokens=tokens, title="</title><b>&")
    content = path.read_text("utf-8")
    assert "<img" not in content
    assert "<title>&lt;/title&gt;&lt;b&gt;&amp;</title>" in content
    assert "".join(about(path)["texts"][0]["examples"][0]["pieces"]).split() == " ".join(tokens).split()


def test_a_character_cut_into_tokens_is_shown_once(tmp_path: Path) -> None:
    facts = about(by_hand.model(4).report(tmp_path / "out.html", tokens=["Ġa", "ĠðŁ", "ĻĤ", "!"]))
    assert facts["texts"][0]["examples"][0]["pieces"] == [" a", " \N{SLIGHTLY SMILING FACE}", "", "!"]


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    facts = about(by_hand.model(2).report(tmp_path / "out.html", tokens=["\ud800", "\0"]))
    assert facts["texts"][0]["examples"][0]["pieces"] == [" ?", " \0"]


def test_nothing_is_fetched(tmp_path: Path) -> None:
    content = by_hand.model(3).report(tmp_path / "out.html").read_text("utf-8")
    assert not re.search(r"https?://|//cdn|@import|url\(|\bfetch\(|XMLHttpRequest|\bimport\b", content)
    assert "default-src 'none'" in content


def test_the_same_page_is_the_same_file(tmp_path: Path) -> None:
    one, two = (by_hand.model(5).report(tmp_path / name) for name in ("one.html", "two.html"))
    assert one.read_bytes() == two.read_bytes()


def test_scripts_hold_nothing_that_ends_them() -> None:
    for last in ("file.js", "notebook.js"):
        assert not re.search(r"</script|<!--", report.script(last))


def test_the_colours_are_those_of_pictures() -> None:
    (stops,) = re.findall(r"const COLOURS = (\[.*?\]);", report.script("file.js"))
    for stop, place in zip(json.loads(stops), np.linspace(0, 1, 9), strict=True):
        np.testing.assert_allclose(
            [int(stop[n : n + 2], 16) for n in (1, 3, 5)], np.multiply(layout.COLOURS(place)[:3], 255), atol=1
        )


def test_summaries_are_told_in_the_order_of_layers_and_heads(tmp_path: Path) -> None:
    record = by_hand.model(7)
    facts = about(record.report(tmp_path / "out.html"))["summaries"]
    table = re.search(r"const STATISTICS = \{\n(.*?)\n\};", report.script("file.js"), re.DOTALL)[1]
    assert [*NUMBERS] == re.findall(r"^  (\w+): \{ title: ", table, re.MULTILINE)
    assert [*SHARES.values()] == re.findall(r'title: "([^"]+)", isShare: true', table)
    for row, summary in zip(facts, record.summary(), strict=True):
        for number, name in zip(row, NUMBERS, strict=True):
            expected = getattr(summary, name)
            assert number is None if math.isnan(expected) else number == pytest.approx(expected, rel=1e-3)


# --- texts


class Tokenizer:
    """The part of a Hugging Face tokenizer that a page needs."""

    all_special_tokens = ("<s>",)
    sep_token_id, eos_token_id = None, 0

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [("<s>", "▁un", "seen", "▁seen")[i] for i in ids]


def test_tokens_come_from_the_ids_of_the_call(tmp_path: Path) -> None:
    inputs = {"input_ids": torch.tensor([[0, 1, 2], [0, 3, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    record = WatchRecord([by_hand.layer("layer", 5, batch=2)], inputs)
    first, second = about(record.report(tmp_path / "out.html", tokenizer=Tokenizer()))["texts"][0]["examples"]
    assert first["pieces"] == ["<s>", " un", "seen", "3", "4"]  # two were generated: they have no names
    assert (first["special"], first["words"][:2]) == ([0], [0, 1])
    assert (first["padded"], second["padded"]) == ([], [2])


def test_texts_of_a_translation(tmp_path: Path) -> None:
    record = by_hand.translation(5, 3)
    facts = about(record.report(tmp_path / "out.html", tokens={"source": list("abcde"), "target": list("xyz")}))
    assert [text["side"] for text in facts["texts"]] == ["source", "target"]
    assert [layer["of"] for layer in facts["layers"]] == [[0, 0], [1, 1], [1, 0]]


def test_without_tokens_they_are_numbers(tmp_path: Path) -> None:
    facts = about(by_hand.model(3).report(tmp_path / "out.html"))
    assert "".join(facts["texts"][0]["examples"][0]["pieces"]).split() == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["a", "b"], "expected 3 source tokens for each of 1 examples, got 1 of 2"),
        ([["a", "b", "c"], ["d", "e", "f"]], "for each of 1 examples, got 2 of 3"),
        ({"question": ["a"]}, r"expected tokens of \"source\", \"target\" and \"answer\", got \['question'\]"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_in_one_line(tokens: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match=message) as caught:
        by_hand.model(3).report(tmp_path / "out.html", tokens=tokens)
    assert "\n" not in str(caught.value)


def test_nothing_seen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match="at least one attention, got none"):
        WatchRecord().report(tmp_path / "out.html")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.RunError, match="cannot write"):
        by_hand.model(3).report(tmp_path / "none" / "out.html")


# --- in a notebook


def test_a_widget_holds_what_the_page_holds() -> None:
    pytest.importorskip("anywidget")
    shown = look.widget(by_hand.model(5), tokens=list("abcde"), title="five")
    assert json.loads(shown.about)["title"] == "five"
    assert set(shown.blobs) == {f"0.{n}.{kind}" for n in (0, 1) for kind in ("per_token", "links", "matrix", "steps")}
    assert shown.get_state()["blobs"] == shown.blobs  # bytes, which travel as they are


def test_without_anywidget_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(
        errors.RegardError, match=r"needs anywidget, which is not installed: pip install 'regard\[notebook\]'"
    ):
        look.widget(by_hand.model(3))
