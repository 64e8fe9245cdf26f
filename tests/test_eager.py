"""Tests of `is_eager` under everything that makes code run otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import regard
from regard._eager import accepts_cpu_loop, active_transform, is_eager, is_eager_on_cpu


def compiled(ask: Callable[[Tensor], None], x: Tensor) -> None:
    def double(x: Tensor) -> Tensor:
        ask(x)
        return x * 2

    torch.compile(double, backend="eager", fullgraph=True)(x)


def traced(ask: Callable[[Tensor], None], x: Tensor) -> None:
    torch.jit.trace(lambda x: (ask(x), x * 2)[1], (x,), check_trace=False)


def vmapped(ask: Callable[[Tensor], None], x: Tensor) -> None:
    torch.func.vmap(lambda x: (ask(x), x * 2)[1])(x)


def differentiated(ask: Callable[[Tensor], None], x: Tensor) -> None:
    torch.func.grad(lambda x: (ask(x), x.sum())[1])(x)


def forward_mode(ask: Callable[[Tensor], None], x: Tensor) -> None:
    with forward_ad.dual_level():
        ask(x)


def fake(ask: Callable[[Tensor], None], x: Tensor) -> None:
    with FakeTensorMode() as mode:
        ask(mode.from_tensor(x))


def plain(ask: Callable[[Tensor], None], x: Tensor) -> None:
    ask(x)


WAYS = {  # is_eager, is_eager_on_cpu, accepts_cpu_loop, active_transform
    plain: (True, True, True, None),
    compiled: (False, False, False, None),
    vmapped: (False, False, False, "vmap"),
    differentiated: (False, False, False, "torch.func"),
    forward_mode: (True, True, False, "forward-mode"),
    fake: (False, False, False, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_running(way: Callable[[Callable[[Tensor], None], Tensor], None]) -> None:
    answers: list[object] = []

    def ask(x: Tensor) -> None:
        answers.extend((is_eager(x), is_eager_on_cpu(x), accepts_cpu_loop(x), active_transform()))

    way(ask, torch.randn(3, 5))
    assert tuple(answers) == WAYS[way]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_tracing_is_not_eager() -> None:
    answers: list[object] = []
    traced(lambda x: answers.append(is_eager(x) or is_eager_on_cpu(x) or accepts_cpu_loop(x)), torch.randn(3))
    assert answers == [False]


def test_only_plain_tensors_of_two_types_go_into_loops() -> None:
    class Other(Tensor):
        pass

    assert accepts_cpu_loop(torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    assert not accepts_cpu_loop(torch.zeros(3, dtype=torch.bfloat16))
    assert not is_eager_on_cpu(torch.zeros(3), torch.zeros(3).as_subclass(Other))
    assert not is_eager_on_cpu(torch.zeros(3, device="meta"))


def test_no_other_module_reads_this_state() -> None:
    private = ("_functorch", "_current_level", "_get_tracing_state", "fake_tensor")
    sources = Path(regard.__file__).parent.rglob("*.py")
    readers = {path.name for path in sources if any(name in path.read_text(encoding="utf-8") for name in private)}
    assert readers == {"_eager.py"}
