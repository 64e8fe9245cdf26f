"""Tagging in the commands: its options, examples, answers and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.messages import note, with_progress
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from regard.cli.train_plan import TrainPlan
    from regard.data.conllu import Sentence
    from regard.data.tagged_sentences import TaggedSentence, TaggedSentences
    from regard.look import WatchRecord
    from regard.look.pictures.of_answers import AnswerWeights
    from regard.tasks.metrics import Scores
    from regard.tasks.tag import TagRun

# Kinds of model with their options, and the defaults of their config, as in `regard.cli.tasks.seq2seq`
_OPTIONS = {"embed_dim": 128, "hidden_dim": 400, "layers": 2, "dropout": 0.45, "word_dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {"recurrent": _OPTIONS, "transformer": {**_OPTIONS, "heads": 4}}
EXAMPLE_NOUN = "sentence"
SCORING_NOTE = ""
PREDICT_OPTIONS = {"as_json"}
EVALUATE_OPTIONS = {"as_json"}
LOOK_OPTIONS = {"heads"}


def read(path: str, *, tag: str = "upos") -> TaggedSentences:
    """Read sentences to train on."""
    from regard.data.tagged_sentences import read_tagged

    return read_tagged(path, tag)


def new(sentences: TaggedSentences, plan: TrainPlan) -> TagRun:
    """Return a run with a new model for these sentences."""
    from regard.tasks.tag import TagRun

    chosen = {"encoder": plan.model, **plan.sizes}
    return TagRun.new(sentences, column=plan.reading["tag"], seed=plan.settings.seed, **chosen)


def describe(run: TagRun) -> str:
    """Return the sizes of the vocabularies in words."""
    return f"{len(run.words):,} words, {len(run.characters):,} characters, {len(run.labels):,} tags"


def show_examples(run: TagRun, examples: list[TaggedSentence], directory: Path, console: Console) -> None:
    """Print the tags of a few sentences."""
    for example, predicted in zip(examples, run.predict(example.words for example in examples), strict=True):
        words = [
            f"{word}/{tag}" if tag == expected else f"{word}/{tag} (data: {expected})"
            for word, tag, expected in zip(example.words, predicted, example.tags, strict=True)
        ]
        console.print(f"  {' '.join(words)}")


def predict(run: TagRun, file: str, options: dict[str, Any]) -> None:
    """Print the lines of the file, each word with its tag."""
    from regard.data import conllu

    sentences = conllu.read(file)
    groups: Iterable[Iterable[Sentence]] = [sentences]
    if file == "-" and sys.stdin.isatty():  # one at a time, as a person waits for the answer
        note("enter CoNLL-U, or one word per line; a blank line ends a sentence, Ctrl-D ends the input")
        groups = ([sentence] for sentence in sentences)
    for group in groups:
        for line in with_progress(_objects(run, group) if options["as_json"] else run.tag(group), "line"):
            print(line)


def _objects(run: TagRun, sentences: Iterable[Sentence]) -> Iterator[str]:
    for sentence, tags in run.tags_of(sentences):
        if sentence.words:  # not the blank lines after the last sentence
            yield json.dumps({"words": sentence.words, "tags": tags}, ensure_ascii=False)


def score(run: TagRun, examples: list[TaggedSentence], options: dict[str, Any]) -> Scores:
    """Return the scores of the tags of examples, with confidence intervals."""
    return run.score(examples, confidence=True)


def draw(run: TagRun, texts: list[str], options: dict[str, Any]) -> Figure:
    """Tag texts, and draw which words each of their words attended to."""
    from regard.look import alignments, grid
    from regard.look.pictures.of_answers import head_grids, means

    answers = _tag(run, texts, options)
    return grid(head_grids(answers, named=len(texts) > 1)) if options["heads"] else alignments(means(answers))


def watch(run: TagRun, text: str, options: dict[str, Any]) -> tuple[WatchRecord, list[str]]:
    """Tag a text, and return the record of its attention with its words."""
    import regard

    with regard.watch(run.model, keep_inputs=True) as record:
        (answer,) = _tag(run, [text], options)
    return record, list(answer.columns)


def _tag(run: TagRun, texts: list[str], options: dict[str, Any]) -> list[AnswerWeights]:
    """Print each text with its tags; return the attention of its words."""
    from regard.look.pictures.of_answers import AnswerWeights

    if not run.model.config.attends:
        raise ArgumentError(
            f"{options['run']}: expected a model with attention, got a recurrent tagger; "
            "train one with --model transformer"
        )
    answers = []
    for text in texts:
        words = text.split()
        if not words:
            raise ArgumentError(f"expected a text with at least one word, got {text!r}; pass another text")
        tags, weights = run.predict_with_weights(words)
        print(f"{text}\t{' '.join(tags)}")
        rows = [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
        answers.append(AnswerWeights(weights, rows, words, text))
    return answers
