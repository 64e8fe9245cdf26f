"""Sequence to sequence in the commands: its options, examples, answers and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.messages import Tally, note, with_progress
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from regard.cli.train_plan import TrainPlan
    from regard.data.pair_columns import UnicodeForm
    from regard.data.pairs import Pair, Pairs
    from regard.look import WatchRecord
    from regard.tasks.metrics import Scores
    from regard.tasks.seq2seq import Answer, Search, Seq2SeqRun

# Kinds of model with their options, and the defaults of their configs for help texts, which must not import torch.
MODELS: dict[str, dict[str, Any]] = {
    "recurrent": {
        "layers": 1,
        "dropout": 0.3,
        "score": "additive",
        "input_feeding": True,
        "cell": "gru",
        "embed_dim": 128,
        "hidden_dim": 256,
    },
    "transformer": {
        "layers": 3,
        "dropout": 0.1,
        "dim": 128,
        "heads": 4,
        "feedforward": 256,
        "positions": "sinusoidal",
    },
}
EXAMPLE_NOUN = "pair"
SCORING_NOTE = ", beam 5"
PREDICT_OPTIONS = {"beam", "n_best", "length_penalty", "scores", "as_json"}
EVALUATE_OPTIONS = {"beam", "length_penalty", "as_json"}
LOOK_OPTIONS = {"beam", "n_best", "length_penalty", "heads"}
MANY_PAIRS = 50_000  # too many to overfit in two minutes: there dropout costs more than it gains


def read(
    path: str,
    *,
    columns: str | None = None,
    units: str | None = None,
    source_units: str | None = None,
    target_units: str | None = None,
    subwords: int = 8000,
    shared: bool = False,
    normalize: UnicodeForm = "none",
    max_length: int = 200,
) -> Pairs:
    """Read pairs to train on, split into units by the options, or by a guess."""
    from regard.data.pair_rows import read_pair_rows
    from regard.data.pairs import learn_tokenizers, split_into_units

    rows = read_pair_rows(path, columns=None if columns is None else columns.split(","), unicode_form=normalize)
    both = learn_tokenizers(rows, source_units or units, target_units or units, size=subwords, shared=shared)
    return split_into_units(rows, *both, max_length=max_length)


def new(pairs: Pairs, plan: TrainPlan) -> Seq2SeqRun:
    """Return a run with a new model for these pairs."""
    from regard.tasks.seq2seq import Seq2SeqRun

    sizes = {**({"dropout": 0.0} if len(pairs) >= MANY_PAIRS else {}), **plan.sizes}
    if "layers" in sizes:
        sizes["encoder_layers"] = sizes.pop("layers")
    if sizes.get("score") == "none":
        sizes["score"] = None
    shared = plan.reading["shared"]
    if plan.model == "transformer":
        sizes["shared_embeddings"] = shared
        if "encoder_layers" in sizes:
            sizes["decoder_layers"] = sizes["encoder_layers"]
    max_length = plan.reading["max_length"]
    return Seq2SeqRun.new(pairs, plan.model, max_length=max_length, seed=plan.settings.seed, shared=shared, **sizes)


def describe(run: Seq2SeqRun) -> str:
    """Return the sizes of the vocabularies in words."""
    return f"vocabularies {len(run.source)} and {len(run.target)}"


def show_examples(run: Seq2SeqRun, examples: list[Pair], directory: Path, console: Console) -> None:
    """Print the answers to a few examples, and draw their attention."""
    from rich.cells import cell_len, set_cell_size

    from regard.data.pair_columns import compose
    from regard.data.pairs import source_text
    from regard.look import alignments, save
    from regard.look.pictures.of_answers import means, weights_of
    from regard.tasks.seq2seq import Search

    answers = list(run.predict_units([example.source for example in examples], Search(weights=True)))
    # A TAB would misalign the answers
    sources = [source_text(example.source, run.source_tokenizer).replace("\t", "  ") for example in examples]
    width = max(map(cell_len, sources))
    for source, example, answer in zip(sources, examples, answers, strict=True):
        predicted, expected = (
            answer.predictions[0].text,
            compose(run.target_tokenizer.join(example.target), run.unicode_form),
        )
        verdict = "" if predicted == expected else f"   (data: {expected})"
        console.print(f"  {set_cell_size(source, width)}  {predicted}{verdict}")
    if run.model.config.attends:
        save(alignments(means(weights_of(run, answers))), directory / "attention.png")
        console.print(f"attention of these examples: {directory / 'attention.png'}")


def predict(run: Seq2SeqRun, file: str, options: dict[str, Any]) -> None:
    """Print an answer for each line."""
    from regard.data.pair_columns import compose
    from regard.data.pairs import source_text
    from regard.tasks.seq2seq import Search

    search = Search(options["beam"], options["n_best"], options["length_penalty"])
    tally = Tally()
    for answer in with_progress(_answers(run, file, search), "line"):
        tally.add(answer)
        if options["as_json"]:
            print(_json(answer, compose(source_text(answer.units, run.source_tokenizer), run.unicode_form)))
        else:
            print(_row(answer, options["scores"]))
    tally.report(run.max_length)


def _answers(run: Seq2SeqRun, file: str, search: Search) -> Iterator[Answer]:
    from regard.data.lines import read_lines
    from regard.data.pairs import read_sources

    if file != "-" or not sys.stdin.isatty():
        yield from run.predict_units(read_sources(file, run.source_tokenizer, run.columns, run.unicode_form), search)
        return
    features = ", TAB, features" if "features" in run.columns else ""
    note(f"enter one source per line ({run.source_tokenizer}{features}); Ctrl-D ends the input")
    for line in read_lines(file):  # one at a time, as a person waits for the answer
        yield from run.predict([line], search)


def _row(answer: Answer, scores: bool) -> str:
    columns = []
    for prediction in answer.predictions:
        columns.append(prediction.text)
        if scores:
            columns.append(f"{prediction.score:.4f}")
    return "\t".join(columns)


def _json(answer: Answer, source: str) -> str:
    predictions = [
        {"text": p.text, "score": p.score, "log_prob": p.log_prob, "finished": p.finished} for p in answer.predictions
    ]
    return json.dumps(
        {"source": source, "predictions": predictions, "unseen": len(answer.unseen), "cut": answer.cut},
        ensure_ascii=False,
    )


def score(run: Seq2SeqRun, examples: list[Pair], options: dict[str, Any]) -> Scores:
    """Return the scores of the answers to examples, with confidence intervals."""
    from regard.tasks.seq2seq import Search

    return run.score(examples, Search(options["beam"], length_penalty=options["length_penalty"]), confidence=True)


def draw(run: Seq2SeqRun, texts: list[str], options: dict[str, Any]) -> Figure:
    """Answer texts, and draw which units of a text each unit of its answer attended to."""
    from regard.look import alignments, grid
    from regard.look.pictures.of_answers import head_grids, means, weights_of

    shown = weights_of(run, _answer(run, texts, options))
    return grid(head_grids(shown, named=len(texts) > 1)) if options["heads"] else alignments(means(shown))


def watch(run: Seq2SeqRun, text: str, options: dict[str, Any]) -> tuple[WatchRecord, dict[str, list[str]]]:
    """Answer a text, and return the record of its attention with the names of its tokens."""
    from regard.look.runs import watch_answer

    (answer,) = _answer(run, [text], options)
    return watch_answer(run, answer)


def _answer(run: Seq2SeqRun, texts: list[str], options: dict[str, Any]) -> list[Answer]:
    """Print each text with its answers; return the answers with their weights."""
    from regard.models import RecurrentConfig
    from regard.tasks.seq2seq import Search

    search = Search(options["beam"], options["n_best"], options["length_penalty"], weights=True)
    if not run.model.config.attends:
        raise ArgumentError(
            f"{options['run']}: expected a model with attention, got one without; train one without --score none"
        )
    if options["heads"] and isinstance(run.model.config, RecurrentConfig):
        raise ArgumentError(f"--heads: expected a transformer, {options['run']} has a single head; remove it")
    for text in texts:
        if not run.split(text):
            raise ArgumentError(
                f"expected a text with at least one unit ({run.source_tokenizer}), got {text!r}; pass another text"
            )
    answers = list(run.predict(texts, search))
    tally = Tally()
    for text, answer in zip(texts, answers, strict=True):
        tally.add(answer)
        for prediction in answer.predictions:
            print(f"{text}\t{prediction.text}")
    tally.report(run.max_length)
    return answers
