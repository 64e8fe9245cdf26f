"""Beam search over models that decode step by step; a beam of one is greedy search."""

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
    """The interface of models for beam search: a step adds one token to K hypotheses of each of B sources."""

    def encode(self, source: Int[Tensor, "B Tk"], lengths: Int[Tensor, " B"], /) -> Any:
        """Encode the sources."""

    def start(self, memory: Any, /) -> Any:
        """Return the state before the first step, of one hypothesis for each source."""

    def step(
        self, tokens: Int[Tensor, "B K"], state: Any, memory: Any, observe: Observe | None, /
    ) -> tuple[Float[Tensor, "B K V"], Any, Observation | None]:
        """Return the logits of the next tokens, the state after the step, and the requested statistics.

        The step may change the given state. Weights are (B, 1, K, Tk) of one attention with one head, otherwise
        (B, layers, heads, K, Tk).
        """

    def select(self, state: Any, parents: Int[Tensor, "B K"], /) -> Any:
        """Return the state of K hypotheses of each source, each of which continues the one at ``parents``."""


@dataclass(frozen=True)
class Hypothesis:
    """A result of beam search: ids without BOS and EOS, and their probability under the model.

    ``score`` is log p divided by (number of tokens, EOS included) to the power of the length penalty. ``finished``
    is False if the maximum length was reached before EOS. ``weights``, if requested, are (steps, Tk), or
    (layers, heads, steps, Tk) of a model with several attentions; there is a step for each token and, if finished, a
    last one for EOS.

    >>> from regard.models import RecurrentConfig
    >>> model = RecurrentConfig(source_size=7, target_size=9, hidden_dim=6).build().eval()
    >>> found = beam_search(model, torch.tensor([[4, 5, 6]]), torch.tensor([3]), max_lengths=torch.tensor([5]))
    >>> [(len(hypothesis.ids) <= 5, hypothesis.score == hypothesis.log_prob) for hypothesis in found[0]]
    [(True, True)]
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
    """Return the ``n_best`` hypotheses of each source with the highest scores, best first.

    score(y) = log p(y | x) / |y|^λ with |y| counting EOS and λ = ``length_penalty``. A finished hypothesis occupies its
    slot in the beam, so the search for a source ends when all its slots are filled; with a beam of one this is greedy
    search. Of equal scores the lower id wins. Sources have no influence on each other.

    ``max_lengths`` counts EOS too. Errors: `ArgumentError` unless 1 <= n_best <= beam and 1 <= max_lengths.
    """
    if not 1 <= n_best <= beam:
        raise ArgumentError(
            f"n_best: expected a number from 1 to the beam width {beam}, got {n_best}; raise beam or lower n_best"
        )
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
        logits, state, statistics = model.step(tokens, state, memory, Observe(weights=True) if weights else None)
        totals, parents, tokens = _extend(totals, logits, beam)
        alive = _close(step, totals, tokens, limits, ends, beam)
        steps.append(_Step(parents.tolist(), tokens.tolist(), None if statistics is None else _weights(statistics)))
        totals = totals.masked_fill(~alive, -math.inf)
        if not alive.any():
            break
        if _moved(steps[-1].parents, logits.shape[1]):  # otherwise a large cache need not be copied
            state = model.select(state, parents)
    found = [[_trace(row, end, steps, int(lengths[row]), length_penalty) for end in ends[row]] for row in range(batch)]
    return [sorted(row, key=lambda answer: (-answer.score, answer.ids))[:n_best] for row in found]


def _extend(
    totals: Float[Tensor, "B K"], logits: Float[Tensor, "B K V"], beam: int
) -> tuple[Float[Tensor, "B beam"], Int[Tensor, "B beam"], Int[Tensor, "B beam"]]:
    """Return the best continuations of all hypotheses: their log probabilities, parents and new tokens."""
    scores = logits.float().log_softmax(-1)
    scores[..., [PAD, UNK, BOS]] = -math.inf
    scores = (totals[..., None] + scores).flatten(1)
    # float64 has the precision to order equal float32 scores by id without ever reordering different ones
    order = 1 + torch.arange(scores.shape[1], device=scores.device, dtype=torch.float64) * 2.0**-50
    places = (scores.double() * order).topk(min(beam, scores.shape[1])).indices
    vocabulary = logits.shape[-1]
    return scores.gather(1, places), places // vocabulary, places % vocabulary


def _weights(statistics: Observation) -> Float[Tensor, "B *heads K Tk"] | None:
    """Return the weights of a step, without the axis of a single head."""
    weights = statistics.weights
    return weights if weights is None or weights.dim() > 4 else weights[:, 0]


def _moved(parents: list[list[int]], count: int) -> bool:
    """Return whether any hypothesis has a different slot from its parent, which never happens in greedy search."""
    return any(row != list(range(count)) for row in parents)


def _close(step: int, totals: Tensor, tokens: Tensor, limits: list[int], ends: list[list[_End]], beam: int) -> Tensor:
    """Record the hypotheses that end at this step; return a mask of the others."""
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
    """Follow a hypothesis from its end back to its first token."""
    ids, rows, slot = [], [], end.slot
    for step in reversed(steps[: end.step + 1]):
        ids.append(step.tokens[row][slot])
        slot = step.parents[row][slot]
        if step.weights is not None:
            rows.append(step.weights[row, ..., slot, :length])
    ids.reverse()
    return Hypothesis(
        ids=tuple(ids[:-1] if end.finished else ids),
        score=end.log_prob / len(ids) ** length_penalty,
        log_prob=end.log_prob,
        finished=end.finished,
        weights=torch.stack(rows[::-1], -2) if rows else None,
    )
