"""Additive attention against its peers: `python benchmarks/additive.py --help`, the same as `regard bench`."""

import sys

from regard.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
