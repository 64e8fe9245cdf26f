"""Metrics: scores of a model's outputs against one reference each, with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regard._wording import counted_noun
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

__all__ = ["Scores", "edit_distance", "score_labels", "score_tags", "score_texts", "score_units"]

Rows: TypeAlias = NDArray[np.int64]

_SAMPLES = 1000
_PRINTED = {  # factor and unit of a value in print
    "wer_percent": (1, " %"),
    "bleu": (1, ""),
    "chrf": (1, ""),
}
_FRACTION = (100, " %")


@dataclass(frozen=True)
class Scores:
    """The scores of a set of outputs: values by name, and a key that sorts models from worse to better.

    ``values`` are fractions from 0 to 1, except ``wer_percent``, ``bleu`` and ``chrf`` (0 to 100); ``labels`` are their
    names in print, as ``str`` shows them. The better of two models has the higher ``sort_key``. ``intervals``, if they
    were requested, are the bounds of the 95 % confidence interval of each value, by the percentiles of 1,000 bootstrap
    samples of the outputs (Efron 1979); ``signature`` is the one to quote beside BLEU and chrF (Post 2018).

    >>> scores = score_units([["K", "AE", "T"], ["D"]], [["K", "AE", "T"], ["D", "AO", "G"]])
    >>> scores.as_dict()
    {'exact': 0.5, 'wer_percent': 50.0, 'error_rate': 0.3333333333333333, 'count': 2}
    >>> print(scores)
    exact 50.00 %, WER 50.00 %, PER 33.33 % (2 pairs)
    """

    values: dict[str, float]
    sort_key: tuple[float, ...]
    count: int
    labels: dict[str, str]
    thing: str = "pair"
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    signature: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return names and numbers, for JSON and logs."""
        extra = {"intervals": self.intervals, "signature": self.signature}
        return {**self.values, "count": self.count, **{name: value for name, value in extra.items() if value}}

    def printed(self, name: str, value: float) -> str:
        """Return a value, or a bound of its interval, as ``str`` prints it.

        >>> score_units(["ab"], ["ab"]).printed("exact", 0.125)
        '12.50 %'
        """
        factor, unit = _PRINTED.get(name, _FRACTION)
        return f"{factor * value:.2f}{unit}"

    def __str__(self) -> str:
        values = ", ".join(f"{label} {self.printed(name, self.values[name])}" for name, label in self.labels.items())
        return f"{values} ({counted_noun(self.count, self.thing)})"


