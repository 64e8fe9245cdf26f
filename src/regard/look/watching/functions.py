"""The functions that a watch recognises, and the readers of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import UnsupportedError
from regard.functional.attention import attend
from regard.functional.axes import broadcast, four_axes
from regard.functional.mask import Mask
from regard.functional.masks import causal, dense
from regard.functional.reporting import report_attention
from regard.functional.scores import ScaledDot, Score
from regard.look.watching import huggingface, torch_multi_head
from regard.look.watching.attention_call import AttentionCall

__all__ = ["FUNCTIONS", "Function", "names"]


class Function(NamedTuple):
    """A function that attends: ``read`` takes its arguments; ``name`` is its public name, if it has one."""

    read: Callable[..., AttentionCall]
    name: str | None = None


def read_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """Read `F.scaled_dot_product_attention`. Of three axes the first is the batch, with one head."""
    if query.is_nested or key.is_nested:
        raise UnsupportedError("attention over nested tensors cannot be watched: pad them, and mask the padding")
    rank = query.ndim
    mask = causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None:
        attn_mask = attn_mask.detach()[(None,) * (rank - attn_mask.ndim)]
    if rank == 2:
        query, key = query[None], key[None]
        attn_mask = None if attn_mask is None else attn_mask[None]
    if rank < 4:
        query, key = query.unsqueeze(1), key.unsqueeze(1)
        attn_mask = None if attn_mask is None else attn_mask.unsqueeze(1)
    lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])  # type: ignore[no-untyped-call]
    query, key = (four_axes(x.expand(*lead, *x.shape[-3:])) for x in (query, key))
    if attn_mask is not None and attn_mask.ndim > 4:
        attn_mask = four_axes(attn_mask.expand(*lead, *attn_mask.shape[-3:]))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = dense(attn_mask)
    elif attn_mask is not None:
        bias = attn_mask.to(query.dtype)
    call = AttentionCall(query.detach(), key.detach(), ScaledDot(scale), mask, bias)
    return huggingface.within(torch_multi_head.within(call))


def read_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    mask: Mask | Tensor | None,
    bias: Tensor | None,
    heads: Tensor | None = None,
    **_: Any,
) -> AttentionCall:
    """Read `regard.attention`. Of three axes the first is the heads; ``heads`` are their numbers within a layer."""
    shape = (*query.shape[:-1], key.shape[-2])
    mask = dense(mask) if isinstance(mask, Tensor) else mask
    mask = None if mask is None else mask.in_four_axes(shape, query.device)
    bias = None if bias is None else broadcast(bias.detach(), shape).to(query.dtype)
    call = AttentionCall(four_axes(query.detach()), four_axes(key.detach()), score, mask, bias)
    return call if heads is None else replace(call, heads=tuple(heads.tolist()))


def read_report(query: Tensor, key: Tensor, *, score: Score, mask: Mask | None, layer: nn.Module) -> AttentionCall:
    """Read a layer's report of an attention that is part of a larger operation."""
    return replace(read_attention(query, key, key, score=score, mask=mask, bias=None), cross=True)


FUNCTIONS: dict[Any, Function] = {
    functional.scaled_dot_product_attention: Function(read_sdpa, "F.scaled_dot_product_attention"),
    torch_multi_head.report_scores: Function(torch_multi_head.read, "F.multi_head_attention_forward"),
    attend: Function(read_attention, "regard.attention"),
    report_attention: Function(read_report),
    huggingface.report_call: Function(huggingface.read, "the attention functions of transformers"),
}


def names() -> str:
    """List the functions as an error message names them."""
    known = [function.name for function in FUNCTIONS.values() if function.name]
    return f"{', '.join(known[:-1])} and {known[-1]}"
