"""`regard train`: from a file of examples, or from the CMU dictionary, to a run directory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Option

from regard.cli.options import as_typed, it_or_them, on_command_line
from regard.cli.tasks import TASK_MODULES, default_of, options_of, reading_options, task_options
from regard.cli.tasks.seq2seq import MANY_PAIRS
from regard.cli.train_plan import LARGE_DATA, DataSources, TrainPlan
from regard.training.settings import TrainingSettings, training_defaults

if TYPE_CHECKING:
    from rich.console import Console

_data, _run, _model, _recurrent, _transformer, _training = (
    partial(Option, rich_help_panel=panel) for panel in ("Data", "Run", "Model", "Recurrent", "Transformer", "Training")
)


# As long as its list of options, which Typer reads off the signature
def train(
    context: Context,
    data: Annotated[
        Path | None,
        Argument(
            metavar="DATA",
            help="examples, plain or .gz, in one of the formats above  [default: English pronunciation]",
            rich_help_panel="Data",
        ),
    ] = None,
    task: Annotated[
        Literal["seq2seq", "tag", "classify"] | None,
        _data(metavar="NAME", help="seq2seq, tag or classify  [default: guessed]"),
    ] = None,
    dev: Annotated[
        Path | None,
        _data(metavar="FILE", help="examples to select the best model with  [default: a part of DATA, held out]"),
    ] = None,
    test: Annotated[
        Path | None, _data(metavar="FILE", help="examples to score the best model on, once, at the end")
    ] = None,
    columns: Annotated[
        str | None,
        _data(
            metavar="NAMES",
            help="names of the columns in order, such as source,features,target or text,label; _ skips a column; for "
            "JSON lines, the keys  [default: guessed]",
        ),
    ] = None,
    tag: Annotated[
        str | None,
        _data(
            metavar="COLUMN",
            help=f"column of CoNLL-U to predict: upos, xpos or a feature, such as Number  {default_of('tag')}",
        ),
    ] = None,
    units: Annotated[
        str | None,
        _data(
            metavar="UNITS",
            help="how to split texts into units: chars, words, subword or a separator  [default: guessed]",
        ),
    ] = None,
    source_units: Annotated[str | None, _data(metavar="UNITS", help="the same for sources only")] = None,
    target_units: Annotated[str | None, _data(metavar="UNITS", help="the same for targets only")] = None,
    subwords: Annotated[
        int | None, _data(metavar="N", help=f"size of a subword vocabulary  {default_of('subwords')}")
    ] = None,
    shared: Annotated[
        bool | None,
        _data("--shared", help="one vocabulary for both sides; in a transformer, one table of embeddings too"),
    ] = None,
    normalize: Annotated[
        Literal["nfc", "nfd", "none"] | None,
        _data(
            metavar="FORM",
            help=f"Unicode form of all input: nfc (composed), nfd (decomposed) or none  {default_of('normalize')}",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        _data(
            metavar="N",
            help="maximum number of units: pairs with more on a side are left out, texts to classify are cut  "
            f"{default_of('max_length')}",
        ),
    ] = None,
    on_disk: Annotated[
        bool,
        _data(
            "--on-disk", help=f"store examples on disk, not in memory; the default for DATA over {LARGE_DATA >> 20} MB"
        ),
    ] = False,
    stress: Annotated[bool, _data("--stress", help="English pronunciation with stress marks (AH0, AH1)")] = False,
    out: Annotated[Path | None, _run(metavar="RUN", help="run directory to create  [default: runs/NAME]")] = None,
    resume: Annotated[
        Path | None, _run(metavar="RUN", help="continue an interrupted run; takes no other options")
    ] = None,
    minutes: Annotated[
        float | None,
        _run(
            metavar="X",
            help="training time; increase it if the last dev score is still the best  " + default_of("minutes"),
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        _run(metavar="N", help=f"passes over the data, instead of --minutes  {default_of('epochs')}"),
    ] = None,
    seed: Annotated[int | None, _run(metavar="N", help=f"seed of all random numbers  {default_of('seed')}")] = None,
    model: Annotated[
        Literal["recurrent", "transformer", "none"],
        _model(metavar="NAME", help="recurrent, transformer, or none (to classify by words alone, without encoder)"),
    ] = "recurrent",
    layers: Annotated[
        int | None,
        _model(
            metavar="N",
            help="layers of the encoder, and of the decoder of a transformer  " + default_of("layers"),
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        _model(
            metavar="X",
            help=f"fraction of units dropped in training; 0 for {MANY_PAIRS:,} pairs or more  {default_of('dropout')}",
        ),
    ] = None,
    word_dropout: Annotated[
        float | None,
        _model(
            metavar="X",
            help=f"fraction of words hidden in training, for tagging and classification  {default_of('word_dropout')}",
        ),
    ] = None,
    score: Annotated[
        Literal["additive", "dot", "scaled_dot", "general", "none"] | None,
        _recurrent(
            metavar="NAME", help=f"additive, dot, scaled_dot, general, or none for no attention  {default_of('score')}"
        ),
    ] = None,
    input_feeding: Annotated[
        bool | None,
        _recurrent(
            show_default=False, help="feed the context into the recurrence (Bahdanau, the default) or not (Luong)"
        ),
    ] = None,
    cell: Annotated[
        Literal["gru", "lstm"] | None, _recurrent(metavar="NAME", help=f"gru or lstm  {default_of('cell')}")
    ] = None,
    embed_dim: Annotated[
        int | None, _recurrent(metavar="N", help=f"size of the embeddings  {default_of('embed_dim')}")
    ] = None,
    hidden_dim: Annotated[
        int | None,
        _recurrent(metavar="N", help=f"size of the hidden states, an even number  {default_of('hidden_dim')}"),
    ] = None,
    dim: Annotated[
        int | None,
        _transformer(
            metavar="N",
            help="size of embeddings and layers; for tagging and classification use --embed-dim and --hidden-dim  "
            f"{default_of('dim')}",
        ),
    ] = None,
    heads: Annotated[
        int | None,
        _transformer(metavar="N", help=f"attention heads per layer, and in every classifier  {default_of('heads')}"),
    ] = None,
    feedforward: Annotated[
        int | None, _transformer(metavar="N", help=f"size of the feed-forward layers  {default_of('feedforward')}")
    ] = None,
    positions: Annotated[
        Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"] | None,
        _transformer(metavar="NAME", help=f"sinusoidal, learned, rotary, alibi, t5 or shaw  {default_of('positions')}"),
    ] = None,
    learning_rate: Annotated[
        float | None, _training("--lr", metavar="X", help=f"peak learning rate  {default_of('learning_rate')}")
    ] = None,
    warmup: Annotated[
        int | None, _training(metavar="N", help=f"updates until the peak learning rate  {default_of('warmup')}")
    ] = None,
    batch_tokens: Annotated[
        int | None,
        _training(metavar="N", help=f"maximum of units in a batch, including padding  {default_of('batch_tokens')}"),
    ] = None,
    weight_decay: Annotated[
        float | None, _training(metavar="X", help=f"weight decay of AdamW  {default_of('weight_decay')}")
    ] = None,
    label_smoothing: Annotated[
        float | None,
        _training(
            metavar="X",
            help=f"share of the probability spread evenly over all units or labels  {default_of('label_smoothing')}",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        _training(
            metavar="N",
            help=f"stop after N consecutive dev scores (of {TrainingSettings.evaluations}) without a better one  "
            f"{default_of('patience')}",
        ),
    ] = None,
) -> None:
    """Train a model.

    \b
    Formats of DATA, one example per line:
      source TAB target              text to text: pronunciation, translation
      lemma TAB features TAB form    inflection; other orders with --columns
      CoNLL-U, or word TAB tag       tagging; a blank line ends a sentence
      text TAB label, JSON lines     classification

    Keeps the best model, scores it, and shows some answers with their attention. The run directory contains
    all that `predict`, `evaluate` and `look` need. Ctrl-C stops training and keeps the best model so far.
    """
    from rich.console import Console

    from regard.cli.train_run import resume as resume_run
    from regard.cli.train_run import start
    from regard.training.processes import process_group, rank

    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    given = on_command_line(context)
    _check(context, given)
    with process_group():
        console.quiet = rank() > 0  # one of several processes prints
        if resume is not None:
            resume_run(resume, console)
            return
        kind = task or _guess(None if data is None else str(data), columns, console)
        start(_plan(context, given, kind), console)


def _check(context: Context, given: set[str]) -> None:
    """Check that each option can have an effect, whatever the task; fail with wrong usage otherwise."""
    if "resume" in given and len(given) > 1:
        context.fail(f"--resume: takes all other options from the run; remove {as_typed(context, given - {'resume'})}")
    if {"data", "stress"} <= given:
        context.fail("--stress: applies only to English pronunciation; remove --stress or DATA")
    panels = {one.name: getattr(one, "rich_help_panel", None) for one in context.command.params}
    about_data = {name for name in given if panels[name] == "Data"} - {"stress"}
    if "data" not in given and about_data:
        context.fail(
            f"{as_typed(context, about_data)}: expected DATA, got none; "
            "the only such option for English pronunciation is --stress"
        )
    minutes, seed = context.params["minutes"], context.params["seed"]
    if minutes is not None and not math.isfinite(minutes):
        context.fail(f"--minutes: expected a finite number, got {minutes}; Ctrl-C stops training at any time")
    if seed is not None and not 0 <= seed < 2**32:
        context.fail(f"--seed: expected a number from 0 to {2**32 - 1}, got {seed}")


def _guess(data: str | None, columns: str | None, console: Console) -> str:
    from regard.data.task_guess import guess_task

    if data is None:
        return "seq2seq"
    task, reason = guess_task(data, columns)
    if reason:
        console.print(f"task: {task} (guessed: {reason}); --task chooses another")
    return task


def _plan(context: Context, given: set[str], task: str) -> TrainPlan:
    """Return the options sorted by purpose; fail with wrong usage if one has no effect on this task and model."""
    models = TASK_MODULES[task].MODELS
    model = context.params["model"]
    if model not in models:
        context.fail(f"--model: expected {' or '.join(models)} for the task {task}, got {model}")
    if "subwords" in given and "subword" not in (context.params[f"{side}units"] for side in ("", "source_", "target_")):
        context.fail("--subwords: applies only with --units subword; remove it, or add --units subword")
    options = options_of(task, model)
    for other in models:
        wrong = given & (options_of(task, other).keys() - options.keys())
        if wrong:
            context.fail(
                f"{as_typed(context, wrong)}: expected --model {other}, got {model}; "
                f"remove {it_or_them(wrong)}, or choose that model"
            )
    wrong = given & (task_options() - options.keys())
    if wrong:
        context.fail(
            f"{as_typed(context, wrong)}: no effect on the task {task}; "
            f"remove {it_or_them(wrong)}, or choose another --task"
        )

    def chosen(names: Iterable[str]) -> dict[str, Any]:
        return {name: context.params[name] for name in names if name in given}

    paths: dict[str, Any] = {name: str(path) for name, path in chosen(("data", "dev", "test")).items()}
    return TrainPlan(
        task,
        model,
        DataSources(**paths, **chosen(("stress", "on_disk"))),
        {**reading_options(task), **chosen(reading_options(task))},
        chosen(models[model]),
        TrainingSettings.for_task(task, model, **chosen(training_defaults(task, model))),
        context.params["out"],
    )
