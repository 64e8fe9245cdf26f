"""Heat maps, measured: labels, sizes, distances. Their look must be judged by a person."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from regard import errors, look
from regard.look import Alignment, alignment, alignments, position_encoding, save
from regard.look.pictures import labels, layout

CASES: dict[str, tuple[list[str], list[str]]] = {
    "one": (["AH1"], ["a"]),
    "short": (["AY", "<eos>"], list("eye")),
    "phones": (["P", "R", "AH0", "N", "AH2", "N", "S", "IY0", "EY1", "SH", "AH0", "N", "<eos>"], list("pronunciation")),
    "long word": ([*"PNEUMONOULTRAMICROSCOPIC" * 3, "<eos>"], list("pneumonoultramicroscopic" * 3)),
    "words": (["it", "was", "signed", "<eos>"], ["L'", "accord", "économique", "européen", "a", "été", "signé"]),
    "japanese": (list("べんしょうほう"), list("ヘーゲルの弁証法は難しい" * 5)),
    "korean": (list("eotensyeon"), list("어텐션은 한국어")),
    "chinese": (["zhù", "yì", "lì", "<eos>"], list("注意力机制")),
    "hebrew": (list("shalom olam"), list("שלום עולם")),
    "arabic": (["peace", "be", "upon", "you"], ["السلام", "عليكم", "يا", "أصدقاء"]),
    "ipa": (["t͡ʃ", "ɔ̃", "t̪ʰ", "ŋ͡m", "ʔ", "˥˩", "ẽ", "e\u0303"], ["\u0303", "\u0361", "◌", "ch", "ʧ"]),
    "signs": (["", " ", "\t", "\n", "\u00a0", "\u3000", "\u200f", "\x00", "\ud800"], ["$x$", "$", "\\", "{", "_", "^"]),
    "no font": (["\u0378", "a\u0378b", "<eos>"], ["\U000e0fff", "x"]),
    "long labels": (["a" * 200, "<eos>"], ["Donaudampfschifffahrtsgesellschaft", "b" * 200]),
    "wide": (list("abc"), list("attention" * 20)),
    "huge": ([str(i) for i in range(311)], [str(i) for i in range(293)]),
}


def diagonal(rows: int, columns: int) -> np.ndarray:
    scores = -((np.linspace(0, columns, rows)[:, None] - np.arange(columns)) ** 2)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def draw(case: str, **options: object) -> Axes:
    rows, columns = CASES[case]
    return alignment(diagonal(len(rows), len(columns)), rows, columns, **options)


def written(ax: Axes, axis: str) -> list[str]:
    return [label.get_text() for label in (ax.get_yticklabels() if axis == "y" else ax.get_xticklabels())]


def boxes(ax: Axes, axis: str) -> list[Bbox]:
    return [label.get_window_extent() for label in (ax.get_yticklabels() if axis == "y" else ax.get_xticklabels())]


def test_public_names() -> None:
    classes = ["Alignment", "AttentionInputs", "Layer", "Summary", "WatchRecord", "WordSpans"]
    functions = ["alignment", "alignments", "grid", "position_encoding", "save", "widget"]
    assert look.__all__ == classes + functions
    assert all(getattr(look, name).__name__ == name for name in look.__all__)


# --- what is drawn


def test_rows_are_outputs_from_top_to_bottom_and_columns_inputs_from_left_to_right() -> None:
    weights = np.array([[0.7, 0.2, 0.1], [0.0, 0.3, 0.7]])
    ax = alignment(weights, ["AY", "<eos>"], "eye", title="eye")
    assert written(ax, "x") == ["e", "y", "e"]
    assert written(ax, "y") == ["AY", "⏎"]
    assert ax.get_title(loc="left") == "eye"
    assert np.array_equal(np.asarray(ax.images[0].get_array()), weights)
    first, second = boxes(ax, "y")
    assert first.y0 > second.y1  # the first output above the second
    left, *_, right = boxes(ax, "x")
    assert left.x1 < right.x0
    assert left.y0 > ax.get_window_extent().y1  # inputs above the map


@pytest.mark.parametrize(
    ("unit", "label"),
    [
        ("", "∅"),
        (" ", "␣"),
        ("\u3000", "␣"),
        ("\u00a0", "⍽"),
        ("\t", "⇥"),
        ("New York", "New␣York"),
        ("<eos>", "⏎"),
        ("<bos>", "⇤"),
        ("<unk>", "<unk>"),
        ("\u0303", "◌\u0303"),
        ("e\u0303", "e\u0303"),
        ("t͡ʃ", "t͡ʃ"),
        ("\u200d", "U+200D"),
        ("نمی\u200cخواهم", "نمی\u200cخواهم"),
        ("\u200f", "U+200F"),
        ("\x00", "U+0000"),
        ("\ud800", "U+D800"),
        ("\u0378", "U+0378"),
        ("x\u0378y", "xU+0378y"),
        ("注", "注"),
        ("가", "가"),
        ("a" * 24, "a" * 24),
        ("a" * 25, "a" * 23 + "…"),
    ],
)
def test_labels_show_what_cannot_be_seen(unit: str, label: str) -> None:
    assert labels.visible(unit) == label


def test_dollars_are_no_formula() -> None:
    ax = alignment([[1.0]], ["$x$"], ["$y$"], title="$z$")
    texts = [*ax.get_xticklabels(), *ax.get_yticklabels(), ax.title, ax._left_title]
    assert not any(text.get_parse_math() for text in texts if text.get_text())


@pytest.mark.parametrize(("peak", "end"), [(1.0, 1.0), (0.6, 1.0), (0.5, 1.0), (0.2, 0.2), (0.0, 1.0)])
def test_scale_ends_at_one_or_at_the_largest_of_small_weights(peak: float, end: float) -> None:
    ax = alignment([[peak, 0.0]], "a", "ab")
    assert ax.images[0].get_clim() == (0.0, end)


def test_nan_is_red_and_harms_nothing() -> None:
    ax = alignment([[float("nan"), 1.0]], "a", "ab")
    red, green, blue, _ = ax.images[0].cmap(np.ma.masked_invalid([np.nan]))[0]
    assert red > 1.5 * max(green, blue)
    alignment([[float("nan")]], "a", "a")


def test_tensors_of_any_dtype_and_with_gradients_are_drawn() -> None:
    weights = torch.full((2, 3), 1 / 3, dtype=torch.bfloat16, requires_grad=True)
    assert alignment(weights, "ab", "cde").images[0].get_array().shape == (2, 3)


def test_equal_steps_of_weight_look_equal() -> None:
    rgb = np.array([to_rgb(layout.COLOURS(weight)) for weight in np.linspace(0, 1, 11)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    lightness = 116 * np.cbrt(luminance) - 16  # CIE L*, for which we did not choose the colours
    steps = -np.diff(lightness)
    assert steps.min() > 0.6 * steps.mean()
    assert steps.max() < 1.4 * steps.mean()


# --- where it stands


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("title", [None, "a title"])
def test_labels_touch_neither_each_other_nor_the_map_and_stand_on_the_page(case: str, title: str | None) -> None:
    ax = draw(case, title=title)
    figure = ax.figure
    figure.draw_without_rendering()
    map_box, page = ax.get_window_extent(), figure.bbox
    across, down = boxes(ax, "x"), boxes(ax, "y")
    assert all(left.x1 < right.x0 for left, right in pairwise(across))
    assert all(upper.y0 > lower.y1 - 1 for upper, lower in pairwise(down))  # the line's height, more than its ink
    assert all(box.y0 >= map_box.y1 - 1 for box in across)
    assert all(box.x1 < map_box.x0 for box in down)
    names, heading = [ax.xaxis.label.get_window_extent(), ax.yaxis.label.get_window_extent()], ax._left_title
    assert all(box.y1 <= names[0].y0 for box in across)
    assert all(box.x0 >= names[1].x1 for box in down)
    if title is not None:
        assert heading.get_window_extent().y0 >= names[0].y0
    ink = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert min(ink.x0, ink.y0, page.x1 - ink.x1, page.y1 - ink.y1) > 0
    assert page.y1 - ink.y1 < 0.4 * figure.dpi  # nor is there an empty strip


@pytest.mark.parametrize("case", ["phones", "long word", "korean", "short"])
def test_cells_are_square_or_nearly(case: str) -> None:
    box = (ax := draw(case)).get_window_extent()
    rows, columns = ax.images[0].get_array().shape
    assert 0.5 < (box.width / columns) / (box.height / rows) < 2


def test_every_unit_of_a_long_word_is_labelled_in_full_size() -> None:
    ax = draw("long word")
    assert (len(written(ax, "x")), len(written(ax, "y"))) == (72, 73)
    assert {label.get_fontsize() for label in ax.get_xticklabels()} == {layout.FONT}
    width, height = ax.figure.get_size_inches()
    assert max(width, height) < 18


def test_past_some_hundred_units_labels_are_thinned_out_evenly() -> None:
    rows = written(draw("huge"), "y")
    assert rows == [str(i) for i in range(0, 311, 2)]


def test_words_are_written_upright_where_they_fit_and_turned_where_not() -> None:
    assert {label.get_rotation() for label in draw("phones").get_xticklabels()} == {0.0}
    assert {label.get_rotation() for label in draw("words").get_xticklabels()} == {90.0}


def test_in_axes_of_the_users_labels_shrink_to_fit() -> None:
    figure = Figure(figsize=(6, 3))
    large, small = figure.subplots(1, 2)
    assert draw("long word", ax=small) is small
    draw("phones", ax=large)
    figure.draw_without_rendering()
    assert figure.axes == [large, small]
    for ax in (large, small):
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes(ax, "x")))
        assert all(upper.y0 > lower.y1 - 1 for upper, lower in pairwise(boxes(ax, "y")))


def test_several_maps_share_one_scale_and_do_not_overlap() -> None:
    words = [("phones", "pronunciation"), ("short", "eye"), ("korean", "어텐션"), ("arabic", None), ("words", "t" * 90)]
    figure = alignments(Alignment(diagonal(*map(len, CASES[name])), *CASES[name], title) for name, title in words)
    *maps, scale = figure.axes
    assert len(maps) == len(words)
    assert scale.get_ylabel() == "attention weight"
    assert {ax.images[0].get_clim() for ax in maps} == {(0.0, 1.0)}
    assert [bool(ax.get_xlabel()) for ax in maps] == [True, False, False, False, False]  # said once
    figure.draw_without_rendering()
    outer = [ax.get_tightbbox() for ax in figure.axes]
    assert not any(one.overlaps(other) for i, one in enumerate(outer) for other in outer[:i])
    assert all(min(box.x0, box.y0, figure.bbox.x1 - box.x1, figure.bbox.y1 - box.y1) > 0 for box in outer)


# --- fonts


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove all fonts but the one that comes with matplotlib."""
    cached = (labels._family, labels._cjk_family)
    for function in cached:
        function.cache_clear()
    monkeypatch.setattr(labels, "CJK_PACKAGE", "no_such_package")
    monkeypatch.setattr(labels, "_installed_families", lambda: ())
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("bare_machine")
def test_without_a_font_labels_are_code_points_and_nothing_warns(tmp_path: Path) -> None:
    ax = alignment([[0.5, 0.5]], ["가"], ["注", "b"], title="注 b")
    assert written(ax, "y") == ["U+AC00"]
    assert written(ax, "x") == ["U+6CE8", "b"]
    assert ax.get_title(loc="left") == "U+6CE8 b"
    save(ax, tmp_path / "bare.png")  # a missing glyph would warn, and a warning is an error


