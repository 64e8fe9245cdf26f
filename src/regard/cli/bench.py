"""`regard bench`: what additive attention costs, here and by other means."""

from __future__ import annotations

from typing import Annotated

from typer import Option


def bench(
    seconds: Annotated[float, Option(metavar="X", min=0.1, help="for each measurement, about")] = 5.0,
    threads: Annotated[int | None, Option(metavar="N", min=1, help="left out: as many as torch takes")] = None,
    longest: Annotated[int, Option(metavar="T", min=1, help="the longest sequence of the second table")] = 16384,
) -> None:
    """Measure additive attention against its peers.

    Prints time, peak memory and error against float64 as tables; a peer whose values are wrong has no time.
    """
    from regard.bench.additive import main

    main(seconds, threads, longest)
