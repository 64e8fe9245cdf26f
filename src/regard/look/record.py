"""What a watched model attended to, layer by layer, and what can be asked of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from regard.errors import ArgumentError, UnsupportedError
from regard.functional.masks import Mask
from regard.functional.observe import Observation, Observe
from regard.functional.scores import Score

if TYPE_CHECKING:
    from regard.look.reading.heads import Summary

__all__ = ["AttentionInputs", "Layer", "WatchRecord"]


class AttentionInputs(NamedTuple):
    """What one attention was called with: query (B, Hq, Tq, E), key (B, Hkv, Tk, E), and what broadcasts to the scores.

    On the CPU, in float32 or wider; linear in the number of tokens, but for a mask or bias that is itself a matrix.
    """

    query: Tensor
    key: Tensor
    score: Score
    mask: Mask | None
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention of a model in one pass, or in the steps of a generation joined into one.

    - ``name``: the path of the module that attended, "model.layers.3.self_attn"
    - ``statistics``: what was asked for, on the CPU in float32 (keys as int32), (B, Hq, Tq, ...); distance and offsets
      are None in cross-attention, where they mean nothing
    - ``shape``: B, Hq, Tq, Tk of the scores
    - ``heads``: the model's own numbers of the heads that were kept, Hq of them
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

    def observe(self, request: Observe) -> Observation:
        """Return other statistics, (B, Hq, Tq, ...); UnsupportedError without ``watch(keep_inputs=True)``."""
        from regard.functional.attention import observed

        if self.inputs is None:
            raise UnsupportedError(
                f"{self.name}: query and key were not kept: watch(model, keep_inputs=True) keeps them"
            )
        query, key, score, mask, bias = self.inputs
        return observed(query, key, request, score=score, mask=mask, bias=bias)


@dataclass(eq=False)
class WatchRecord:
    """What `watch` saw.

    - ``layers``: in the order of the calls; complete when the watch ends
    - ``inputs``: input_ids, attention_mask, decoder_input_ids and the like, of the model's own call where it had them
    - ``left_out``: how many attentions were not kept because the memory bound was reached
    - ``observe``: what was asked for
    """

    layers: list[Layer] = field(default_factory=list)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    left_out: int = 0
    observe: Observe | None = None

    def __getitem__(self, name: str) -> Layer:
        """The layer of this name, the first where there are several; ArgumentError where there is none."""
        found = next((layer for layer in self.layers if layer.name == name), None)
        if found is None:
            names = list(dict.fromkeys(layer.name for layer in self.layers))
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.0)
            raise ArgumentError(f"no layer {name!r} was seen, but {len(names)} others such as {', '.join(near) or '-'}")
        return found

    def summary(self, separators: Sequence[int] = ()) -> list[Summary]:
        """What each head looks at, in a few numbers; ``separators`` are token ids. See `regard.look.reading.heads`."""
        from regard.look.reading.heads import summary

        return summary(self, separators)

    def rollout(self, token: int, *, batch: int = 0) -> Tensor:
        """How much of each input token reaches this one through all layers. See `regard.look.reading.heads`."""
        from regard.look.reading.heads import rollout

        return rollout(self, token, batch=batch)

    def attention_on(self, queries: slice | Sequence[int], passages: Sequence[slice]) -> Any:
        """How much these queries looked at each passage. See `regard.look.reading.heads`."""
        from regard.look.reading.heads import read

        return read(self, queries, passages)

    def report(
        self,
        out: str | Path,
        *,
        tokenizer: Any = None,
        tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        title: str | None = None,
    ) -> Path:
        """Write a page to explore. See `regard.look.page.html`."""
        from regard.look.page.html import report

        return report(self, out, tokenizer=tokenizer, tokens=tokens, title=title)
