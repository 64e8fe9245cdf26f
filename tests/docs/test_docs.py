"""The code on the pages of the documents runs, and prints what stands there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
# How what is run begins; commands are run by test_readme.py.
BEGINS = {"python": ">>> ", "sh": "regard ", "math": ""}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# And how many lines of code each must have at least, that none can drop out unseen.
PAGES = {
    "rnn_vs_attention.md": 10,
    "formulas.md": 100,
    "positions.md": 60,
    "from_torch.md": 20,
    "transformers.md": 75,
    "looking.md": 15,
}


def blocks(text: str) -> list[tuple[str, str, int]]:
    """(language, content, line of its beginning) of each fenced block."""
    return [(found[1], found[2], text.count("\n", 0, found.start(2))) for found in FENCE.finditer(text)]


def failures(text: str, name: str) -> tuple[int, str]:
    """Run the blocks of a page in one namespace; return the number of examples and a report of those that fail."""
    runner, names, report = doctest.DocTestRunner(verbose=False), {}, []
    torch.manual_seed(0)
    for language, content, line in blocks(text):
        if language == "python":
            test = doctest.DocTestParser().get_doctest(content, names, name, name, line)
            runner.run(test, out=report.append, clear_globs=False)
            names = test.globs
    return runner.summarize(verbose=False).attempted, "".join(report)


@pytest.fixture(autouse=True)
def _print_options_are_restored():
    yield
    torch.set_printoptions(profile="default", sci_mode=None)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_prints_what_stands_there(page: str) -> None:
    attempted, report = failures((DOCS / page).read_text(encoding="utf-8"), page)
    assert not report, report
    assert attempted >= PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_there_is_no_block_that_is_not_run(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(blocks(text))
    for language, content, line in blocks(text):
        assert language in BEGINS, f"{page}:{line}: a block of {language or 'no language'}"
        assert content.startswith(BEGINS[language]), f"{page}:{line}: code that is not run"


@pytest.mark.parametrize("page", PAGES)
def test_links_within_the_page_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


@pytest.mark.parametrize("page", sorted((DOCS / "adr").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_names_files_that_exist(page: Path) -> None:
    root = DOCS.parent
    for path in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
        below = root if path.startswith("tests/") else root / "src" / "regard"
        assert (below / path).is_file(), f"{page.name}: there is no {path}"


def test_the_test_can_fail() -> None:
    page = "```python\n>>> x = 1\n```\n\n```python\n>>> x + 1\n3\n```\n"
    attempted, report = failures(page, "a page")
    assert attempted == 2
    assert "Expected:\n    3\nGot:\n    2" in report
