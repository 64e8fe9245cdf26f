"""torch.nn.MultiheadAttention by another name: its parameters and its call, computed by `regard.attention`."""

from __future__ import annotations

from typing import Any

from regard.errors import UnsupportedError

__all__ = ["take_torch_state"]


def take_torch_state(state: dict[str, Any], prefix: str) -> None:
    """Give what a state dict holds of torch.nn.MultiheadAttention the names that `MultiHeadAttention` has for it.

    A module calls it in ``_load_from_state_dict``, where the dict is a copy. Other dicts stay as they are.
    Raises UnsupportedError for ``bias_k`` and ``bias_v``, which `MultiHeadAttention` does not have.
    """
    if prefix + "bias_k" in state or prefix + "bias_v" in state:
        raise UnsupportedError(
            "the state has bias_k and bias_v (add_bias_kv=True), which MultiHeadAttention has not: load it into "
            "torch.nn.MultiheadAttention"
        )
    for kind in ("weight", "bias"):
        packed = state.pop(f"{prefix}in_proj_{kind}", None)
        for k, name in enumerate("qkv"):
            separate = state.pop(f"{prefix}{name}_proj_{kind}", None)
            part = separate if packed is None else packed.chunk(3)[k].clone()
            if part is not None:
                state[f"{prefix}{name}_proj.{kind}"] = part