@pytest.mark.parametrize("case", CASES)
def test_no_glyph_is_missing(case: str, tmp_path: Path) -> None:
    save(draw(case, title=" ".join(CASES[case][1][:9])), tmp_path / "picture.png")


def test_a_font_for_chinese_japanese_and_korean_comes_with_the_extra() -> None:
    assert labels.families(["注", "の", "가"]) == ["DejaVu Sans", "Noto Sans CJK JP"]


def test_a_broken_font_file_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(labels, "findfont", lambda *_, **__: str(tmp_path / "broken.ttf"))
    assert labels._characters.__wrapped__("Broken") == frozenset()


# --- positions


def sinusoids(length: int, dim: int) -> torch.Tensor:
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, dim + 1, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :dim]


@pytest.mark.parametrize(("length", "dim"), [(61, 32), (7, 5), (1, 1), (13, 2), (3, 300)])
def test_position_table_is_drawn_as_a_map_and_as_curves(length: int, dim: int, tmp_path: Path) -> None:
    table = sinusoids(length, dim)
    heat = position_encoding(table)
    figure = heat.figure
    first, _, curves = figure.axes
    assert first is heat
    assert np.allclose(np.asarray(heat.images[0].get_array()), table.T)
    assert heat.get_xlim() == curves.get_xlim()  # a column stands over its point of the curves
    for line in curves.get_lines():
        dimension = int(str(line.get_label()).removeprefix("dimension "))
        assert np.allclose(line.get_ydata(), table[:, dimension])
    assert len(curves.get_lines()) == min(4, dim) or dim < 16
    save(figure, tmp_path / "positions.png")


