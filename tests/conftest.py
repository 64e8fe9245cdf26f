"""One thread, as the tests' own workers run side by side; examples drawn alike on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: it reads this once
settings.register_profile(
    "regard", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("regard")


@pytest.fixture
def nothing_is_left_behind() -> Iterator[None]:
    """Check that a watch restores all settings that it changes."""
    torch.manual_seed(0)
    yield
    assert torch.backends.mha.get_fastpath_enabled()
    assert not torch._C._is_torch_function_mode_enabled()
