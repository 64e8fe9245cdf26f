"""Tiny language models, made once, read by many."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_models import KINDS


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of each kind."""
    return {kind: make(tmp_path_factory.mktemp(f"a-{kind}")) for kind, make in KINDS.items()}
