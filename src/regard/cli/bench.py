"""`regard bench`: the cost of additive attention, beside that of other implementations."""

from __future__ import annotations

from typing import Annotated

from typer import Option


def bench(
    seconds: Annotated[float, Option(metavar="X", min=0.1, help="approximate time per measurement")] = 5.0,
    threads: Annotated[int | None, Option(metavar="N", min=1, help="threads to use  [default: torch's number]")] = None,
    longest: Annotated[int, Option(metavar="T", min=1, help="longest sequence in the second table")] = 16384,
) -> None:
    """Measure additive attention against other implementations.

    Prints tables of time, peak memory and error against float64; an implementation with wrong values is not timed.
    """
    from regard.bench.additive import main

    main(seconds, threads, longest)
