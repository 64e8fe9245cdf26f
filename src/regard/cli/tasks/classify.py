"""The commands' part in classification."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard._wording import counted_noun
from regard.cli.messages import counted, note
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.data.labelled_texts import LabelledTexts
    from regard.tasks.classify import Answer, ClassifyRun

# The options of `regard train` that have an effect, and what they are when left out
OPTIONS: dict[str, Any] = {
    "columns": None,
    "units": None,
    "max_length": 400,
    "embed_dim": 64,
    "dropout": 0.5,
    "word_dropout": 0.1,
    "heads": 4,
    "lr": 3e-3,
    "batch_tokens": 600,
    "weight_decay": 0.01,
    "label_smoothing": 0.1,
    "warmup": 100,
}
_ENCODER = {"hidden_dim": 128, "layers": 1}
MODELS: dict[str, dict[str, Any]] = {"recurrent": _ENCODER, "transformer": _ENCODER, "none": {}}
LENGTH = {"epochs": 8}  # small data are learnt by heart when they are read more often
EXAMPLE = "text"
HOW_SCORED = ""
OF_PREDICT = {"scores", "as_json"}
OF_LOOK: set[str] = set()


def read(path: str, options: dict[str, Any]) -> LabelledTexts:
    """Texts to train on."""
    from regard.data.labelled_texts import read_labelled

    columns, units = options["columns"], options["units"]
    if units not in (None, "words", "chars"):
        raise ArgumentError(f"--units: expected words or chars to classify, got {units!r}")
    names = None if columns is None else columns.split(",")
    return read_labelled(path, names, units, max_length=options["max_length"])


def new(texts: LabelledTexts, options: dict[str, Any]) -> ClassifyRun:
    """A run for these texts."""
    from regard.models import ClassifierConfig
    from regard.tasks.classify import ClassifyRun

    sizes = {name: options[name] for name in ("hidden_dim", "layers") if name in options}
    config = ClassifierConfig(
        0,
        0,
        options["model"],
        options["embed_dim"],
        heads=options["heads"],
        dropout=options["dropout"],
        word_dropout=options["word_dropout"],
        **sizes,
    )
    return ClassifyRun.new(texts, config, max_length=options["max_length"], seed=options["seed"])


def about(run: ClassifyRun) -> str:
    """What is to be said of a new model besides its size."""
    return f"{len(run.words):,} words, {len(run.labels):,} labels"


def show(run: ClassifyRun, examples: list[Any], directory: Path, console: Console) -> None:
    """Tell and draw what becomes of a few texts."""
    from regard.look import save
    from regard.look.pictures.shaded_text import shaded_texts

    answers = list(run.predict_units([example.text for example in examples], weights=True))
    for example, answer in zip(examples, answers, strict=True):
        verdict = "" if answer.label == example.label else f"   (data: {example.label})"
        share = answer.probabilities[answer.label]
        console.print(f"  {answer.label} {100 * share:.0f} %  {_text(run, answer)}{verdict}")
    save(shaded_texts(answers), directory / "attention.png")
    console.print(f"what it looked at: {directory / 'attention.png'}")


def predict(run: ClassifyRun, file: str, options: dict[str, Any]) -> None:
    """A label for each line."""
    from regard.data.labelled_texts import read_texts

    if file == "-" and sys.stdin.isatty():
        note("a text a line; Ctrl-D ends")
    unseen = cut = 0
    for answer in counted(run.predict(read_texts(file, run.columns)), "line"):
        unseen, cut = unseen + answer.unseen, cut + answer.cut
        if options["as_json"]:
            print(json.dumps({"label": answer.label, "probabilities": answer.probabilities}, ensure_ascii=False))
        else:
            score = [f"{answer.probabilities[answer.label]:.4f}"] if options["scores"] and answer.label else []
            print("\t".join([answer.label, *score]))
    if unseen:
        note(f"{counted_noun(unseen, 'unit')} that training never saw, read by their letters alone")
    if cut:
        note(f"{counted_noun(cut, 'text')} cut to the {run.max_length} units that the model takes")


def look(run: ClassifyRun, texts: list[str], path: Path, options: dict[str, Any]) -> None:
    """Classify each text, and draw which of its words that was read from."""
    from regard.look import save
    from regard.look.pictures.shaded_text import shaded_texts
    from regard.look.watching.watch import watch

    if path.suffix == ".html":
        with watch(run.model, keep_inputs=True) as record:
            (answer,) = _classify(run, texts)
        record.report(path, tokens={"source": answer.units, "target": [answer.label]}, title=texts[0])
    else:
        save(shaded_texts(_classify(run, texts)), path)
    print(path)


def _classify(run: ClassifyRun, texts: list[str]) -> list[Answer]:
    """Print each text with its label; return the answers with their weights."""
    answers = list(run.predict(texts, weights=True))
    for text, answer in zip(texts, answers, strict=True):
        if not answer.units:
            raise ArgumentError(f"expected texts with at least one word, got {text!r}")
        print(f"{text}\t{answer.label}\t{answer.probabilities[answer.label]:.4f}")
    return answers


def _text(run: ClassifyRun, answer: Answer) -> str:
    return ("" if run.units == "chars" else " ").join(answer.units)
