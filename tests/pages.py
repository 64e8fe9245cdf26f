"""Actions of tests on the page to explore."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

VISIBLE = " >> visible=true"

Open = Callable[..., "Page"]


def units(page: Page) -> Locator:
    return page.locator(".unit" + VISIBLE)


def settled(page: Page) -> None:
    """Wait until the choice is shown."""
    page.wait_for_selector("main[aria-busy=false]")


def choose(page: Page, name: str) -> None:
    page.get_by_text(name, exact=True).click()
    settled(page)


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    settled(page)


def listed(page: Page, heading: str) -> dict[int, float]:
    """Return one of the two lists: percents by index, 0 for less than 0.1."""
    settled(page)
    rows = page.locator(".list", has=page.get_by_role("heading", name=heading)).locator("li").all_inner_texts()
    found = [re.search(r"(\d+)\s+(< )?([\d.]+) %$", row.replace("\n", " ")) for row in rows]
    return {int(match[1]): 0.0 if match[2] else float(match[3]) for match in found}
