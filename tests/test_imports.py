"""Imports and public names of the package, tested in fresh processes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec

import pytest

import regard

EXTRAS = ["lightning", "matplotlib", "numba", "rich", "safetensors", "torchmetrics", "triton", "typer", "jaxtyping"]

PACKAGES = ("data", "errors", "functional", "look", "models", "nn", "positions", "tasks", "training")
PUBLIC = ["regard", *(f"regard.{name}" for name in PACKAGES)]


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("first", ["regard.attention, regard.causal()", "regard.nn, regard.positions", "regard.watch"])
def test_import_brings_in_no_extra(first: str) -> None:
    loaded = fresh(f"import sys, regard; {first}; print(*sorted(m for m in {EXTRAS} if m in sys.modules))")
    assert loaded == ""


def test_every_public_name_is_there_and_kept() -> None:
    assert (
        fresh("import regard; print(all(getattr(regard, n) is getattr(regard, n) for n in regard.__all__))") == "True"
    )
    assert fresh("from regard import *; print(attention.__name__, nn.__name__)") == "attention regard.nn"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_shows_its_public_names_alone(name: str) -> None:
    module = importlib.import_module(name)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


def test_the_public_names_are_these() -> None:
    assert sorted(regard.__all__) == [
        "Additive",
        "Dot",
        "General",
        "Mask",
        "Observation",
        "Observe",
        "ScaledDot",
        "__version__",
        "attention",
        "causal",
        "convert",
        "dense",
        "errors",
        "explain_impl",
        "nn",
        "padding",
        "positions",
        "watch",
        "window",
    ]


def test_an_unknown_name_raises_as_python_does() -> None:
    with pytest.raises(AttributeError, match="no attribute 'flash'"):
        regard.flash  # noqa: B018


def test_kernels_never_import_each_other() -> None:
    kernels = {"reference", "sdpa", "cpu.additive", *(["triton.additive"] if find_spec("triton") else [])}
    for kernel in kernels:
        loads = "print(*(m for m in sys.modules if m.startswith('regard._kernels.')))"
        code = f"import sys, regard._kernels.{kernel}; {loads}"
        loaded = {name.removeprefix("regard._kernels.") for name in fresh(code).split()}
        assert loaded & kernels == {kernel}
