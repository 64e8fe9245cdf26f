"""Communication between processes that train one model together, started by `torchrun` on one machine or several.

A single process is number 0 of 1, at no cost. `all_sum`, `all_max`, `all_gather` and `from_rank_zero` are collective
calls: every process must make them, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

__all__ = ["all_gather", "all_max", "all_sum", "from_rank_zero", "process_group", "rank", "world_size"]

T = TypeVar("T")


@contextmanager
def process_group() -> Iterator[None]:
    """Connect the processes that `torchrun` started, if it did: by gloo on CPUs, by NCCL on GPUs."""
    if not distributed.is_torchelastic_launched():
        yield
        return
    distributed.init_process_group()
    try:
        yield
    finally:
        distributed.destroy_process_group()


def rank() -> int:
    """Return the number of this process, from 0; number 0 alone prints and writes."""
    return distributed.get_rank() if _is_connected() else 0


def world_size() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if _is_connected() else 1


def all_sum(*numbers: float) -> list[float]:
    """Return the sum of each number over the processes.

    >>> all_sum(2.0, 3)
    [2.0, 3]
    """
    return _all_reduce(numbers, distributed.ReduceOp.SUM)


def all_max(*numbers: float) -> list[float]:
    """Return the maximum of each number over the processes.

    >>> all_max(2.0, 3)
    [2.0, 3]
    """
    return _all_reduce(numbers, distributed.ReduceOp.MAX)


def from_rank_zero(make: Callable[[], T]) -> T:
    """Call ``make`` in process 0 alone, and return its result, or raise its exception, in every process.

    >>> from_rank_zero(lambda: "runs/english")
    'runs/english'
    """
    if world_size() == 1:
        return make()
    made: list[Any] = [None, None]
    if rank() == 0:
        try:
            made[0] = make()
        except Exception as error:
            made[1] = error
    distributed.broadcast_object_list(made, device=torch.device("cpu"))
    if made[1] is not None:
        raise made[1]
    return cast(T, made[0])


def all_gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensor of every process; all have the same shape and are on the CPU.

    >>> all_gather(torch.tensor([5]))
    [tensor([5])]
    """
    if world_size() == 1:
        return [tensor]
    tensors = [torch.empty_like(tensor) for _ in range(world_size())]
    distributed.all_gather(tensors, tensor)
    return tensors


def _is_connected() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _all_reduce(numbers: tuple[float, ...], operation: distributed.ReduceOp.RedOpType) -> list[float]:
    if world_size() == 1:
        return list(numbers)
    together = torch.tensor(numbers, dtype=torch.float64)  # holds every count exactly
    distributed.all_reduce(together, operation)
    return [float(number) for number in together]
