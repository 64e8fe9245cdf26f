"""`regard train`: from a file of examples, or from the CMU dictionary, to a run directory."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Option

from regard.cli.options import spelt
from regard.cli.tasks import TASKS

if TYPE_CHECKING:
    from rich.console import Console

    from regard.training.settings import TrainingSettings

_UNITS = ("units", "source_units", "target_units")
_OF_ALL = {  # options of every task
    "data", "dev", "test", "task", "stress", "out", "resume", "minutes", "epochs", "seed", "model", "patience",
    "on_disk",
}  # fmt: skip
_ABOUT_DATA = {  # options that nothing but DATA needs
    "task", "columns", "tag", *_UNITS, "subwords", "shared", "normalize",
    "dev", "test", "max_length", "on_disk",
}  # fmt: skip
_data, _run, _model, _recurrent, _transformer, _training = (
    partial(Option, rich_help_panel=panel) for panel in ("Data", "Run", "Model", "Recurrent", "Transformer", "Training")
)


# As long as it has options: Typer reads them off the signature
def train(
    context: Context,
    data: Annotated[
        Path | None,
        Argument(
            metavar="DATA",
            help="examples, plain or .gz: see the formats above; left out: English pronunciation",
            rich_help_panel="Data",
        ),
    ] = None,
    task: Annotated[
        Literal["seq2seq", "tag", "classify"] | None,
        _data(metavar="NAME", help="seq2seq, tag or classify; left out: guessed"),
    ] = None,
    dev: Annotated[
        Path | None,
        _data(metavar="FILE", help="examples to choose the best model by; left out: some of DATA are set apart"),
    ] = None,
    test: Annotated[
        Path | None, _data(metavar="FILE", help="examples to score the best model on, once, at the end")
    ] = None,
    columns: Annotated[
        str | None,
        _data(
            metavar="NAMES",
            help="what the columns are, in order: source,features,target or text,label; _ for one to ignore; of JSON "
            "lines the keys; left out: guessed",
        ),
    ] = None,
    tag: Annotated[
        str | None,
        _data(metavar="COLUMN", help="what to tag in CoNLL-U: upos, xpos or a feature, such as Number; left out: upos"),
    ] = None,
    units: Annotated[
        str | None,
        _data(metavar="UNITS", help="what texts are cut into: chars, words, subword or a separator; left out: guessed"),
    ] = None,
    source_units: Annotated[str | None, _data(metavar="UNITS", help="the same for the source alone")] = None,
    target_units: Annotated[str | None, _data(metavar="UNITS", help="the same for the target alone")] = None,
    subwords: Annotated[int | None, _data(metavar="N", help="how many subwords; left out: 8000")] = None,
    shared: Annotated[
        bool | None, _data("--shared", help="one vocabulary for both sides; in a transformer one table of embeddings")
    ] = None,
    normalize: Annotated[
        Literal["nfc", "nfd", "none"] | None,
        _data(metavar="FORM", help="Unicode: compose (nfc) or decompose (nfd) what is read; left out: none"),
    ] = None,
    max_length: Annotated[
        int | None,
        _data(
            metavar="N",
            help="leave out pairs with more units than this on a side, 200; cut texts to classify at it, 400",
        ),
    ] = None,
    on_disk: Annotated[
        bool, _data("--on-disk", help="keep examples on disk, not in memory; by itself from 256 MB of DATA on")
    ] = False,
    stress: Annotated[bool, _data("--stress", help="English pronunciation with stress marks (AH0, AH1)")] = False,
    out: Annotated[Path | None, _run(metavar="RUN", help="the run directory to make; left out: runs/NAME")] = None,
    resume: Annotated[
        Path | None,
        _run(metavar="RUN", help="go on with an interrupted run; all other options come from it"),
    ] = None,
    minutes: Annotated[float | None, _run(metavar="X", help="how long to train; left out: 2, or --epochs")] = None,
    epochs: Annotated[
        int | None,
        _run(metavar="N", help="how often to read the data, in place of --minutes; left out: to tag 10, to classify 8"),
    ] = None,
    seed: Annotated[int, _run(metavar="N", help="of everything random")] = 0,
    model: Annotated[
        Literal["recurrent", "transformer", "none"] | None,
        _model(
            metavar="NAME",
            help="recurrent or transformer; none: the words of a text alone, to classify; left out: recurrent",
        ),
    ] = None,
    layers: Annotated[
        int | None,
        _model(metavar="N", help="of the encoder, 1, to tag 2; of a transformer's encoder and decoder, 3"),
    ] = None,
    dropout: Annotated[
        float | None,
        _model(
            metavar="X",
            help="share of units dropped in training; left out: 0.3, of a transformer 0.1, with 50,000 pairs none; "
            "to tag 0.45, to classify 0.5",
        ),
    ] = None,
    word_dropout: Annotated[
        float | None,
        _model(metavar="X", help="how often training hides a word, to tag and to classify; left out: 0.2 and 0.1"),
    ] = None,
    score: Annotated[
        Literal["additive", "dot", "scaled_dot", "general", "none"] | None,
        _recurrent(metavar="NAME", help="additive (left out), dot, scaled_dot, general, or none (no attention)"),
    ] = None,
    input_feeding: Annotated[
        bool | None,
        _recurrent(
            show_default=False, help="let the context enter the recurrence (Bahdanau; so by default) or not (Luong)"
        ),
    ] = None,
    cell: Annotated[
        Literal["gru", "lstm"] | None, _recurrent(metavar="NAME", help="the recurrence, gru (left out) or lstm")
    ] = None,
    embed_dim: Annotated[
        int | None, _recurrent(metavar="N", help="size of the embeddings; left out: 128, to classify 64")
    ] = None,
    hidden_dim: Annotated[
        int | None,
        _recurrent(metavar="N", help="size of the states, an even number; left out: 256, to tag 400, to classify 128"),
    ] = None,
    dim: Annotated[
        int | None,
        _transformer(
            metavar="N",
            help="size of embeddings and layers; left out: 128; to tag and to classify --embed-dim and --hidden-dim",
        ),
    ] = None,
    heads: Annotated[
        int | None,
        _transformer(metavar="N", help="attentions side by side in a layer, and in all classifiers; left out: 4"),
    ] = None,
    feedforward: Annotated[
        int | None, _transformer(metavar="N", help="size within the feed-forward layers; left out: 256")
    ] = None,
    positions: Annotated[
        Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"] | None,
        _transformer(metavar="NAME", help="sinusoidal (left out), learned, rotary, alibi, t5 or shaw"),
    ] = None,
    lr: Annotated[float | None, _training(metavar="X", help="highest learning rate; left out: 0.003")] = None,
    warmup: Annotated[
        int | None,
        _training(
            metavar="N",
            help="updates until it is reached; left out: 200, of pairs by a transformer 300, to classify 100",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        _training(
            metavar="N", help="units in a batch, both sides and padding; left out: 1200, to tag 500, to classify 600"
        ),
    ] = None,
    weight_decay: Annotated[float | None, _training(metavar="X", help="of AdamW; left out: 0.01")] = None,
    label_smoothing: Annotated[
        float | None,
        _training(metavar="X", help="share of probability spread over all units; left out: 0.05, to classify 0.1"),
    ] = None,
    patience: Annotated[
        int, _training(metavar="N", help="stop after so many dev scores, of 12, without a better one")
    ] = 6,
) -> None:
    """Train a model.

    \b
    What DATA may be, a line each:
      source TAB target              texts to texts: pronunciation, translation
      lemma TAB features TAB form    inflection; other orders with --columns
      CoNLL-U, or word TAB tag       tags; a blank line ends a sentence
      text TAB label, JSON lines     classes of texts

    Keeps the best model, scores it, and shows what it does and looks at. The run directory holds all that `predict`,
    `evaluate` and `look` need. Ctrl-C ends training and keeps the best model so far.
    """
    from rich.console import Console

    from regard.cli.train_run import begin
    from regard.cli.train_run import resume as go_on
    from regard.training.processes import process_group, rank

    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    given = {name for name, value in context.params.items() if _given(context, name)}
    _check(context, given)
    with process_group():
        console.quiet = rank() > 0  # one of several processes speaks
        if resume is not None:
            go_on(resume, console)
            return
        kind = task or _guess(data, columns, console)
        options = _options(context, given, kind)
        begin(kind, options, _recipe(options, kind), console)


def _given(context: Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check(context: Context, given: set[str]) -> None:
    """Refuse what can have no effect, whatever the task."""
    if "resume" in given and len(given) > 1:
        context.fail(f"--resume takes everything from the run; leave away {_spelt(given - {'resume'})}")
    if "data" in given and "stress" in given:
        context.fail("--stress is for English pronunciation; leave it away, or DATA")
    if "data" not in given and given & _ABOUT_DATA:
        context.fail(f"{_spelt(given & _ABOUT_DATA)}: only with DATA; English pronunciation is split and cut already")
    minutes, seed = context.params["minutes"], context.params["seed"]
    if minutes is not None and not math.isfinite(minutes):
        context.fail(f"--minutes: expected a number, got {minutes}; Ctrl-C ends training at any time")
    if not 0 <= seed < 2**32:
        context.fail(f"--seed: expected a number from 0 to {2**32 - 1}, got {seed}")


def _guess(data: Path | None, columns: str | None, console: Console) -> str:
    from regard.data.task_guess import guess_task

    if data is None:
        return "seq2seq"
    task, reason = guess_task(data, columns)
    if reason:
        console.print(f"task: {task} ({reason}); --task says otherwise")
    return task


def _options(context: Context, given: set[str], task: str) -> dict[str, Any]:
    """The options of a task, with what they are when left out; those that would have no effect are refused."""
    models = TASKS[task].MODELS
    model = context.params["model"] or next(iter(models))
    if model not in models:
        context.fail(f"--model {model}: not for the task {task}; choose {' or '.join(models)}")
    if "subwords" in given and "subword" not in (context.params[name] for name in _UNITS):
        context.fail("--subwords: only with --units subword")
    left_out = {**TASKS[task].OPTIONS, **models[model], "model": model}
    for other, names in models.items():
        wrong = given & (names.keys() - left_out.keys())
        if wrong:
            context.fail(f"{_spelt(wrong)}: only with --model {other}, and this is {model}")
    wrong = given - left_out.keys() - _OF_ALL
    if wrong:
        context.fail(f"{_spelt(wrong)}: not for the task {task}; leave it away, or choose another --task")
    kept = {name: value for name, value in context.params.items() if name in _OF_ALL or name in given}
    return {**left_out, **kept, "model": model}


def _recipe(options: dict[str, Any], task: str) -> TrainingSettings:
    from regard.training.settings import TrainingSettings

    length = {name: options[name] for name in ("minutes", "epochs")}
    if length == {"minutes": None, "epochs": None}:
        length = TASKS[task].LENGTH
    return TrainingSettings(
        length.get("minutes"),
        length.get("epochs"),
        options["lr"],
        options["warmup"],
        options["batch_tokens"],
        options["weight_decay"],
        options["label_smoothing"],
        patience=options["patience"],
        seed=options["seed"],
    )


def _spelt(names: set[str]) -> str:
    return ", ".join(sorted(map(spelt, names)))
