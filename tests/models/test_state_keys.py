"""The names in the state dicts of layers and models, and their order: what is saved today must load tomorrow.

The order counts too, as an optimizer that is resumed knows parameters by their number. The names are in
state_keys.json; a change of one ends the loading of models that were saved before.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from every_layer import EXAMPLES

KEYS: dict[str, list[str]] = json.loads((Path(__file__).parent / "state_keys.json").read_text(encoding="utf-8"))


def test_every_example_has_its_keys() -> None:
    assert list(EXAMPLES) == list(KEYS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_state_dict_has_the_names_that_it_had(name: str) -> None:
    with torch.device("meta"):
        assert list(EXAMPLES[name]().state_dict()) == KEYS[name]
