"""Additive attention inside DistributedDataParallel: two processes on one machine make the gradient that one makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import regard
from regard.nn import MultiHeadAttention

PART = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from test_additive_distributed import loss, make
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
layer, x, lengths = make()
wrapped = DistributedDataParallel(layer)
for _ in range(2):
    wrapped.zero_grad()
    loss(wrapped, x[rank::2], lengths[rank::2]).backward()
torch.save({name: p.grad for name, p in layer.named_parameters()}, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def make() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """A layer, a batch and its lengths, the same in every process."""
    torch.manual_seed(0)
    return (
        MultiHeadAttention(6, 2, score=["additive", "additive"]),
        torch.randn(6, 5, 6),
        torch.tensor([5, 3, 1, 4, 2, 5]),
    )


def loss(layer: torch.nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return layer(x, mask=regard.padding(lengths=lengths)).square().mean()


def test_two_processes_make_the_gradient_of_one(tmp_path: Path) -> None:
    parts = [
        subprocess.Popen(
            [sys.executable, "-c", PART, str(rank), str(tmp_path)],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for part in parts:
        _, said = part.communicate(timeout=120)
        assert part.returncode == 0, said
    layer, x, lengths = make()
    loss(layer, x, lengths).backward()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, msg=lambda m, name=name: f"{name}: {m}")
