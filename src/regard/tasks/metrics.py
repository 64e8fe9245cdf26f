"""How right a model's outputs are, against one reference each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regard._wording import counted_noun
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table
    from sacrebleu.metrics.base import Metric

__all__ = ["Scores", "edit_distance", "score_labels", "score_tags", "score_texts", "score_units", "table"]

Rows: TypeAlias = NDArray[np.int64]

_SAMPLES = 1000
_SHOWN = {  # how a value is shown: times what, and its unit
    "wer_percent": (1, " %"),
    "bleu": (1, ""),
    "chrf": (1, ""),
}
_SHARE = (100, " %")


@dataclass(frozen=True)
class Scores:
    """What a set of outputs scored: values by name, and by ``rank`` which of two models is the better one.

    ``values`` are shares from 0 to 1, but for ``wer_percent``, ``bleu`` and ``chrf`` (0 to 100); ``labels`` are what
    they are called in print. The better of two has the higher ``rank``. ``intervals`` hold the bounds of 95 %
    confidence of a value, from 1,000 bootstrap samples of the outputs (Efron 1979, percentiles), where they were asked
    for; ``signature`` is what to quote beside BLEU and chrF (Post 2018).

    >>> scores = score_units([["K", "AE", "T"], ["D"]], [["K", "AE", "T"], ["D", "AO", "G"]])
    >>> scores.as_dict()
    {'exact': 0.5, 'wer_percent': 50.0, 'error_rate': 0.3333333333333333, 'count': 2}
    >>> print(scores)
    exact 50.00 %, WER 50.00 %, PER 33.33 % (2 pairs)
    """

    values: dict[str, float]
    rank: tuple[float, ...]
    count: int
    labels: dict[str, str]
    thing: str = "pair"
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    signature: str = ""

    def as_dict(self) -> dict[str, object]:
        """Names and numbers, for JSON and logs."""
        beside = {"intervals": self.intervals, "signature": self.signature}
        return {**self.values, "count": self.count, **{name: value for name, value in beside.items() if value}}

    @property
    def text(self) -> str:
        """One line."""
        shown = ", ".join(f"{label} {_shown(name, self.values[name])}" for name, label in self.labels.items())
        return f"{shown} ({counted_noun(self.count, self.thing)})"

    def __str__(self) -> str:
        return self.text


def table(scores: Scores) -> Table:
    """The scores as a table for a terminal, with their intervals where there are any; the signature is left to you."""
    from rich import box
    from rich.table import Table

    found = Table(box=box.SIMPLE_HEAD, title=counted_noun(scores.count, scores.thing))
    found.add_column("metric")
    found.add_column("value", justify="right")
    if scores.intervals:
        found.add_column("95 % confidence", justify="right")
    for name, label in scores.labels.items():
        bounds = scores.intervals.get(name)
        between = [" to ".join(_shown(name, bound) for bound in bounds)] if bounds else []
        found.add_row(label, _shown(name, scores.values[name]), *between)
    return found


def score_units(
    outputs: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    unit_error: str = "PER",
    *,
    confidence: bool = False,
) -> Scores:
    """Compare outputs with their references, unit by unit.

    ``exact`` is the share of outputs that equal their reference, ``wer_percent`` the percentage of those that do not
    (word error rate as used for pronunciation), ``error_rate`` the edits per unit of the references: phone or
    character error rate, as ``unit_error`` names it (1.0 = 100 %). The better of two models has fewer wrong outputs;
    with equally many, fewer edits. ``confidence`` asks for intervals. Raises ``ArgumentError`` when the numbers of
    outputs and references differ or are 0.

    >>> score_units(["ab", "c"], ["ab", "cde"], "CER").text
    'exact 50.00 %, WER 50.00 %, CER 40.00 % (2 pairs)'
    """
    n = _number(outputs, references)
    edits = np.array([edit_distance(output, reference) for output, reference in zip(outputs, references, strict=True)])
    units = np.array([len(reference) for reference in references])

    def values(rows: Rows) -> dict[str, float]:
        wrong = int((edits[rows] > 0).sum())
        return {
            "exact": (n - wrong) / n,
            "wer_percent": 100 * wrong / n,
            "error_rate": int(edits[rows].sum()) / max(1, int(units[rows].sum())),
        }

    return Scores(
        values(np.arange(n)),
        (-float((edits > 0).sum()), -float(edits.sum())),
        n,
        {"exact": "exact", "wer_percent": "WER", "error_rate": unit_error},
        intervals=_intervals(values, n) if confidence else {},
    )


def score_texts(outputs: Sequence[str], references: Sequence[str], *, confidence: bool = False) -> Scores:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015) of whole texts by sacrebleu, and the share of exact matches.

    The texts are to be as people write them: sacrebleu cuts them itself, by its ``13a`` and in mixed case, as the
    signature says. The better of two models has the higher BLEU. Raises ``ArgumentError`` as `score_units` does.

    >>> score_texts(["a small cat sat down", "no"], ["a small cat sat here", "no"]).text
    'BLEU 67.56, chrF 70.62, exact 50.00 % (2 pairs)'
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    n = _number(outputs, references)
    right = np.array([output == reference for output, reference in zip(outputs, references, strict=True)])

    def exact(rows: Rows) -> dict[str, float]:
        return {"exact": int(right[rows].sum()) / n}

    values, intervals, signatures = {}, {}, []
    metrics: dict[str, Metric] = {"bleu": BLEU(), "chrf": CHRF()}
    for name, metric in metrics.items():
        score = metric.corpus_score(outputs, [references], n_bootstrap=_SAMPLES if confidence else 1)
        values[name] = float(score.score)
        intervals[name] = float(score._mean - score._ci), float(score._mean + score._ci)
        signatures.append(f"{score.name}|{metric.get_signature()}")
    return Scores(
        {**values, **exact(np.arange(n))},
        tuple(values.values()),
        n,
        {"bleu": "BLEU", "chrf": "chrF", "exact": "exact"},
        intervals={**intervals, **_intervals(exact, n)} if confidence else {},
        signature=" ".join(signatures),
    )


def score_tags(
    outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, confidence: bool = False
) -> Scores:
    """Compare the tags of sentences, word by word.

    ``accuracy`` is the share of words with the right tag, ``sentence_accuracy`` that of sentences with no wrong one,
    ``macro_f1`` the mean over the tags of 2 · right / (given + due). The better of two models has the higher accuracy.
    Raises ``ArgumentError`` as `score_units` does, and when a sentence has not one tag for each word.

    >>> score_tags([["DET", "NOUN"], ["VERB"]], [["DET", "NOUN"], ["NOUN"]]).text
    'accuracy 66.67 %, whole sentences 50.00 %, macro F1 55.56 % (2 sentences)'
    """
    n = _number(outputs, references)
    for i, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        if len(output) != len(reference):
            raise ArgumentError(
                f"sentence {i}: expected one tag for each of its {counted_noun(len(reference), 'word')}, "
                f"got {len(output)}"
            )
    given, due = _ids([tag for tags in outputs for tag in tags], [tag for tags in references for tag in tags])
    lengths = np.array([len(tags) for tags in references])
    if not lengths.sum():
        raise ArgumentError("expected at least one word, got sentences without any")
    ends = lengths.cumsum()
    wrong = np.array([list(output) != list(reference) for output, reference in zip(outputs, references, strict=True)])

    def values(rows: Rows) -> dict[str, float]:
        # The words of the sentences: each counted on from the first of its own
        skipped = np.repeat((ends - lengths)[rows] - (lengths[rows].cumsum() - lengths[rows]), lengths[rows])
        words = skipped + np.arange(len(skipped))
        return {
            "accuracy": float((given[words] == due[words]).sum()) / max(1, len(words)),
            "sentence_accuracy": (n - int(wrong[rows].sum())) / n,
            "macro_f1": _macro_f1(given[words], due[words]),
        }

    found = values(np.arange(n))
    return Scores(
        found,
        (found["accuracy"], found["sentence_accuracy"]),
        n,
        {"accuracy": "accuracy", "sentence_accuracy": "whole sentences", "macro_f1": "macro F1"},
        "sentence",
        _intervals(values, n) if confidence else {},
    )


def score_labels(outputs: Sequence[str], references: Sequence[str], *, confidence: bool = False) -> Scores:
    """Compare one label a text: the share that is right, and the mean over the labels of 2 · right / (given + due).

    The better of two models has the higher accuracy. Raises ``ArgumentError`` as `score_units` does.

    >>> score_labels(["good", "bad", "bad"], ["good", "good", "bad"]).text
    'accuracy 66.67 %, macro F1 66.67 % (3 texts)'
    """
    n = _number(outputs, references)
    given, due = _ids(outputs, references)

    def values(rows: Rows) -> dict[str, float]:
        return {
            "accuracy": int((given[rows] == due[rows]).sum()) / n,
            "macro_f1": _macro_f1(given[rows], due[rows]),
        }

    found = values(np.arange(n))
    return Scores(
        found,
        (found["accuracy"], found["macro_f1"]),
        n,
        {"accuracy": "accuracy", "macro_f1": "macro F1"},
        "text",
        _intervals(values, n) if confidence else {},
    )


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that turn ``a`` into ``b`` (Levenshtein 1966), exactly.

    Torchmetrics looks at a band around the diagonal only, and says 150 for 70 when long texts are shifted.

    >>> edit_distance("rain", "shine")
    3
    """
    a, b = list(a), list(b)
    if a == b:
        return 0
    row = list(range(len(b) + 1))
    for i, unit in enumerate(a, start=1):
        corner, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            best = corner if unit == other else 1 + min(corner, row[j], row[j - 1])
            corner, row[j] = row[j], best
    return row[-1]