def test_dimensions_can_be_chosen_and_must_exist() -> None:
    curves = position_encoding(sinusoids(11, 6), dims=[5, 0]).figure.axes[2]
    assert [line.get_label() for line in curves.get_lines()] == ["dimension 5", "dimension 0"]
    assert position_encoding(torch.zeros(3, 2), dims=[]).figure.axes[2].get_legend() is None
    with pytest.raises(errors.ArgumentError, match=r"dims from 0 to 5, got \[6\]"):
        position_encoding(sinusoids(11, 6), dims=[6])


def test_position_table_in_axes_of_the_users_is_the_map_alone() -> None:
    figure = Figure()
    ax = figure.subplots()
    assert position_encoding(sinusoids(11, 6), ax=ax) is ax
    assert figure.axes == [ax]
    assert np.allclose(np.asarray(ax.images[0].get_array()), sinusoids(11, 6).T)
    with pytest.raises(errors.ArgumentError, match="expected dims or ax, got both"):
        position_encoding(sinusoids(11, 6), dims=[0], ax=ax)


# --- errors


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0.5, 0.5]], r"expected weights of shape \(2, 3\), as many as labels, got \(1, 2\)"),
        ([0.5, 0.5], r"expected weights of shape \(Tout, Tin\), both above 0, got \(2,\)"),
        ([[]], r"got \(1, 0\)"),
        ([[[0.5]]], r"got \(1, 1, 1\)"),
        ([[0.1, 0.2, 0.3], [0.1, 0.2, 1.2]], r"from 0 to 1, got 0\.1 to 1\.2; take them after softmax"),
        ([[0.1, 0.2, 0.3], [-3.0, 0.2, 0.2]], r"from 0 to 1, got -3 to 0\.3"),
        ([[0.1, 0.2, 0.3], [float("inf"), 0.2, 0.2]], r"from 0 to 1, got 0\.1 to inf"),
    ],
)
def test_wrong_weights_are_refused_in_one_line(weights: object, message: str) -> None:
    with pytest.raises(errors.ArgumentError, match=message) as caught:
        alignment(weights, ["AY", "<eos>"], "eye")
    assert "\n" not in str(caught.value)


