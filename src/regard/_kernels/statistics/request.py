"""A request for statistics of attention weights, and the size of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

__all__ = ["StatisticsRequest"]


class StatisticsRequest(NamedTuple):
    """A request for statistics by their names, which also order the answers."""

    names: Sequence[str]
    received: Tensor | None  # a factor for each query; None: 1
    rows: Sequence[int]
    top: int
    offsets: Sequence[int]

    def sizes(self, queries: int, keys: int) -> dict[str, tuple[int, ...]]:
        """Return the axes of each answer behind those of the heads."""
        special = {
            "weights": (queries, keys),
            "rows": (len(self.rows), keys),
            "received": (keys,),
            "top": (queries, self.top),
            "keys": (queries, self.top),
            "offsets": (queries, len(self.offsets)),
        }
        return {name: special.get(name, (queries,)) for name in self.names}
