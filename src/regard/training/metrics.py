"""How right a model's outputs are, against one reference each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import ArgumentError
from regard.training.wording import count

__all__ = ["Scores", "edit_distance", "score"]


@dataclass(frozen=True)
class Scores:
    """Counts over a set of outputs, and the shares that the field reports.

    >>> scores = score([["K", "AE", "T"], ["D"]], [["K", "AE", "T"], ["D", "AO", "G"]])
    >>> scores.exact, scores.wer_percent, round(scores.error_rate, 3)
    (0.5, 50.0, 0.333)
    >>> print(scores)
    exact 50.00 %, WER 50.00 %, PER 33.33 % (2 pairs)
    """

    count: int
    correct: int
    edits: int
    units: int

    @property
    def exact(self) -> float:
        """The share of outputs equal to their reference, 0 to 1."""
        return self.correct / self.count

    @property
    def wer_percent(self) -> float:
        """Word error rate as used for pronunciation: outputs that differ from their reference, in percent."""
        return 100 * (self.count - self.correct) / self.count

    @property
    def error_rate(self) -> float:
        """Edits per unit of the references: phone error rate, or character error rate (1.0 = 100 %)."""
        return self.edits / max(1, self.units)

    def as_dict(self) -> dict[str, float]:
        """Names and numbers, for JSON and logs."""
        return {
            "exact": self.exact,
            "wer_percent": self.wer_percent,
            "error_rate": self.error_rate,
            "count": self.count,
        }

    def text(self, unit_error: str = "PER") -> str:
        """One line; ``unit_error`` names the error rate of the units, such as PER or CER."""
        return (
            f"exact {100 * self.exact:.2f} %, WER {self.wer_percent:.2f} %, "
            f"{unit_error} {100 * self.error_rate:.2f} % ({count(self.count, 'pair')})"
        )

    def __str__(self) -> str:
        return self.text()


def score(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Scores:
    """Compare outputs with their references, unit by unit; ``ArgumentError`` when their numbers differ or are 0."""
    if len(outputs) != len(references) or not outputs:
        raise ArgumentError(
            f"expected one output for each reference, and at least one; got {len(outputs)} and {len(references)}"
        )
    edits = [edit_distance(output, reference) for output, reference in zip(outputs, references, strict=True)]
    return Scores(len(edits), edits.count(0), sum(edits), sum(map(len, references)))


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
