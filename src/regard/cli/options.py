"""What several commands ask for alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

__all__ = ["Beam", "LengthPenalty", "NBest", "RunDirectory"]


# Not Option(min=1): that would put "x>=1" into every line of the help
def _at_least_1(value: int) -> int:
    if value < 1:
        raise BadParameter(f"expected a number of at least 1, got {value}.")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadParameter(f"expected a number, got {value}.")
    return value


RunDirectory = Annotated[Path, Argument(metavar="RUN", help="the run directory of a model")]
Beam = Annotated[int, Option(metavar="N", callback=_at_least_1, help="hypotheses to follow; 1 is greedy")]
NBest = Annotated[int, Option(metavar="N", callback=_at_least_1, help="answers to give, best first; up to the beam")]
LengthPenalty = Annotated[
    float,
    Option(metavar="X", callback=_finite, help="divide log p by the length to this power; 1 favours long answers"),
]
