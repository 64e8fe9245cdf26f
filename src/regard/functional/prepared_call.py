"""A call of `attention` ready for a kernel: its arguments checked and cast under autocast, and the kernel chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.functional.checks import autocast_dtype, check_arguments
from regard.functional.kernel_choice import choose
from regard.functional.scores import ScaledDot

if TYPE_CHECKING:
    from regard.functional.mask import Mask
    from regard.functional.observe import Observe
    from regard.functional.scores import Score

__all__ = ["SCALED_DOT", "PreparedCall", "prepare"]

SCALED_DOT = ScaledDot()  # the default
Result = TypeVar("Result")


class PreparedCall(NamedTuple):
    """The arguments of `attention`, checked, with the shape (..., Hq, Tq, Tk) of the scores and the kernel."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: Score
    mask: Mask | None
    bias: Tensor | None
    dropout_p: float
    observe: Observe | None
    shape: tuple[int, ...]
    impl: str  # as the caller requested it
    kernel: str
    is_cast: bool  # by autocast, which must not cast the tensors computed next

    def wants_gradient(self) -> bool:
        """Return whether a backward pass may follow."""
        if not torch.is_grad_enabled():
            return False
        tensors = (self.query, self.key, self.value, self.bias, *self.score.tensors())
        return any(tensor is not None and tensor.requires_grad for tensor in tensors)

    def run(self, compute: Callable[[PreparedCall], Result]) -> Result:
        """Return ``compute(self)`` in the dtype of the prepared tensors."""
        if not self.is_cast:
            return compute(self)
        with torch.autocast(self.query.device.type, enabled=False):
            return compute(self)


def prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    mask: Mask | Tensor | None,
    bias: Tensor | None,
    dropout_p: float,
    observe: Observe | None,
    impl: str,
) -> PreparedCall:
    """Check the arguments of `attention`, cast them and choose the kernel, or raise an error of `regard.errors`."""
    shape, mask = check_arguments(query, key, value, score, mask, bias, dropout_p, observe)
    lower = autocast_dtype(query)
    if lower is not None:
        query, key, value = query.to(lower), key.to(lower), value.to(lower)
        bias = None if bias is None else bias.to(lower)
    kernel = choose(impl, score, query, key, dropout_p)
    return PreparedCall(
        query, key, value, score, mask, bias, dropout_p, observe, shape, impl, kernel, lower is not None
    )
