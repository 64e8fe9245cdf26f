"""The commands' part in tagging."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.messages import counted, note
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.data.conllu import Sentence
    from regard.look.pictures.of_answers import AnswerWeights
    from regard.tasks.tag import Tagged, TagRun

# The options of `regard train` that have an effect, and what they are when left out
OPTIONS: dict[str, Any] = {
    "tag": "upos",
    "embed_dim": 128,
    "hidden_dim": 400,
    "layers": 2,
    "dropout": 0.45,
    "word_dropout": 0.2,
    "lr": 3e-3,
    "batch_tokens": 500,
    "weight_decay": 0.01,
    "label_smoothing": 0.05,
    "warmup": 200,
}
MODELS: dict[str, dict[str, Any]] = {"recurrent": {}, "transformer": {"heads": 4}}
LENGTH = {"epochs": 10}
EXAMPLE = "sentence"
HOW_SCORED = ""
OF_PREDICT = {"as_json"}
OF_LOOK = {"heads"}


def read(path: str, options: dict[str, Any]) -> Tagged:
    """Sentences to train on."""
    from regard.tasks.tag import read_tagged

    return read_tagged(path, options["tag"])


def new(sentences: Tagged, options: dict[str, Any]) -> TagRun:
    """A run for these sentences."""
    from regard.models import TaggerConfig
    from regard.tasks.tag import TagRun

    config = TaggerConfig(
        0,
        0,
        0,
        options["model"],
        options["embed_dim"],
        hidden_dim=options["hidden_dim"],
        layers=options["layers"],
        heads=options.get("heads", 1),
        dropout=options["dropout"],
        word_dropout=options["word_dropout"],
    )
    return TagRun.new(sentences, config, column=options["tag"], seed=options["seed"])


def about(run: TagRun) -> str:
    """What is to be said of a new model besides its size."""
    return f"{len(run.words):,} words, {len(run.characters):,} characters, {len(run.labels):,} tags"


def show(run: TagRun, examples: list[Any], directory: Path, console: Console) -> None:
    """Tell what becomes of a few sentences."""
    for example, found in zip(examples, run.predict(example.words for example in examples), strict=True):
        words = [
            f"{word}/{tag}" if tag == wanted else f"{word}/{tag} (data: {wanted})"
            for word, tag, wanted in zip(example.words, found, example.tags, strict=True)
        ]
        console.print(f"  {' '.join(words)}")


def predict(run: TagRun, file: str, options: dict[str, Any]) -> None:
    """The lines of the file, each word with its tag."""
    from regard.data import conllu

    sentences = conllu.read(file)
    groups: Iterable[Iterable[Sentence]] = [sentences]
    if file == "-" and sys.stdin.isatty():  # one at a time: somebody waits for the answer
        note("CoNLL-U, or a word a line; a blank line ends a sentence, Ctrl-D all")
        groups = ([sentence] for sentence in sentences)
    for group in groups:
        for line in counted(_objects(run, group) if options["as_json"] else run.tag(group), "line"):
            print(line)


def _objects(run: TagRun, sentences: Iterable[Sentence]) -> Iterator[str]:
    for sentence, tags in run.tags_of(sentences):
        if sentence.words:  # not what follows the last one
            yield json.dumps({"words": sentence.words, "tags": tags}, ensure_ascii=False)


def look(run: TagRun, texts: list[str], path: Path, options: dict[str, Any]) -> None:
    """Tag each text, and draw which words each of its words attended to."""
    from regard.look import alignments, grid, save
    from regard.look.pictures.of_answers import head_grids, means
    from regard.look.watching.watch import watch

    if not run.model.config.attends:
        raise ArgumentError(
            f"{options['run']}: this tagger is recurrent and has no attention to look at; "
            "train one with --model transformer"
        )
    if path.suffix == ".html":
        with watch(run.model, keep_inputs=True) as record:
            (answer,) = _tag(run, texts)
        record.report(path, tokens=answer.columns, title=answer.text)
    else:
        answers = _tag(run, texts)
        save(grid(head_grids(answers, named=len(texts) > 1)) if options["heads"] else alignments(means(answers)), path)
    print(path)


def _tag(run: TagRun, texts: list[str]) -> list[AnswerWeights]:
    """Print each text with its tags; return what its words attended to."""
    from regard.look.pictures.of_answers import AnswerWeights

    answers = []
    for text in texts:
        words = text.split()
        if not words:
            raise ArgumentError(f"expected texts with at least one word, got {text!r}")
        tags, weights = run.look(words)
        print(f"{text}\t{' '.join(tags)}")
        answers.append(
            AnswerWeights(weights, [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)], words, text)
        )
    return answers
