"""Beam search over any model that decodes step by step; a beam of one is greedy search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from regard._symbols import BOS, EOS, PAD, UNK
from regard.errors import ArgumentError
from regard.functional import Observe

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from regard.functional import Observation

__all__ = ["Decoder", "Hypothesis", "beam_search"]


class Decoder(Protocol):
    """What beam search asks of a model: K hypotheses of each of B sources move on by one symbol at a time."""

    def encode(self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"], /) -> Any:
        """Read the sources once."""

    def start(self, memory: Any, /) -> Any:
        """The state before the first step, of one hypothesis for each source."""

    def step(
        self, tokens: Int[Tensor, "B K"], state: Any, memory: Any, observe: Observe | None, /
    ) -> tuple[Float[Tensor, "B K V"], Any, Observation | None]:
        """Logits of the next symbols, the state after the step, and what was observed.

        The state that is given need not outlive the step. Weights are (B, 1, K, Tk) where there is one attention
        with one head, (B, layers, heads, K, Tk) where there are more.
        """

    def select(self, state: Any, parents: Int[Tensor, "B K"], /) -> Any:
        """The state of K hypotheses of each source, each of which goes on where ``parents`` says."""


@dataclass(frozen=True)
class Hypothesis:
    """One answer: its symbols without BOS and EOS, and what the model thinks of it.

    ``score`` is log p divided by (number of symbols, EOS included) to the power of the length penalty. ``finished``
    is False when the longest length allowed was reached before EOS. ``weights``, if asked for, are (steps, Tk), or
    (layers, heads, steps, Tk) of a model with several attentions; there is a step for each symbol and, of a finished
    hypothesis, a last one for EOS.
    """

    ids: tuple[int, ...]
    score: float
    log_prob: float
    finished: bool
    weights: Tensor | None = None


class _End(NamedTuple):
    step: int
    slot: int
    log_prob: float
    finished: bool


class _Step(NamedTuple):
    parents: list[list[int]]
    tokens: list[list[int]]
    weights: Float[Tensor, "B *heads K Tk"] | None  # K are the parents


@torch.inference_mode()
def beam_search(
    model: Decoder,
    source: Int[Tensor, "B Tk"],
    lengths: Int[Tensor, " B"],
    *,
    max_lengths: Int[Tensor, " B"],
    beam: int = 1,
    n_best: int = 1,
    length_penalty: float = 0.0,
    weights: bool = False,
) -> list[list[Hypothesis]]:
    """The ``n_best`` best hypotheses of each source, best first.

    score(y) = log p(y | x) / |y|^λ with |y| counting EOS and λ = ``length_penalty``. A hypothesis that ends keeps its
    place in the beam, so the search of a source is over when all its places are filled; with a beam of one this is
    greedy search. Equal scores go to the lower symbol. Sources have no influence on each other.

    ``max_lengths`` counts EOS too. Errors: `ArgumentError` unless 1 <= n_best <= beam and 1 <= max_lengths.
    """
    if not 1 <= n_best <= beam:
        raise ArgumentError(f"n_best: expected 1 to beam ({beam}), got {n_best}; widen the beam or ask for fewer")
    if len(max_lengths) != len(source) or not (max_lengths >= 1).all():
        raise ArgumentError(f"max_lengths: expected {len(source)} of at least 1, got {max_lengths.tolist()}")
    memory = model.encode(source, lengths)
    state = model.start(memory)
    batch, limits = len(source), max_lengths.tolist()
    steps: list[_Step] = []
    ends: list[list[_End]] = [[] for _ in range(batch)]
    tokens = torch.full((batch, 1), BOS, device=source.device)
    totals = torch.zeros(batch, 1, device=source.device)
    for step in range(max(limits, default=0)):
        logits, state, seen = model.step(tokens, state, memory, Observe(weights=True) if weights else None)
        totals, parents, tokens = _extend(totals, logits, beam)
        alive = _close(step, totals, tokens, limits, ends, beam)
        steps.append(_Step(parents.tolist(), tokens.tolist(), None if seen is None else _weights(seen)))
        totals = totals.masked_fill(~alive, -math.inf)
        if not alive.any():
            break
        if _moved(steps[-1].parents, logits.shape[1]):  # or a large cache would be copied for nothing
            state = model.select(state, parents)
    found = [[_trace(row, end, steps, int(lengths[row]), length_penalty) for end in ends[row]] for row in range(batch)]
    return [sorted(row, key=lambda answer: (-answer.score, answer.ids))[:n_best] for row in found]


def _extend(
    totals: Float[Tensor, "B K"], logits: Float[Tensor, "B K V"], beam: int
) -> tuple[Float[Tensor, "B beam"], Int[Tensor, "B beam"], Int[Tensor, "B beam"]]:
    """The best continuations of all hypotheses: their log probabilities, where they come from and their new symbols."""
    scores = logits.float().log_softmax(-1)
    scores[..., [PAD, UNK, BOS]] = -math.inf
    scores = (totals[..., None] + scores).flatten(1)
    # float64 has room to order equal float32 scores by symbol without ever reordering different ones
    order = 1 + torch.arange(scores.shape[1], device=scores.device, dtype=torch.float64) * 2.0**-50
    places = (scores.double() * order).topk(min(beam, scores.shape[1])).indices
    vocabulary = logits.shape[-1]
    return scores.gather(1, places), places // vocabulary, places % vocabulary


def _weights(seen: Observation) -> Float[Tensor, "B *heads K Tk"] | None:
    """The weights of a step, without the axis of a single head."""
    return seen.weights if seen.weights is None or seen.weights.dim() > 4 else seen.weights[:, 0]


def _moved(parents: list[list[int]], count: int) -> bool:
    """Whether any hypothesis goes on in another place than its parent's; in greedy search none ever does."""
    return any(row != list(range(count)) for row in parents)


def _close(step: int, totals: Tensor, tokens: Tensor, limits: list[int], ends: list[list[_End]], beam: int) -> Tensor:
    """Note the hypotheses that end at this step, and tell which go on."""
    alive = torch.zeros_like(tokens, dtype=torch.bool)
    for row, (row_totals, row_tokens) in enumerate(zip(totals.tolist(), tokens.tolist(), strict=True)):
        places = beam - len(ends[row])
        for slot in range(min(places, len(row_tokens))):
            if row_totals[slot] == -math.inf:
                break
            if row_tokens[slot] == EOS:
                ends[row].append(_End(step, slot, row_totals[slot], True))
            elif step + 1 >= limits[row]:
                ends[row].append(_End(step, slot, row_totals[slot], False))
            else:
                alive[row, slot] = True
    return alive


def _trace(row: int, end: _End, steps: list[_Step], length: int, length_penalty: float) -> Hypothesis:
    """Follow a hypothesis from its end back to its first symbol."""
    symbols, rows, slot = [], [], end.slot
    for step in reversed(steps[: end.step + 1]):
        symbols.append(step.tokens[row][slot])
        slot = step.parents[row][slot]
        if step.weights is not None:
            rows.append(step.weights[row, ..., slot, :length])
    symbols.reverse()
    return Hypothesis(
        ids=tuple(symbols[:-1] if end.finished else symbols),
        score=end.log_prob / len(symbols) ** length_penalty,
        log_prob=end.log_prob,
        finished=end.finished,
        weights=torch.stack(rows[::-1], -2) if rows else None,
    )
