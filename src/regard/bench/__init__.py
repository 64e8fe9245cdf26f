"""Measurements against other implementations, in one process: `python -m regard.bench.additive`."""