def score_units(
    outputs: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    unit_error: str = "PER",
    *,
    confidence: bool = False,
) -> Scores:
    """Compare outputs with their references, unit by unit.

    ``exact`` is the fraction of outputs that equal their reference, ``wer_percent`` the percentage of those that do not
    (word error rate as used for pronunciation), ``error_rate`` the number of edits per unit of the references: phone or
    character error rate, as ``unit_error`` names it (1.0 = 100 %). The better of two models has fewer wrong outputs, or
    as many with fewer edits. ``confidence=True`` adds intervals.

    Errors: `ArgumentError` when the numbers of outputs and references differ or are 0.

    >>> print(score_units(["ab", "c"], ["ab", "cde"], "CER"))
    exact 50.00 %, WER 50.00 %, CER 40.00 % (2 pairs)
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
    """Compare whole texts: BLEU (Papineni et al. 2002) and chrF (Popović 2015) by sacrebleu, and exact matches.

    Pass untokenized texts: sacrebleu tokenizes them itself (``13a``, mixed case, as in the signature).
    ``exact`` is the fraction of outputs that equal their reference. The better of two models has the higher BLEU.
    Errors as in `score_units`.

    >>> print(score_texts(["a small cat sat down", "no"], ["a small cat sat here", "no"]))
    BLEU 67.56, chrF 70.62, exact 50.00 % (2 pairs)
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

    ``accuracy`` is the fraction of words with the correct tag, ``sentence_accuracy`` that of sentences without a wrong
    tag, ``macro_f1`` the mean over the tags of F1 = 2 · correct / (predicted + expected). The better of two models has
    the higher accuracy. Errors as in `score_units`, and when a sentence does not have one tag for each word.

    >>> print(score_tags([["DET", "NOUN"], ["VERB"]], [["DET", "NOUN"], ["NOUN"]]))
    accuracy 66.67 %, whole sentences 50.00 %, macro F1 55.56 % (2 sentences)
    """
    n = _number(outputs, references)
    for i, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        if len(output) != len(reference):
            raise ArgumentError(
                f"sentence {i}: expected one tag for each of its {counted_noun(len(reference), 'word')}, "
                f"got {len(output)}"
            )
    predicted, expected = _ids([tag for tags in outputs for tag in tags], [tag for tags in references for tag in tags])
    lengths = np.array([len(tags) for tags in references])
    if not lengths.sum():
        raise ArgumentError("expected at least one word, got only empty sentences")
    ends = lengths.cumsum()
    wrong = np.array([list(output) != list(reference) for output, reference in zip(outputs, references, strict=True)])

    def values(rows: Rows) -> dict[str, float]:
        # The words of the chosen sentences, each by its index among all words
        skipped = np.repeat((ends - lengths)[rows] - (lengths[rows].cumsum() - lengths[rows]), lengths[rows])
        words = skipped + np.arange(len(skipped))
        return {
            "accuracy": float((predicted[words] == expected[words]).sum()) / max(1, len(words)),
            "sentence_accuracy": (n - int(wrong[rows].sum())) / n,
            "macro_f1": _macro_f1(predicted[words], expected[words]),
        }

    measured = values(np.arange(n))
    return Scores(
        measured,
        (measured["accuracy"], measured["sentence_accuracy"]),
        n,
        {"accuracy": "accuracy", "sentence_accuracy": "whole sentences", "macro_f1": "macro F1"},
        "sentence",
        _intervals(values, n) if confidence else {},
    )


def score_labels(outputs: Sequence[str], references: Sequence[str], *, confidence: bool = False) -> Scores:
    """Compare the labels of texts, one for each.

    ``accuracy`` is the fraction of correct labels, ``macro_f1`` the mean over the labels of
    F1 = 2 · correct / (predicted + expected). The better of two models has the higher accuracy. Errors as in
    `score_units`.

    >>> print(score_labels(["good", "bad", "bad"], ["good", "good", "bad"]))
    accuracy 66.67 %, macro F1 66.67 % (3 texts)
    """
    n = _number(outputs, references)
    predicted, expected = _ids(outputs, references)

    def values(rows: Rows) -> dict[str, float]:
        return {
            "accuracy": int((predicted[rows] == expected[rows]).sum()) / n,
            "macro_f1": _macro_f1(predicted[rows], expected[rows]),
        }

    measured = values(np.arange(n))
    return Scores(
        measured,
        (measured["accuracy"], measured["macro_f1"]),
        n,
        {"accuracy": "accuracy", "macro_f1": "macro F1"},
        "text",
        _intervals(values, n) if confidence else {},
    )


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the smallest number of insertions, deletions and substitutions from ``a`` to ``b`` (Levenshtein 1966).

    The number is exact. (Torchmetrics only searches a band around the diagonal: for a long, shifted text it returns 150
    instead of 70.)

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
    """Return the bounds of 95 % of the samples of n examples drawn with replacement, with a fixed seed."""
    random = np.random.default_rng(0)
    samples = [values(random.integers(n, size=n)) for _ in range(_SAMPLES)]
    bounds = {name: np.quantile([sample[name] for sample in samples], (0.025, 0.975)) for name in samples[0]}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def _ids(outputs: Sequence[str], references: Sequence[str]) -> tuple[Rows, Rows]:
    """Return tags or labels as numbers that both sides share."""
    names = {name: i for i, name in enumerate(sorted({*outputs, *references}))}
    return np.array([names[name] for name in outputs]), np.array([names[name] for name in references])


def _macro_f1(predicted: Rows, expected: Rows) -> float:
    """Return the mean F1 over the labels that occur on either side."""
    import torch
    from torchmetrics.functional.classification import multiclass_f1_score

    if not len(expected):
        return 0.0
    labels = max(2, int(max(predicted.max(), expected.max())) + 1)
    # Validating these ids would take ten times as long as the score
    return float(
        multiclass_f1_score(
            torch.from_numpy(predicted), torch.from_numpy(expected), labels, average="macro", validate_args=False
        )
    )
