"""Options that several commands share, and checks of the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Context, Option

__all__ = [
    "Beam",
    "LengthPenalty",
    "NBest",
    "RunDirectory",
    "as_typed",
    "at_least_1",
    "checked_options",
    "it_or_them",
    "on_command_line",
]


# Not Option(min=1): that would put "x>=1" into every line of the help
def at_least_1(value: int | None) -> int | None:
    """Return the number, or raise `BadParameter` if it is below 1."""
    if value is not None and value < 1:
        raise BadParameter(f"expected a number of at least 1, got {value}.")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadParameter(f"expected a finite number, got {value}.")
    return value


RunDirectory = Annotated[Path, Argument(metavar="RUN", help="the run directory of a model")]
Beam = Annotated[int, Option(metavar="N", callback=at_least_1, help="width of the beam search; 1 is greedy search")]
NBest = Annotated[int, Option(metavar="N", callback=at_least_1, help="number of answers, best first; at most --beam")]
LengthPenalty = Annotated[
    float,
    Option(
        metavar="X", callback=_finite, help="divide log p by the length raised to this power; 1 favours long answers"
    ),
]


def on_command_line(context: Context) -> set[str]:
    """Return the names of the parameters that were given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def checked_options(context: Context, target: str, allowed: set[str]) -> dict[str, Any]:
    """Return the parameters of a command by name; wrong usage if an option was given that is not ``allowed``."""
    arguments = {parameter.name for parameter in context.command.params if parameter.param_type_name == "argument"}
    wrong = on_command_line(context) - arguments - allowed
    if wrong:
        context.fail(f"{as_typed(context, wrong)}: no effect on {target}; remove {it_or_them(wrong)}")
    return dict(context.params)


def it_or_them(things: Sized) -> str:
    """Return the pronoun for one thing or for several."""
    return "it" if len(things) == 1 else "them"


def as_typed(context: Context, names: Iterable[str]) -> str:
    """Return parameters as they are typed: ``--lr, DATA``."""
    spelling = {
        parameter.name: parameter.opts[0] if parameter.param_type_name == "option" else (parameter.name or "").upper()
        for parameter in context.command.params
    }
    return ", ".join(sorted(spelling[name] for name in names))
