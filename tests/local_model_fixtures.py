"""Language models for tests: tiny ones, and SmolLM2 from its package; made once, read by many."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_models import KINDS
from packaged import SMOLLM2, folder_of


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of each kind."""
    return {kind: make(tmp_path_factory.mktemp(f"a-{kind}")) for kind, make in KINDS.items()}


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of the GGUF file, which takes many times as long to read.

    The tests that use it bear ``xdist_group("smollm2")``, so that one worker makes it.
    """
    package, folder = folder_of(SMOLLM2), tmp_path_factory.getbasetemp() / "smollm2"
    pytest.importorskip("gguf", reason="gguf, by which transformers reads this model, is not installed")
    from regard.look.local_models import LocalModel

    local = LocalModel.open(package)
    local.model.hf_quantizer = None  # its weights are ordinary numbers by now
    del local.model.config.quantization_config
    local.model.save_pretrained(folder)
    local.tokenizer.save_pretrained(folder)
    return folder
