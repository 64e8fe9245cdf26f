"""The record of a watch, with its readings: summaries, flow between tokens, and the page to explore."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.look.page.html import report
from regard.look.reading.flow import attention_on, rollout
from regard.look.reading.heads import Summary, summary
from regard.look.record import Record

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from regard.look.page.tokens import Tokens

__all__ = ["WatchRecord"]


class WatchRecord(Record):
    """The record that `regard.watch` yields.

    - ``layers``: in the order of the calls; complete when the watch ends
    - ``inputs``: input_ids, attention_mask, decoder_input_ids and the like, if the model's call had them
    - ``left_out``: the number of attentions that were not recorded because the memory limit was reached
    - ``observe``: the requested statistics

    >>> WatchRecord()
    <WatchRecord: 0 layers, 0 heads; inputs: none>
    """

    def summary(self, separators: Sequence[int] = ()) -> list[Summary]:
        """Summarise each head in a few numbers; ``separators`` are token ids. See `regard.look.reading.heads`."""
        return summary(self, separators)

    def rollout(self, token: int, *, batch: int = 0) -> Float[Tensor, " T"]:
        """Compute the share of each input token in this one after all layers. See `regard.look.reading.flow`."""
        return rollout(self, token, batch=batch)

    def attention_on(
        self, queries: slice | Sequence[int], passages: Sequence[slice], *, batch: int = 0
    ) -> Float[Tensor, "layers heads passages"]:
        """Compute the share of these queries' weights on each passage. See `regard.look.reading.flow`."""
        return attention_on(self, queries, passages, batch=batch)

    def report(
        self, out: str | Path, *, tokenizer: Any = None, tokens: Tokens | None = None, title: str | None = None
    ) -> Path:
        """Write a page to explore. See `regard.look.page.html`."""
        return report(self, out, tokenizer=tokenizer, tokens=tokens, title=title)
