"""What several commands ask for alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Context, Option

__all__ = ["Beam", "LengthPenalty", "NBest", "RunDirectory", "at_least_1", "given", "spelt"]


# Not Option(min=1): that would put "x>=1" into every line of the help
def at_least_1(value: int | None) -> int | None:
    """The number as it was given, or none."""
    if value is not None and value < 1:
        raise BadParameter(f"expected a number of at least 1, got {value}.")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadParameter(f"expected a number, got {value}.")
    return value


RunDirectory = Annotated[Path, Argument(metavar="RUN", help="the run directory of a model")]
Beam = Annotated[int, Option(metavar="N", callback=at_least_1, help="hypotheses to follow; 1 is greedy")]
NBest = Annotated[int, Option(metavar="N", callback=at_least_1, help="answers to give, best first; up to the beam")]
LengthPenalty = Annotated[
    float,
    Option(metavar="X", callback=_finite, help="divide log p by the length to this power; 1 favours long answers"),
]


def given(context: Context, target: str, allowed: set[str]) -> dict[str, Any]:
    """The options of a command by name, once those given on the command line are known to have an effect."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if (
            source is not None
            and source.name == "COMMANDLINE"
            and name not in {*allowed, "run", "file", "texts", "out"}
        ):
            context.fail(f"{spelt(name)}: has no effect with {target}; leave it away")
    return dict(context.params)


def spelt(name: str) -> str:
    """An option as it is typed."""
    return {"data": "DATA", "as_json": "--json"}.get(name, f"--{name.replace('_', '-')}")
