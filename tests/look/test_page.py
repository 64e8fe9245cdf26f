"""The page in a browser without a network: its contents, by mouse, by keys, and for screen readers."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import record_by_hand as by_hand
from pages import VISIBLE, Open, choose, listed, settled, tab, units
from regard.look import Layer, WatchRecord
from regard.look.page import html as report
from regard.look.page import notebook

if TYPE_CHECKING:
    pass

pytest_plugins = ["browser_fixtures"]

WORDS = ["[CLS]", "the", "cat", "sat", "on", "the", "un", "##believ", "##able", "mat", "[SEP]"]


@pytest.fixture
def text(tmp_path: Path) -> tuple[Path, WatchRecord]:
    record = by_hand.model(len(WORDS), layers=3)
    return record.report(tmp_path / "text.html", tokens=WORDS, title="A cat"), record


def expect(found: dict[int, float], weights: torch.Tensor) -> None:
    """Check that the list has the largest weights, to the precision written and stored."""
    expected = {i: 100 * float(weight) for i, weight in enumerate(weights)}
    assert next(iter(found)) == max(expected, key=expected.get)
    for index, percent in found.items():
        assert percent == pytest.approx(expected[index], abs=0.6)
    assert sum(found.values()) == pytest.approx(sum(sorted(expected.values())[-8:]), abs=2)


# --- heads


def test_a_tile_for_each_head_tells_all_its_numbers(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    path, record = text
    page = opened(path)
    tiles = page.get_by_role("gridcell")
    assert tiles.count() == 9
    summary = record.summary()[4]
    name = tiles.nth(4).get_attribute("aria-label")
    assert name.startswith(f"layer 1, head 1: first token {summary.first:.2f}, previous token {summary.previous:.2f}")
    tiles.nth(4).hover()
    assert page.locator(".card").inner_text().split("\n")[0] == "Layer 1 · head 1"
    assert f"{summary.entropy:.2f}" in page.locator(".card").inner_text()
    tiles.nth(4).click()
    assert tiles.nth(4).get_attribute("aria-selected") == "true"


def test_colours_follow_the_number_chosen(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    path, record = text
    page = opened(path)
    for name in ("first", "entropy"):
        page.get_by_label("coloured by").select_option(name)
        colours = [tile.evaluate("tile => tile.style.backgroundColor") for tile in page.locator(".tile").all()]
        lightness = [sum(map(int, re.findall(r"\d+", colour))) for colour in colours]
        values = [getattr(summary, name) for summary in record.summary()]
        assert sorted(range(9), key=values.__getitem__)[-1] == lightness.index(min(lightness))


def test_arrows_move_through_the_heads(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    page = opened(text[0])
    page.get_by_role("rowheader").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "End"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.ariaLabel").startswith("layer 0, head 2")
    page.keyboard.press("Enter")
    assert page.locator(".tile[aria-selected=true]").get_attribute("aria-label").startswith("layer 0, head 2")


# --- text


@pytest.mark.parametrize("head", [None, 2])
def test_a_picked_token_tells_where_it_looks_and_who_looks_at_it(
    head: int | None, opened: Open, text: tuple[Path, WatchRecord]
) -> None:
    path, record = text
    page = opened(path)
    choose(page, "Tokens")
    if head is not None:
        page.locator(".tile").nth(head).click()
    units(page).nth(5).click()
    weights = by_hand.weights(record.layers[0])[0]
    matrix = weights.mean(0) if head is None else weights[head]
    expect(listed(page, "Attends to"), matrix[5])
    expect(listed(page, "Attended to by"), matrix[:, 5])
    said = page.locator("[role=status]" + VISIBLE).first.inner_text()
    assert said.startswith("the, token 5; attends to ")


def test_words_are_sums_over_keys_and_means_over_queries(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    path, record = text
    page = opened(path)
    assert units(page).all_inner_texts() == ["[CLS]", "the", "cat", "sat", "on", "the", "unbelievable", "mat", "[SEP]"]
    units(page).nth(6).click()
    starts = [0, 1, 2, 3, 4, 5, 6, 9, 10, 11]
    matrix = by_hand.weights(record.layers[0])[0].mean(0)
    spans = list(pairwise(starts))
    merged = torch.stack([torch.stack([matrix[a:b, c:d].sum(1).mean() for c, d in spans]) for a, b in spans])
    expect(listed(page, "Attends to"), merged[6])
    expect(listed(page, "Attended to by"), merged[:, 6])
    choose(page, "Tokens")  # the first token of the word stays picked
    assert units(page).nth(6).get_attribute("aria-selected") == "true"
    assert units(page).count() == len(WORDS)


def test_keys_walk_through_the_text(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    page = opened(text[0])
    page.get_by_role("listbox").focus()
    picked = page.locator(".unit[aria-selected=true]" + VISIBLE)
    for key, word in (
        ("ArrowRight", "the"),
        ("ArrowRight", "cat"),
        ("ArrowLeft", "the"),
        ("End", "[SEP]"),
        ("Home", "[CLS]"),
    ):
        page.keyboard.press(key)
        assert picked.inner_text() == word
        active = page.get_by_role("listbox").get_attribute("aria-activedescendant")
        assert page.locator(f"#{active}").inner_text() == word
    page.keyboard.press("Escape")
    assert picked.count() == 0


def test_up_and_down_go_by_line(opened: Open, tmp_path: Path) -> None:
    record = by_hand.model(211, layers=1, keep=False)
    page = opened(record.report(tmp_path / "text.html"))
    units(page).nth(3).click()
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowDown")
    box = page.locator(".unit[aria-selected=true]").bounding_box()
    first, second = units(page).nth(3).bounding_box(), units(page).nth(0).bounding_box()
    assert box["y"] > second["y"]
    assert abs(box["x"] - first["x"]) < 40
    page.keyboard.press("ArrowUp")
    assert page.locator(".unit[aria-selected=true]").inner_text() == "3"


def test_a_link_leads_to_its_token(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    page = opened(text[0])
    units(page).nth(8).click()
    row = page.locator(".list").first.locator("li button").first
    index = re.search(r"\n(\d+)\n", row.inner_text())[1]
    row.press("Enter")
    assert page.locator(".unit[aria-selected=true]").evaluate("unit => unit.unit") == int(index)


def test_a_token_that_is_shaded_can_still_be_read(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    for scheme in ("light", "dark"):
        page = opened(text[0], color_scheme=scheme)
        units(page).nth(8).click()
        pairs = page.evaluate("""[...document.querySelectorAll('.unit')].map(unit => getComputedStyle(unit))
            .map(style => [style.backgroundColor, style.color])""")
        shown = [
            [[int(n) for n in re.findall(r"\d+", colour)[:3]] for colour in pair]
            for pair in pairs
            if "rgba" not in pair[0]
        ]
        assert len(shown) > 3
        for back, ink in shown:
            assert contrast(back, ink) >= 4.5


def contrast(one: list[int], other: list[int]) -> float:
    """Return the ratio of luminances as WCAG 2 defines it."""

    def luminance(colour: list[int]) -> float:
        parts = [c / 255 for c in colour]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


# --- matrix, alignment, steps


def test_the_matrix_is_read_with_arrows(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    path, record = text
    page = opened(path)
    choose(page, "Tokens")
    page.locator(".tile").nth(1).click()
    tab(page, "Matrix")
    page.locator(".field" + VISIBLE).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    weight = 100 * float(by_hand.weights(record.layers[0])[0, 1, 2, 1])
    said = page.locator(".cell" + VISIBLE).inner_text()
    assert said.startswith("cat 2 → the 1")
    assert float(re.search(r"([\d.]+) %", said)[1]) == pytest.approx(weight, abs=0.5)
    page.keyboard.press("Enter")  # back to the text, with the row's token picked
    assert page.locator(".unit[aria-selected=true]").inner_text() == "cat"


def test_an_alignment_has_the_answer_down_and_the_source_across(opened: Open, tmp_path: Path) -> None:
    record = by_hand.translation(7, 5, keep=True)
    tokens = {
        "source": ["le", "chat", "dort", "sur", "la", "natte", "."],
        "target": ["the", "cat", "sleeps", "there", "."],
    }
    page = opened(record.report(tmp_path / "text.html", tokens=tokens))
    tab(page, "Alignment")
    field = page.locator(".field" + VISIBLE)
    assert field.get_attribute("aria-label").startswith("Weights; rows: queries (5), columns: keys (7).")
    field.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    weight = 100 * float(by_hand.weights(record.layers[2])[0, :, 1, 1].mean())
    said = page.locator(".cell" + VISIBLE).inner_text()
    assert said.startswith("cat 1 → chat 1")
    assert float(re.search(r"([\d.]+) %", said)[1]) == pytest.approx(weight, abs=0.5)
    tab(page, "Text")
    page.locator("[role=grid]").last.locator(".tile").first.click()
    page.get_by_role("option", name="dort").click()
    expect(listed(page, "Attended to by"), by_hand.weights(record.layers[2])[0, 0, :, 2])


def test_without_the_matrix_it_is_drawn_from_links(opened: Open, tmp_path: Path) -> None:
    page = opened(by_hand.model(131, keep=False).report(tmp_path / "text.html"))
    tab(page, "Matrix")
    assert "Drawn from the recorded links" in page.locator(".matrix" + VISIBLE).inner_text()
    coloured = page.locator("canvas" + VISIBLE).evaluate("""canvas => new Set(new Uint32Array(
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size""")
    assert coloured > 20


def test_the_taught_example_shows_its_numbers(opened: Open, tmp_path: Path) -> None:
    """a₁ = (1, 1), a₂ = (1, 0): q₁ = (1, 2), k₁ = (1, 0), k₂ = (0, 1); 0.71 and 1.41 become 0.33 and 0.67."""
    page = opened(by_hand.model(5, keep=False).report(tmp_path / "text.html"))
    tab(page, "Step by step")
    table = page.locator(".steps")
    assert "q₁ = (1, 2)" in table.inner_text()
    page.get_by_role("button", name="query and keys").focus()
    page.keyboard.press("ArrowRight")
    assert [row.split("\t")[2].strip() for row in table.locator("tbody tr").all_inner_texts()] == [
        "1·1 + 2·0 = 1",
        "1·0 + 2·1 = 2",
    ]
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    rows = [re.split(r"\s*\t\s*|\n", row) for row in table.locator("tbody tr").all_inner_texts()]
    assert rows == [
        ["a₁", "(1, 0)", "1", "0.71", "2.03", "0.33", "(4, 1)"],
        ["a₂", "(0, 1)", "2", "1.41", "4.11", "0.67", "(1, 2)"],
    ]
    assert "b₁ = (1.99, 1.67)" in table.inner_text()
    table.get_by_label("query").select_option(label="a₂")
    assert [row.split("\t")[5].strip() for row in table.locator("tbody tr").all_inner_texts()] == ["0.50", "0.50"]


def test_steps_of_the_model_end_in_its_weights(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    path, record = text
    page = opened(path)
    page.locator(".tile").nth(5).click()  # layer 1, head 2
    tab(page, "Step by step")
    page.get_by_label("query").select_option(label="on 4")
    page.get_by_role("button", name="softmax").click()
    rows = [row.split("\t") for row in page.locator("tbody tr").all_inner_texts()]
    found = [float(row[-1]) for row in rows]
    assert found == pytest.approx(by_hand.weights(record.layers[1])[0, 2, 4].tolist(), abs=0.006)
    assert [row[4].strip() for row in rows][5:] == ["−∞"] * 6  # what comes later is masked
    choose(page, "a small example")
    assert "q₁ = (1, 2)" in page.locator(".steps").inner_text()


# --- the page


def test_tabs_by_keys_and_roles(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    page = opened(text[0])
    page.get_by_role("tab", name="Text").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Matrix").get_attribute("aria-selected") == "true"
    panels = page.get_by_role("tabpanel")
    assert panels.count() == 1  # the others are hidden
    assert panels.get_attribute("aria-labelledby") == page.get_by_role("tab", name="Matrix").get_attribute("id")
    names = page.evaluate("""[...document.querySelectorAll('button, input, select, [tabindex]')]
        .filter(e => e.offsetParent)
        .map(e => e.ariaLabel || e.textContent.trim() || e.labels?.[0]?.textContent.trim() || '')""")
    assert all(names)


def test_tab_reaches_everything_in_a_few_stops(opened: Open, text: tuple[Path, WatchRecord]) -> None:
    page = opened(text[0])
    stops = []
    for _ in range(12):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
    assert {"INPUT", "SELECT", "rowheader", "tab", "listbox"} <= set(stops)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_by_the_system_and_by_the_switch(
    scheme: str, opened: Open, text: tuple[Path, WatchRecord]
) -> None:
    page = opened(text[0], color_scheme=scheme)
    other = {"light": "dark", "dark": "light"}[scheme]
    assert page.locator(".regard").get_attribute("data-theme") == scheme
    choose(page, other.capitalize())
    assert page.locator(".regard").get_attribute("data-theme") == other
    choose(page, "Auto")
    page.emulate_media(color_scheme=other)
    page.wait_for_selector(f".regard[data-theme={other}]")


@pytest.mark.parametrize("width", [320, 390, 768, 1360])
def test_nothing_sticks_out_of_a_narrow_screen(width: int, opened: Open, tmp_path: Path) -> None:
    record = by_hand.model(61, layers=3, heads=31)
    tokens = ["Donaudampfschifffahrtsgesellschaft" * 3, *map(str, range(60))]
    page = opened(record.report(tmp_path / "text.html", tokens=tokens, title="x" * 200), width=width)
    units(page).nth(0).click()
    for name in ("Text", "Matrix", "Step by step"):
        tab(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_examples_of_a_batch_are_chosen(opened: Open, tmp_path: Path) -> None:
    record = by_hand.model(5, batch=2)
    page = opened(record.report(tmp_path / "text.html", tokens=[list("abcde"), list("vwxyz")]))
    page.get_by_label("example").select_option(label="2")
    page.get_by_role("option", name="v", exact=True).wait_for()
    assert units(page).all_inner_texts() == list("vwxyz")
    units(page).nth(4).click()
    expect(listed(page, "Attends to"), by_hand.weights(record.layers[0])[1].mean(0)[4])


def test_calls_of_other_sizes_stand_side_by_side(opened: Open, tmp_path: Path) -> None:
    record = WatchRecord([by_hand.layer("model", 7, batch=2, keep=True), by_hand.layer("model", 3, keep=True)])
    page = opened(record.report(tmp_path / "text.html"))
    page.get_by_label("example").select_option(label="2")
    for number, (count, example) in enumerate(((7, 1), (3, 0))):
        page.get_by_role("rowheader").nth(number).click()
        settled(page)
        assert units(page).count() == count
        units(page).nth(2).click()
        expect(listed(page, "Attends to"), by_hand.weights(record.layers[number])[example].mean(0)[2])


def test_missing_statistics_are_named(opened: Open, tmp_path: Path) -> None:
    plain = by_hand.layer("layer", 5)
    record = WatchRecord(
        [Layer("layer", type(plain.statistics)(entropy=plain.statistics.entropy), plain.shape, plain.heads)]
    )
    page = opened(record.report(tmp_path / "text.html"))
    units(page).nth(2).click()
    assert "Links were not recorded" in page.locator("aside").inner_text()
    tab(page, "Matrix")
    assert "Neither weights nor links were recorded" in page.locator(".matrix" + VISIBLE).inner_text()


def test_a_large_model_over_a_long_text(opened: Open, large: tuple[Path, WatchRecord]) -> None:
    """30 layers of 9 heads over 4,096 tokens: the page opens at once, and each layer when it is chosen."""
    path, record = large
    page = opened(path)
    choose(page, "Tokens")
    assert page.get_by_role("gridcell").count() == 270
    units(page).nth(4000).click()
    assert listed(page, "Attends to")
    page.locator(".tile").nth(269).click()
    assert page.locator(".card").inner_text().startswith("Layer 29 · head 8")
    units(page).nth(4095).click()
    heaviest = record.layers[29].statistics.top
    assert next(iter(listed(page, "Attends to"))) == int(heaviest.keys[0, 8, 4095, 0])
    tab(page, "Matrix")
    assert "the heaviest of several pairs" in page.locator(".matrix" + VISIBLE).inner_text()


def test_the_same_page_in_a_notebook(opened: Open, tmp_path: Path) -> None:
    """Run the widget's module with the arguments that anywidget passes."""
    pytest.importorskip("anywidget")
    record = by_hand.model(len(WORDS))
    shown = notebook.widget(record, tokens=WORDS, title="A cat")
    blobs = {key: base64.b64encode(blob).decode() for key, blob in shown.blobs.items()}
    (tmp_path / "empty.html").write_text("<!DOCTYPE html><div id=here><main aria-busy=false></main></div>", "utf-8")
    page = opened(tmp_path / "empty.html")
    page.evaluate(
        """async ([code, style, about, blobs]) => {
            document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
            const file = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
            const { default: widget } = await import(file);
            const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
            const view = ([key, text]) => [key, new DataView(bytes(text).buffer)];
            const views = Object.fromEntries(Object.entries(blobs).map(view));
            const model = { get: (name) => ({ about, blobs: views })[name] };
            window.away = widget.render({ model, el: document.getElementById("here") });
        }""",
        [shown._esm, shown._css, shown.about, blobs],
    )
    units(page).nth(6).click()
    assert listed(page, "Attends to")
    assert page.get_by_role("heading", name="A cat").is_visible()
    assert page.evaluate("typeof window.away") == "function"
    assert json.loads(shown.about)["title"] == "A cat"
    assert shown._css == report.style()
