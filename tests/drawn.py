"""Calls of attention for the laws to hold on: shapes, layouts, scores, masks and biases, drawn by Hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard import Additive, Dot, General, Mask, ScaledDot
from regard.functional import Score

# B, Hkv, group (Hq = group * Hkv), Tq, Tk, E, Ev: all different primes, where no swapped axis can hide; then the edges.
SHAPES = [
    (2, 3, 1, 5, 7, 11, 13),
    (3, 2, 1, 7, 5, 13, 11),
    (2, 3, 2, 7, 5, 11, 13),
    (3, 1, 5, 2, 11, 7, 7),
    (1, 2, 3, 1, 7, 5, 5),
    (5, 2, 1, 3, 1, 7, 7),
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 1, 17, 19, 5, 5),
]
# For Triton, interpreted.
FEW = [(2, 1, 1, 3, 7, 5, 2), (2, 1, 3, 2, 5, 3, 7), (2, 1, 1, 1, 3, 2, 2), (2, 1, 1, 37, 17, 3, 2)]
HAS_TRITON = find_spec("triton") is not None and not torch.cuda.is_available()
EMPTY = [(2, 3, 1, 0, 5, 7, 7), (2, 3, 1, 5, 0, 7, 7), (2, 3, 2, 0, 0, 7, 5), (0, 3, 1, 2, 5, 7, 7)]
SCORES = ["dot", "scaled_dot", "scale", "general", "general_heads", "additive", "additive_heads"]
MASKS = ["none", "causal", "from_start", "window", "keep", "lengths", "left", "dense", "heads", "nothing", "raw", "all"]
BIASES = ["none", "none", "full", "heads", "-inf"]
EVERYTHING: dict[str, Any] = {  # that an Observe can ask for
    "weights": True,
    "rows": [0, -1],
    "entropy": True,
    "logsumexp": True,
    "received": True,
    "top": 3,
    "position": True,
    "max": True,
    "distance": True,
    "offsets": [0, -1, 2],
}
LAYOUTS = ["contiguous", "transposed", "strided", "unaligned", "expanded"]


@dataclass(frozen=True, repr=False)
class Call:
    """The arguments of one call of attention; `inputs` are what a gradient is taken of."""

    query: Tensor
    key: Tensor
    value: Tensor
    score: str
    weight: Tensor | None
    mask: Mask | Tensor | None
    bias: Tensor | None
    impl: str

    def __repr__(self) -> str:
        mask = f"tensor {tuple(self.mask.shape)}" if isinstance(self.mask, Tensor) else repr(self.mask)
        bias = None if self.bias is None else tuple(self.bias.shape)
        sizes = f"query {tuple(self.query.shape)} key {tuple(self.key.shape)} value {tuple(self.value.shape)}"
        return f"<{self.impl} {self.score}: {sizes}, strides {self.key.stride()}, mask {mask}, bias {bias}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # what Hypothesis shows of a failing example

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.query.shape[:-1], self.key.shape[-2])

    @property
    def inputs(self) -> list[Tensor]:
        return [x for x in (self.query, self.key, self.value, self.weight, self.bias) if x is not None]

    @property
    def allowed(self) -> Tensor:
        """(..., Hq, Tq, Tk): what mask and bias leave."""
        mask = regard.dense(self.mask) if isinstance(self.mask, Tensor) else self.mask or Mask()
        allowed = mask.allowed(self.shape)
        return allowed if self.bias is None else allowed & (self.bias != -torch.inf)

    def run(self, **more: Any) -> Any:
        keywords = {"score": make_score(self.score, self.weight), "mask": self.mask, "bias": self.bias}
        return regard.attention(self.query, self.key, self.value, **(keywords | {"impl": self.impl} | more))

    def to(self, dtype: torch.dtype) -> Call:
        """The same numbers in another dtype, as leaves."""
        names = ("query", "key", "value", "weight", "bias")
        return replace(self, **{n: None if (x := getattr(self, n)) is None else x.to(dtype) for n in names})

    def leaves(self) -> Call:
        """The same call on tensors of its own that ask for gradients, in the same layout."""
        names = ("query", "key", "value", "weight", "bias")
        return replace(
            self, **{n: None if (x := getattr(self, n)) is None else x.detach().requires_grad_() for n in names}
        )


def make_score(name: str, weight: Tensor | None) -> Score:
    if name == "dot":
        return Dot()
    if name in ("scaled_dot", "scale"):
        return ScaledDot() if name == "scaled_dot" else ScaledDot(scale=0.3)
    assert weight is not None
    return General(weight) if name.startswith("general") else Additive(weight)


def randn(generator: torch.Generator, *shape: int, layout: str = "contiguous") -> Tensor:
    """Random numbers in a layout; what lies between the elements is NaN."""
    if layout == "expanded" and shape[0] > 1:
        return torch.randn(1, *shape[1:], generator=generator).expand(*shape)
    plain = torch.randn(*shape, generator=generator)
    if layout == "transposed" and len(shape) > 2:
        return plain.transpose(-2, -3).contiguous().transpose(-2, -3)
    if layout == "strided":
        wide = torch.full((*shape[:-1], 2 * shape[-1]), torch.nan)
        wide[..., ::2] = plain
        return wide[..., ::2]
    if layout == "unaligned":
        flat = torch.full((plain.numel() + 1,), torch.nan)
        flat[1:] = plain.flatten()
        return flat[1:].view(shape)
    return plain


def make_mask(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Mask | Tensor | None:
    queries, keys, batch = shape[-2], shape[-1], shape[0]

    def random(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator) > 0.4

    if name in ("keep", "lengths", "left", "all") and len(shape) < 3:
        name = "dense"
    if name == "none":
        return None
    if name == "raw":
        return random(*[size if k % 2 else 1 for k, size in enumerate(reversed(shape))][::-1])
    lengths = torch.randint(0, keys + 1, (batch,), generator=generator)
    left = torch.arange(keys) >= lengths[:, None]
    masks = {
        "causal": lambda: regard.causal(),
        "from_start": lambda: regard.causal(offset=0),
        "window": lambda: regard.window(2) & regard.causal(),
        "keep": lambda: regard.padding(random(batch, keys)),
        "lengths": lambda: regard.padding(lengths=lengths),
        "left": lambda: regard.causal() & regard.padding(left),
        "dense": lambda: regard.dense(random(queries, keys)),
        "heads": lambda: regard.dense(random(*shape[:-2], 1, 1).expand(shape)),
        "nothing": lambda: regard.dense(torch.zeros(1, 1, dtype=torch.bool).expand(queries, keys)),
        "all": lambda: regard.padding(random(batch, keys)) & regard.window(3) & regard.dense(random(queries, keys)),
    }
    return masks[name]()


def make_call(
    shape: tuple[int, ...] = SHAPES[0],
    score: str = "scaled_dot",
    mask: str = "none",
    bias: str = "none",
    layout: str = "contiguous",
    rank: int = 4,
    impl: str = "auto",
    seed: int = 0,
) -> Call:
    """One call, all of it random numbers from the seed."""
    generator = torch.Generator().manual_seed(seed)
    B, kv_heads, group, Tq, Tk, E, Ev = shape
    heads = group * kv_heads
    lead = {
        2: ((), ()),
        3: ((heads,), (kv_heads,)),
        4: ((B, heads), (B, kv_heads)),
        5: ((B, 2, heads), (B, 2, kv_heads)),
    }
    lead_q, lead_k = lead[rank]
    per_head = score.endswith("heads") and rank > 2
    key_features = E + 2 if score.startswith("general") else E
    weight = None
    if score.startswith("general"):
        weight = randn(generator, *((heads,) if per_head else ()), E, key_features) / E**0.5
    elif score.startswith("additive"):
        weight = randn(generator, *((heads,) if per_head else ()), E)
    scores = (*lead_q, Tq, Tk)
    added = None
    if bias != "none":
        added = randn(generator, *(scores if bias != "heads" else (*[1] * (rank - 3), *scores[-3:-2], 1, Tk)[-rank:]))
        if bias == "-inf":
            added = added.masked_fill(torch.rand(added.shape, generator=generator) > 0.7, -torch.inf)
    return Call(
        randn(generator, *lead_q, Tq, E, layout=layout),
        randn(generator, *lead_k, Tk, key_features, layout=layout),
        randn(generator, *lead_k, Tk, Ev, layout=layout),
        score,
        weight,
        make_mask(mask, scores, generator),
        added,
        impl,
    )


@st.composite
def calls(
    draw: st.DrawFn,
    *,
    shapes: list[tuple[int, ...]] = SHAPES,
    scores: list[str] = SCORES,
    masks: list[str] = MASKS,
    biases: list[str] = BIASES,
    ranks: tuple[int, ...] = (4, 4, 4, 3, 2, 5),
) -> Call:
    score = draw(st.sampled_from(scores))
    fast = ["cpu", *["triton"] * HAS_TRITON] if score.startswith("additive") else ["sdpa"]
    impl = draw(st.sampled_from(["reference", *fast]))
    return make_call(
        draw(st.sampled_from(FEW if impl == "triton" and shapes is SHAPES else shapes)),
        score,
        draw(st.sampled_from(masks)),
        draw(st.sampled_from(biases)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(ranks)),
        impl,
        draw(st.integers(0, 2**20)),
    )


def gradients(call: Call, output_gradient: Tensor | None = None, **more: Any) -> tuple[Tensor, list[Tensor]]:
    """Output, and the gradients of sum(output * output_gradient) for all inputs of the call."""
    call = call.leaves()
    output = call.run(**more)
    if isinstance(output, tuple):
        output = output[0]
    if output_gradient is None:
        output_gradient = fixed_like(output)
    return output.detach(), list(
        torch.autograd.grad(output, call.inputs, output_gradient.to(output.dtype), materialize_grads=True)
    )


def fixed_like(tensor: Tensor) -> Tensor:
    """Random numbers that depend on the shape alone."""
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(7)).to(tensor.dtype)
