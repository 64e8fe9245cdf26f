"""The pictures of the documents: each is there, and can be drawn anew."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def pictures():
    spec = spec_from_file_location("pictures", DOCS / "pictures.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_picture_of_a_page_is_there(page: Path) -> None:
    for file in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / file).read_bytes().startswith(PNG), file


def test_pictures_can_be_drawn_anew(pictures, tmp_path: Path) -> None:
    pictures.main(tmp_path)
    drawn = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert drawn.keys() == set(pictures.PICTURES)
    assert all(content.startswith(PNG) for content in drawn.values())
    page = (DOCS / "positions.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(images/([^)]+)\)", page)) == set(pictures.PICTURES)
