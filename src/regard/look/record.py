"""The data that a watch records: the attentions of a model, layer by layer, and the inputs of its calls."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from regard._wording import counted_noun
from regard.errors import ArgumentError, UnsupportedError
from regard.functional import Mask, Observation, Observe
from regard.functional.scores import Score

__all__ = ["AttentionInputs", "Layer", "Record"]


class AttentionInputs(NamedTuple):
    """The inputs of one attention: query (B, Hq, Tq, E), key (B, Hkv, Tk, E), and the mask and bias of the scores.

    On the CPU, in float32 or wider; linear in the number of tokens, but for a mask or bias that is itself a matrix.
    """

    query: Tensor
    key: Tensor
    score: Score
    mask: Mask | None
    bias: Tensor | None


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """One attention of a model in one pass, or in the steps of a generation joined into one.

    - ``name``: the path of the module that attended, "model.layers.3.self_attn"
    - ``statistics``: the statistics that `watch` was to observe, on the CPU in float32 (keys as int32),
      (B, Hq, Tq, ...); distance and offsets are None in cross-attention, where they have no meaning
    - ``shape``: B, Hq, Tq, Tk of the scores
    - ``heads``: the model's own numbers of the Hq recorded heads
    - ``first_query``: the absolute position of the first query, above 0 where a cache was filled before the watch began
    - ``inputs``: query, key and masks, with ``watch(keep_inputs=True)``
    - ``cross``: whether the queries attend to another sequence than their own
    """

    name: str
    statistics: Observation
    shape: tuple[int, int, int, int]
    heads: tuple[int, ...]
    first_query: int = 0
    inputs: AttentionInputs | None = None
    cross: bool = False

    def __repr__(self) -> str:
        B, Hq, Tq, Tk = self.shape
        known = [name for name, value in vars(self.statistics).items() if value is not None]
        known += ["inputs"] if self.inputs is not None else []
        return f"<Layer {self.name!r}: B={B}, Hq={Hq}, Tq={Tq}, Tk={Tk}; {', '.join(known)}>"

    def observe(self, request: Observe) -> Observation:
        """Compute other statistics, (B, Hq, Tq, ...); UnsupportedError without ``watch(keep_inputs=True)``."""
        from regard.functional.observed import observed

        if self.inputs is None:
            raise UnsupportedError(
                f"{self.name}: expected recorded inputs, got none; call watch(model, keep_inputs=True)"
            )
        query, key, score, mask, bias = self.inputs
        return observed(query, key, request, score=score, mask=mask, bias=bias)


@dataclass(eq=False, repr=False)
class Record:
    """The layers of a watched model and the inputs of its calls.

    - ``layers``: in the order of the calls; complete when the watch ends
    - ``inputs``: input_ids, attention_mask, decoder_input_ids and the like, if the model's call had them
    - ``left_out``: the number of attentions that were not recorded because the memory limit was reached
    - ``observe``: the requested statistics
    """

    layers: list[Layer] = field(default_factory=list)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    left_out: int = 0
    observe: Observe | None = None

    def __repr__(self) -> str:
        heads = sum(len(layer.heads) for layer in self.layers)
        left_out = f", {counted_noun(self.left_out, 'attention')} left out" * (self.left_out > 0)
        counts = f"{counted_noun(len(self.layers), 'layer')}, {counted_noun(heads, 'head')}{left_out}"
        return f"<{type(self).__name__}: {counts}; inputs: {', '.join(self.inputs) or 'none'}>"

    def __getitem__(self, name: str) -> Layer:
        """Return the layer of this name, the first if there are several; raise ArgumentError if there is none."""
        found = next((layer for layer in self.layers if layer.name == name), None)
        if found is None:
            names = list(dict.fromkeys(layer.name for layer in self.layers))
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.0)
            some = f"such as {', '.join(near)}" if near else "but none was recorded"
            raise ArgumentError(f"expected the name of a recorded layer, {some}; got {name!r}")
        return found
