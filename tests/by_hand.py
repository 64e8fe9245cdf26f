"""Attention written out in plain PyTorch for one head without a batch: what the layers' tests compare with."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def scores(q: Tensor, k: Tensor, name: str, weight: Tensor | None = None) -> Tensor:
    """(Tq, Tk) scores of q (Tq, E) and k (Tk, E)."""
    if name == "dot":
        return q @ k.T
    if name == "scaled_dot":
        return q @ k.T / math.sqrt(q.shape[-1])
    assert weight is not None
    if name == "general":
        return q @ weight @ k.T
    return torch.tanh(q[:, None] + k[None]) @ weight


def attend(
    q: Tensor, k: Tensor, v: Tensor, name: str, weight: Tensor | None = None, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output (Tq, Ev) and weights (Tq, Tk)."""
    table = scores(q, k, name, weight)
    if allowed is not None:
        table = table.masked_fill(~allowed, -math.inf)
    weights = torch.softmax(table, -1).nan_to_num(0.0)
    return weights @ v, weights
