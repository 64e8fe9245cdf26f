"""The CPU kernels on systems without fork, without an OpenMP runtime to ask, or without a folder for compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BARE = """
import ctypes, os, sys
import numba.core.caching, torch
del os.register_at_fork                                            # Windows
for name in ("fork", "getuid", "resource"):
    if hasattr(os, name): delattr(os, name)
sys.modules.update(resource=None, fcntl=None, pwd=None, grp=None, termios=None)
numba.core.caching.CacheImpl._locator_classes = []                 # no folder can be written
{library}
import regard
from regard._kernels.cpu.loops import threads
assert not threads._Runtime.fork and not threads.EXACT["cache"]
torch.set_num_threads(2)
torch.manual_seed(0)
query, key, value = (torch.randn(2, 3, size, 33, requires_grad=True) for size in (200, 300, 300))
weight = torch.randn(33, requires_grad=True)
observe = regard.Observe(entropy=True, top=2)
found = {{}}
for impl in ("cpu", "reference"):
    output, statistics = regard.attention(query, key, value, score=regard.Additive(weight), impl=impl, observe=observe)
    gradients = torch.autograd.grad(output.square().sum(), (query, key, value, weight))
    found[impl] = (output, statistics.entropy, *gradients)
for ours, expected in zip(*found.values()):
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
_, statistics = regard.attention(query, key, value, observe=observe)    # of dot scores
_, expected = regard.attention(query.double(), key.double(), value.double(), observe=observe)
torch.testing.assert_close(statistics.entropy, expected.entropy.float(), rtol=1e-4, atol=1e-5)
print("right")
"""
LIBRARIES = {
    "a library without GOMP_parallel": "ctypes.CDLL = lambda name: object()",
    "no library": "def refuse(name): raise OSError(name)\nctypes.CDLL = refuse",
}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_that_only_some_systems_have_is_needed(library: str) -> None:
    code = BARE.format(library=LIBRARIES[library])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout.strip()) == (0, "right"), ended.stderr
    assert ended.stderr.count("compiling the CPU kernels of attention, each time, until NUMBA_CACHE_DIR") == 1


FIRST = """
import torch, regard
x = torch.ones(1, 1, 2, 3)
regard.attention(x, x, x, impl="cpu", score=regard.Additive(torch.ones(3)))
"""


@pytest.mark.slow
def test_the_first_call_of_an_installation_says_that_it_compiles(tmp_path: Path) -> None:
    """On whatever standard error is: a terminal, a log, a notebook; later processes have nothing to say."""
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", FIRST], env=settings, capture_output=True, text=True, check=True).stderr
        for _ in range(2)
    ]
    assert said == ["compiling the CPU kernels of attention, once for this installation: some seconds\n", ""]


def test_code_compiled_from_other_sources_is_never_read(tmp_path: Path) -> None:
    """Such code may name types that are gone, and Numba would fail to read it."""
    code = "import torch; from regard._kernels.dropout import dropout; dropout(torch.ones(5), 0.5); print('right')"
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run() -> None:
        ended = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (0, "right\n"), ended.stderr

    run()
    (mark,), indices = tmp_path.rglob("*.sources"), list(tmp_path.rglob("*.nbi"))
    assert indices
    for index in indices:
        index.write_bytes(b"no index")
    mark.rename(mark.with_stem("other"))
    run()
    assert list(tmp_path.rglob("*.sources")) == [mark]
