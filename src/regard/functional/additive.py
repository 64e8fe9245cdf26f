"""Additive attention by the operators of `regard._kernels.ops`: conversion of their arguments and results.

No tensor of the size of the scores is made here, and inputs need not be made safe: these kernels never read masked
keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard._kernels import ops
from regard.functional.axes import broadcast, four_axes
from regard.functional.mask import Mask
from regard.functional.observe import Observation, Observe, observation_of, request_of

if TYPE_CHECKING:
    from regard.functional.prepared_call import PreparedCall

__all__ = ["attend", "observe"]


def attend(call: PreparedCall) -> tuple[Tensor, Observation | None]:
    """Return the output of a call for the "cpu" or "triton" kernel, and the statistics that it requests."""
    inputs = _inputs(call)
    seed = torch.randint(2**62, (), dtype=torch.int64) if call.dropout_p else None
    save = call.kernel == "cpu" and not call.dropout_p and _worth_saving(call)
    output, _ = ops.additive(*inputs, seed, call.dropout_p, save, call.kernel)
    output = output.view(*call.query.shape[:-1], call.value.shape[-1])
    if call.observe is None:
        return output, None
    with torch.no_grad():
        return output, _statistics(call, call.observe, inputs)


def observe(call: PreparedCall, what: Observe) -> Observation:
    """Return the statistics alone."""
    return _statistics(call, what, _inputs(call))


def _inputs(call: PreparedCall) -> tuple[Tensor | int | None, ...]:
    """Return the tensors and the parts of the mask as the operators take them."""
    mask = (call.mask or Mask()).parts(call.shape, call.query.device)
    mask = mask._replace(table=broadcast(mask.table, call.shape))
    inputs = four_axes(call.query), four_axes(call.key), four_axes(call.value), call.score.terms(call.query).weight
    return (*inputs, broadcast(call.bias, call.shape), *mask)


def _worth_saving(call: PreparedCall) -> bool:
    """Return whether a backward pass may follow and the weights are no larger than query and output."""
    if torch.compiler.is_compiling() or call.key.shape[-2] > call.key.shape[-1] + call.value.shape[-1]:
        return False
    return call.wants_gradient()


def _statistics(call: PreparedCall, what: Observe, inputs: tuple[Tensor | int | None, ...]) -> Observation:
    request = request_of(what, call.shape[-1])
    return observation_of(request, ops.statistics(*inputs, *request, call.kernel), call.shape)
