"""Additive attention compared with other implementations, as `regard bench` does.

python benchmarks/additive.py --help
"""

import sys

from regard.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
