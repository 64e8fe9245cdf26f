"""Classification in the commands: its options, examples, answers and pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard._wording import counted_noun
from regard.cli.messages import UnseenUnits, note, with_progress
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from regard.cli.train_plan import TrainPlan
    from regard.data.labelled_texts import LabelledText, LabelledTexts, TextUnits
    from regard.look import WatchRecord
    from regard.tasks.classify import Classification, ClassifyRun
    from regard.tasks.metrics import Scores

# Kinds of model with their options, and the defaults of their config, as in `regard.cli.tasks.seq2seq`
_WORDS = {"embed_dim": 64, "dropout": 0.5, "word_dropout": 0.1, "heads": 4}
_ENCODER = {**_WORDS, "hidden_dim": 128, "layers": 1}
MODELS: dict[str, dict[str, Any]] = {"recurrent": _ENCODER, "transformer": _ENCODER, "none": _WORDS}
EXAMPLE_NOUN = "text"
SCORING_NOTE = ""
PREDICT_OPTIONS = {"scores", "as_json"}
EVALUATE_OPTIONS = {"as_json"}
LOOK_OPTIONS: set[str] = set()


def read(
    path: str, *, columns: str | None = None, units: TextUnits | None = None, max_length: int = 400
) -> LabelledTexts:
    """Read texts to train on."""
    from regard.data.labelled_texts import read_labelled

    if units not in (None, "words", "chars"):
        raise ArgumentError(f"--units: expected words or chars to classify, got {units!r}")
    names = None if columns is None else columns.split(",")
    return read_labelled(path, names, units, max_length=max_length)


def new(texts: LabelledTexts, plan: TrainPlan) -> ClassifyRun:
    """Return a run with a new model for these texts."""
    from regard.tasks.classify import ClassifyRun

    chosen = {"encoder": plan.model, **plan.sizes}
    return ClassifyRun.new(texts, max_length=plan.reading["max_length"], seed=plan.settings.seed, **chosen)


def describe(run: ClassifyRun) -> str:
    """Return the numbers of words and labels in words."""
    return f"{len(run.words):,} words, {len(run.labels):,} labels"


def show_examples(run: ClassifyRun, examples: list[LabelledText], directory: Path, console: Console) -> None:
    """Print the labels of a few texts, and draw their attention."""
    from regard.look import save
    from regard.look.pictures.shaded_text import shaded_texts

    answers = list(run.predict_units([example.text for example in examples], weights=True))
    for example, answer in zip(examples, answers, strict=True):
        verdict = "" if answer.label == example.label else f"   (data: {example.label})"
        share = answer.probabilities[answer.label]
        console.print(f"  {answer.label} {100 * share:.0f} %  {_text(run, answer)}{verdict}")
    save(shaded_texts(answers), directory / "attention.png")
    console.print(f"attention of these examples: {directory / 'attention.png'}")


def predict(run: ClassifyRun, file: str, options: dict[str, Any]) -> None:
    """Print a label for each line."""
    from regard.data.labelled_texts import read_unlabelled

    if file == "-" and sys.stdin.isatty():
        note("enter one text per line; Ctrl-D ends the input")
    unseen, cut = UnseenUnits(), 0
    for answer in with_progress(run.predict(read_unlabelled(file, run.columns)), "line"):
        unseen.add(answer.unseen)
        cut += answer.cut
        if options["as_json"]:
            print(json.dumps({"label": answer.label, "probabilities": answer.probabilities}, ensure_ascii=False))
        else:
            score = [f"{answer.probabilities[answer.label]:.4f}"] if options["scores"] and answer.label else []
            print("\t".join([answer.label, *score]))
    unseen.report("represented by characters only")
    if cut:
        note(f"{counted_noun(cut, 'text')} cut to {run.max_length} units, the maximum of the model")


def score(run: ClassifyRun, examples: list[LabelledText], options: dict[str, Any]) -> Scores:
    """Return the scores of the labels of examples, with confidence intervals."""
    return run.score(examples, confidence=True)


def draw(run: ClassifyRun, texts: list[str], options: dict[str, Any]) -> Figure:
    """Classify texts, and draw which of their words the classifier attended to."""
    from regard.look.pictures.shaded_text import shaded_texts

    return shaded_texts(_classify(run, texts))


def watch(run: ClassifyRun, text: str, options: dict[str, Any]) -> tuple[WatchRecord, dict[str, list[str]]]:
    """Classify a text, and return the record of its attention with the names of its tokens."""
    import regard

    with regard.watch(run.model, keep_inputs=True) as record:
        (answer,) = _classify(run, [text])
    return record, {"source": answer.units, "target": [answer.label]}


def _classify(run: ClassifyRun, texts: list[str]) -> list[Classification]:
    """Print each text with its label and probability; return the answers with their weights."""
    answers = list(run.predict(texts, weights=True))
    for text, answer in zip(texts, answers, strict=True):
        if not answer.units:
            raise ArgumentError(f"expected a text with at least one word, got {text!r}; pass another text")
        print(f"{text}\t{answer.label}\t{answer.probabilities[answer.label]:.4f}")
    return answers


def _text(run: ClassifyRun, answer: Classification) -> str:
    return ("" if run.units == "chars" else " ").join(answer.units)
