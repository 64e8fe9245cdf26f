"""Dot-product attention by torch's own fused kernels, which do not build the matrix of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.errors import UnsupportedError

__all__ = ["attend"]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
    *,
    scale: float,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention with ``scale`` * q . k, of four axes; bias and allowed broadcast to (L, Hq, Tq, Tk).

    Each query must be allowed one key or more, as kernels differ on empty rows.
    """
    mask = bias if allowed is None else allowed if bias is None else bias.masked_fill(~allowed, -torch.inf)
    features = value.shape[-1]
    if query.shape[-1] != features:
        query, key, value = _one_size(query, key, value)
    grouped = False
    if query.shape[1] != key.shape[1]:  # by a branch, as the comparison is no plain bool where sizes are symbols
        grouped = True
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout_p, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    if output.requires_grad and not torch.compiler.is_compiling():
        _refuse_second_order(output)
    return output if output.shape[-1] == features else output[..., :features]


def _one_size(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros up to one feature size, which the fused kernels ask for; else torch falls back to the whole matrix."""
    missing = query.shape[-1] - value.shape[-1]
    if missing > 0:
        return query, key, pad(value, (0, missing))
    return pad(query, (0, -missing)), pad(key, (0, -missing)), value


class _FirstOrderOnly(torch.autograd.Function):
    """The identity, whose gradient says what to do."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise UnsupportedError(
            'attention by impl="sdpa" has no second derivative (torch\'s fused kernels have none): use impl="reference"'
        )


def _refuse_second_order(output: Tensor) -> None:
    node = output.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_first_order_only)


def _first_order_only(gradients: tuple[Tensor, ...], _: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    if not torch.is_grad_enabled():  # a backward pass that nobody will differentiate
        return None
    return tuple(None if gradient is None else _FirstOrderOnly.apply(gradient) for gradient in gradients)  # type: ignore[no-untyped-call]
