"""A browser without a network, in which pages are opened, and a page that is large."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import record_by_hand as by_hand
from pages import Open

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from regard.look import WatchRecord

OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; without it, or without Playwright, tests that need it are skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser: expected chromium or google-chrome on the PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS, timeout=120_000)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open a file, ``opened(path, width=390, color_scheme="dark")``.

    Fails at the end if a page asked for anything but its own file, or anything went wrong in it.
    """
    contexts, asked, wrong = [], [], []

    def open_file(path: Path, width: int = 1360, height: int = 860, **options: object) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url) if request.url != path.as_uri() else None)
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("main[aria-busy=false]", state="attached")
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == []
    assert wrong == []


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WatchRecord]:
    """The page of 30 layers with 9 heads each over 4,096 tokens."""
    record = by_hand.long(30, 9, 4096)
    pieces = [f"Ġtoken{number % 997}" if number % 7 else "ing" for number in range(4096)]
    return record.report(tmp_path_factory.mktemp("large") / "out.html", tokens=pieces), record
