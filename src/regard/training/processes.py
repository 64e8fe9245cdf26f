"""Several processes that train one model together, on one machine or on many, as `torchrun` starts them.

A process alone is the first of one: nothing here costs it anything. What all must agree on goes through `total`,
`largest`, `from_first` and `gathered`, which every process calls, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

__all__ = ["count", "from_first", "gathered", "joined", "largest", "rank", "total"]

T = TypeVar("T")


@contextmanager
def joined() -> Iterator[None]:
    """Within, the processes that `torchrun` started know each other; they talk by gloo on CPUs and by NCCL on GPUs."""
    if not distributed.is_torchelastic_launched():
        yield
        return
    distributed.init_process_group()
    try:
        yield
    finally:
        distributed.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0; the first one speaks and writes."""
    return distributed.get_rank() if _several() else 0


def count() -> int:
    """How many processes there are."""
    return distributed.get_world_size() if _several() else 1


def total(*numbers: float) -> list[float]:
    """The sum of each number over the processes.

    >>> total(2.0, 3)
    [2.0, 3]
    """
    return _reduced(numbers, distributed.ReduceOp.SUM)


def largest(*numbers: float) -> list[float]:
    """The largest of each number over the processes.

    >>> largest(2.0, 3)
    [2.0, 3]
    """
    return _reduced(numbers, distributed.ReduceOp.MAX)


def from_first(make: Callable[[], T]) -> T:
    """What ``make`` gives in the first process, which alone calls it, for all of them; so with what it raises.

    >>> from_first(lambda: "runs/english")
    'runs/english'
    """
    if count() == 1:
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


def gathered(tensor: Tensor) -> list[Tensor]:
    """What each process has, in all of them; of one shape and on the CPU.

    >>> gathered(torch.tensor([5]))
    [tensor([5])]
    """
    if count() == 1:
        return [tensor]
    tensors = [torch.empty_like(tensor) for _ in range(count())]
    distributed.all_gather(tensors, tensor)
    return tensors


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _reduced(numbers: tuple[float, ...], operation: distributed.ReduceOp.RedOpType) -> list[float]:
    if count() == 1:
        return list(numbers)
    together = torch.tensor(numbers, dtype=torch.float64)  # which holds every count exactly
    distributed.all_reduce(together, operation)
    return [float(number) for number in together]