def test_no_pictures_are_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="at least one picture, got none"):
        alignments([])


# --- files


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        save(draw("short"), tmp_path / name)
    content = (tmp_path / "one.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert content == (tmp_path / "two.png").read_bytes()
    save(draw("short").figure, tmp_path / "three.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "three.svg", "two.png"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Figure, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (target := tmp_path / "picture.png").write_bytes(b"old")
    ax = draw("short")
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(errors.RegardError, match=r"cannot write the picture .*picture\.png: No space left on device; "):
        save(ax, target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("place", ["no/such/folder/a.png", "file/a.png"])
def test_an_impossible_place_is_one_line(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.RegardError, match="cannot write the picture"):
        save(draw("short"), tmp_path / place)


@pytest.mark.parametrize("name", ["picture", "picture.xyz"])
def test_a_name_without_a_format_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match=r"ends in \.png, \.svg or \.pdf"):
        save(draw("short"), tmp_path / name)


# --- other people's processes


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pyplot_and_the_users_settings_are_left_alone() -> None:
    run(
        "import sys, matplotlib\n"
        "before = matplotlib.rcParams.copy()\n"
        "from regard.look import alignment\n"
        "alignment([[1.0]], ['가'], 'a', title='a').figure.draw_without_rendering()\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'notojp_matplotlib' not in sys.modules\n"
        "assert matplotlib.rcParams.copy() == before\n"
    )


def test_without_matplotlib_the_error_names_the_extra() -> None:
    said = run(
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from regard.errors import RegardError\n"
        "try:\n    from regard.look import alignment\n"
        "except RegardError as error:\n    print(error)\n"
    )
    assert "pip install 'regard[look]'" in said