def _number(outputs: Sequence[object], references: Sequence[object]) -> int:
    if len(outputs) != len(references) or not outputs:
        raise ArgumentError(
            f"expected one output for each reference, and at least one; got {len(outputs)} and {len(references)}"
        )
    return len(outputs)


def _intervals(values: Callable[[Rows], dict[str, float]], n: int) -> dict[str, tuple[float, float]]:
    """What 95 % of samples lie between, each of n examples drawn with replacement; the same for the same outputs."""
    random = np.random.default_rng(0)
    samples = [values(random.integers(n, size=n)) for _ in range(_SAMPLES)]
    bounds = {name: np.quantile([sample[name] for sample in samples], (0.025, 0.975)) for name in samples[0]}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def _ids(outputs: Sequence[str], references: Sequence[str]) -> tuple[Rows, Rows]:
    """Tags or labels as numbers."""
    names = {name: i for i, name in enumerate(sorted({*outputs, *references}))}
    return np.array([names[name] for name in outputs]), np.array([names[name] for name in references])


def _macro_f1(given: Rows, due: Rows) -> float:
    """Over the labels that are given or due."""
    import torch
    from torchmetrics.functional.classification import multiclass_f1_score

    if not len(due):
        return 0.0
    labels = max(2, int(max(given.max(), due.max())) + 1)
    # Its check of the ids, which are ours, takes ten times as long as the score
    return float(
        multiclass_f1_score(
            torch.from_numpy(given), torch.from_numpy(due), labels, average="macro", validate_args=False
        )
    )


def _shown(name: str, value: float) -> str:
    factor, unit = _SHOWN.get(name, _SHARE)
    return f"{factor * value:.2f}{unit}"
