"""The commands' part in sequence to sequence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.messages import Tally, counted, note
from regard.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.data.pairs import Pairs
    from regard.models import Config
    from regard.tasks.seq2seq import Answer, Search, Seq2SeqRun

# The options of `regard train` that have an effect, and what they are when left out
OPTIONS: dict[str, Any] = {
    "columns": None,
    "units": None,
    "source_units": None,
    "target_units": None,
    "subwords": 8000,
    "shared": False,
    "normalize": "none",
    "max_length": 200,
    "lr": 3e-3,
    "batch_tokens": 1200,
    "weight_decay": 0.01,
    "label_smoothing": 0.05,
}
MODELS: dict[str, dict[str, Any]] = {
    "recurrent": {
        "layers": 1,
        "dropout": None,
        "score": "additive",
        "input_feeding": True,
        "cell": "gru",
        "embed_dim": 128,
        "hidden_dim": 256,
        "warmup": 200,
    },
    "transformer": {
        "layers": 3,
        "dropout": None,
        "dim": 128,
        "heads": 4,
        "feedforward": 256,
        "positions": "sinusoidal",
        "warmup": 300,
    },
}
_DROPOUT = {"recurrent": 0.3, "transformer": 0.1}
_MANY = 50_000  # pairs that two minutes do not wear out: there dropout takes more than it gives
LENGTH = {"minutes": 2.0}  # when neither minutes nor epochs are given
EXAMPLE = "pair"
HOW_SCORED = ", beam 5"
OF_PREDICT = {"beam", "n_best", "length_penalty", "scores", "as_json"}
OF_LOOK = {"beam", "n_best", "length_penalty", "heads"}


def read(path: str, options: dict[str, Any]) -> Pairs:
    """Pairs to train on, cut as the options say or as can be guessed."""
    from regard.data.pair_rows import read_texts
    from regard.data.pairs import cut, learn_units

    columns = None if options["columns"] is None else options["columns"].split(",")
    texts = read_texts(path, columns=columns, normal=options["normalize"])
    names = [options["source_units"] or options["units"], options["target_units"] or options["units"]]
    units = learn_units(texts, *names, size=options["subwords"], shared=options["shared"])
    return cut(texts, *units, max_length=options["max_length"])


def new(pairs: Pairs, options: dict[str, Any]) -> Seq2SeqRun:
    """A run for these pairs."""
    from regard.tasks.seq2seq import Seq2SeqRun

    config, shared = _config(options, len(pairs)), options["shared"]
    return Seq2SeqRun.new(pairs, config, max_length=options["max_length"], seed=options["seed"], shared=shared)


def _config(options: dict[str, Any], pairs: int) -> Config:
    """The model that the options describe, its vocabularies aside."""
    from regard.models import RecurrentConfig, TransformerConfig

    layers, dropout = options["layers"], options["dropout"]
    if dropout is None:
        dropout = 0.0 if pairs >= _MANY else _DROPOUT[options["model"]]
    if options["model"] == "transformer":
        return TransformerConfig(
            0,
            0,
            options["dim"],
            options["heads"],
            options["feedforward"],
            layers,
            layers,
            dropout,
            positions=options["positions"],
            shared_embeddings=options["shared"],
        )
    return RecurrentConfig(
        0,
        0,
        options["embed_dim"],
        options["hidden_dim"],
        layers,
        options["cell"],
        None if options["score"] == "none" else options["score"],
        options["input_feeding"],
        dropout,
    )


def about(run: Seq2SeqRun) -> str:
    """What is to be said of a new model besides its size."""
    return f"vocabularies {len(run.source)} and {len(run.target)}"


def show(run: Seq2SeqRun, examples: list[Any], directory: Path, console: Console) -> None:
    """Tell and draw what becomes of a few examples."""
    from rich.cells import cell_len, set_cell_size

    from regard.data.pair_columns import compose
    from regard.data.pairs import source_text
    from regard.look import alignments, save
    from regard.look.pictures.of_answers import means, weights_of
    from regard.tasks.seq2seq import Search

    answers = list(run.predict_units([example.source for example in examples], Search(weights=True)))
    # A TAB would put the answers out of line
    sources = [source_text(example.source, run.source_units).replace("\t", "  ") for example in examples]
    width = max(map(cell_len, sources))
    for source, example, answer in zip(sources, examples, answers, strict=True):
        found, wanted = answer.predictions[0].text, compose(run.target_units.join(example.target), run.normal)
        verdict = "" if found == wanted else f"   (data: {wanted})"
        console.print(f"  {set_cell_size(source, width)}  {found}{verdict}")
    if run.model.config.attends:
        save(alignments(means(weights_of(run, answers))), directory / "attention.png")
        console.print(f"what it looked at: {directory / 'attention.png'}")


def predict(run: Seq2SeqRun, file: str, options: dict[str, Any]) -> None:
    """An answer for each line."""
    from regard.data.pair_columns import compose
    from regard.data.pairs import source_text
    from regard.tasks.seq2seq import Search

    search = Search(options["beam"], options["n_best"], options["length_penalty"])
    tally = Tally()
    for answer in counted(_answers(run, file, search), "line"):
        tally.add(answer)
        if options["as_json"]:
            print(_json(answer, compose(source_text(answer.units, run.source_units), run.normal)))
        else:
            print(_row(answer, options["scores"]))
    tally.say(run.max_length)


def _answers(run: Seq2SeqRun, file: str, search: Search) -> Iterator[Answer]:
    from regard.data.lines import read_lines
    from regard.data.pairs import read_sources

    if file != "-" or not sys.stdin.isatty():
        yield from run.predict_units(read_sources(file, run.source_units, run.columns, run.normal), search)
        return
    features = " TAB its features" if "features" in run.columns else ""
    note(f"a source a line, in {run.source_units}{features}; Ctrl-D ends")
    for line in read_lines(file):  # one at a time: somebody waits for the answer
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
        {"source": source, "predictions": predictions, "unseen": answer.unseen, "cut": answer.cut}, ensure_ascii=False
    )


def look(run: Seq2SeqRun, texts: list[str], path: Path, options: dict[str, Any]) -> None:
    """Answer each text, and draw which units of it each unit of the answer attended to."""
    from regard.look import alignments, grid, save
    from regard.look.pictures.of_answers import head_grids, means, weights_of
    from regard.look.runs import watch_answer
    from regard.models import RecurrentConfig
    from regard.tasks.seq2seq import Search

    search = Search(options["beam"], options["n_best"], options["length_penalty"], weights=True)
    if not run.model.config.attends:
        raise ArgumentError(f"{options['run']}: this model has no attention to look at; train one without --score none")
    if options["heads"] and isinstance(run.model.config, RecurrentConfig):
        raise ArgumentError(f"{options['run']}: this model has one attention, with one head; leave --heads away")
    for text in texts:
        if not run.split(text):
            raise ArgumentError(f"expected texts with at least one unit (in {run.source_units}), got {text!r}")
    answers = list(run.predict(texts, search))
    tally = Tally()
    for text, answer in zip(texts, answers, strict=True):
        tally.add(answer)
        for prediction in answer.predictions:
            print(f"{text}\t{prediction.text}")
    tally.say(run.max_length)
    if path.suffix == ".html":
        record, tokens = watch_answer(run, answers[0])
        record.report(path, tokens=tokens, title=texts[0])
    else:
        shown = weights_of(run, answers)
        save(grid(head_grids(shown, named=len(texts) > 1)) if options["heads"] else alignments(means(shown)), path)
    print(path)
