"""Additive attention against its peers: `python benchmarks/additive.py --help`."""

from regard.bench.additive import main

if __name__ == "__main__":
    main()
