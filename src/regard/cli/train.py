"""`regard train`: from a file of pairs, or from the CMU dictionary, to a run directory."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Exit, Option

from regard.cli import INTERRUPTED, Interrupted
from regard.errors import RunError
from regard.training.wording import count

if TYPE_CHECKING:
    from rich.console import Console

    from regard.models import Config
    from regard.training.data import Pairs
    from regard.training.module import Recipe
    from regard.training.run import Run

_MANY = 50_000  # pairs that two minutes do not wear out: there dropout takes more than it gives
_LEFT_OUT: dict[str, dict[str, Any]] = {  # what options are when left out; dropout with few pairs and with many
    "recurrent": {"layers": 1, "dropout": (0.3, 0.0), "warmup": 200},
    "transformer": {"layers": 3, "dropout": (0.1, 0.0), "warmup": 300},
}
_OF_MODEL = {  # options that have no effect with another model
    "recurrent": {"score", "input_feeding", "cell", "embed_dim", "hidden_dim"},
    "transformer": {"dim", "heads", "feedforward", "positions"},
}
_ABOUT_DATA = {"dev", "test", "source_units", "target_units", "max_length"}  # options that nothing but DATA needs
_FACTS = ("data", "dev", "test", "stress", "fingerprint")  # what a run remembers of its data
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
            help="source TAB target, a pair a line, plain or .gz; left out: English pronunciation",
            rich_help_panel="Data",
        ),
    ] = None,
    dev: Annotated[
        Path | None,
        _data(metavar="FILE", help="pairs to choose the best model by; left out: some of DATA are set apart"),
    ] = None,
    test: Annotated[
        Path | None, _data(metavar="FILE", help="pairs to score the best model on, once, at the end")
    ] = None,
    source_units: Annotated[
        str | None, _data(metavar="UNITS", help="chars, words or a separator; left out: guessed")
    ] = None,
    target_units: Annotated[str | None, _data(metavar="UNITS", help="the same for the target")] = None,
    max_length: Annotated[int, _data(metavar="N", help="leave out pairs with more units than this on a side")] = 200,
    stress: Annotated[bool, _data("--stress", help="English pronunciation with stress marks (AH0, AH1)")] = False,
    out: Annotated[Path | None, _run(metavar="RUN", help="the run directory to make; left out: runs/NAME")] = None,
    resume: Annotated[
        Path | None,
        _run(metavar="RUN", help="go on with an interrupted run; all other options come from it"),
    ] = None,
    minutes: Annotated[
        float | None, _run(metavar="X", help="how long to train; 2 when --epochs is left out, too")
    ] = None,
    epochs: Annotated[int | None, _run(metavar="N", help="how often to read the data, in place of --minutes")] = None,
    seed: Annotated[int, _run(metavar="N", help="of everything random")] = 0,
    model: Annotated[
        Literal["recurrent", "transformer"], _model(metavar="NAME", help="recurrent or transformer")
    ] = "recurrent",
    layers: Annotated[
        int | None,
        _model(metavar="N", help="of the encoder, 1; of a transformer's encoder and decoder, 3"),
    ] = None,
    dropout: Annotated[
        float | None,
        _model(
            metavar="X",
            help="share of units dropped in training; left out: 0.3, of a transformer 0.1, with 50,000 pairs none",
        ),
    ] = None,
    score: Annotated[
        Literal["additive", "dot", "scaled_dot", "general", "none"],
        _recurrent(metavar="NAME", help="additive, dot, scaled_dot, general, or none (no attention)"),
    ] = "additive",
    input_feeding: Annotated[
        bool,
        _recurrent(
            show_default=False, help="let the context enter the recurrence (Bahdanau; so by default) or not (Luong)"
        ),
    ] = True,
    cell: Annotated[Literal["gru", "lstm"], _recurrent(metavar="NAME", help="the recurrence, gru or lstm")] = "gru",
    embed_dim: Annotated[int, _recurrent(metavar="N", help="size of the embeddings")] = 128,
    hidden_dim: Annotated[int, _recurrent(metavar="N", help="size of the states, an even number")] = 256,
    dim: Annotated[int, _transformer(metavar="N", help="size of embeddings and layers")] = 128,
    heads: Annotated[int, _transformer(metavar="N", help="attentions side by side in a layer")] = 4,
    feedforward: Annotated[int, _transformer(metavar="N", help="size within the feed-forward layers")] = 256,
    positions: Annotated[
        Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"],
        _transformer(metavar="NAME", help="sinusoidal, learned, rotary, alibi, t5 or shaw"),
    ] = "sinusoidal",
    lr: Annotated[float, _training(metavar="X", help="highest learning rate")] = 3e-3,
    warmup: Annotated[
        int | None, _training(metavar="N", help="updates until it is reached; left out: 200, of a transformer 300")
    ] = None,
    batch_tokens: Annotated[int, _training(metavar="N", help="units in a batch, both sides and padding")] = 1200,
    weight_decay: Annotated[float, _training(metavar="X", help="of AdamW")] = 0.01,
    label_smoothing: Annotated[float, _training(metavar="X", help="share of probability spread over all units")] = 0.05,
    patience: Annotated[
        int, _training(metavar="N", help="stop after so many dev scores, of 12, without a better one")
    ] = 6,
) -> None:
    """Train a model.

    Keeps the best model, scores it, and shows what it does and looks at. The run directory holds all that `predict`,
    `evaluate` and `look` need. Ctrl-C ends training and keeps the best model so far.
    """
    from rich.console import Console

    from regard.training.module import Recipe

    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    _check(context)
    if resume is not None:
        _resume(resume, console)
        return
    facts = {"data": _path(data), "dev": _path(dev), "test": _path(test), "stress": stress}
    units = {"source_units": source_units, "target_units": target_units, "max_length": max_length}
    if minutes is None and epochs is None:
        minutes = 2.0
    options = {**context.params, **{k: v for k, v in _LEFT_OUT[model].items() if context.params[k] is None}}
    recipe = Recipe(
        minutes,
        epochs,
        lr,
        options["warmup"],
        batch_tokens,
        weight_decay,
        label_smoothing,
        patience=patience,
        seed=seed,
    )
    _train_new(_config(options), dropout, recipe, facts, units, out, console)


def _config(options: dict[str, Any]) -> Config:
    """The model that the options describe, its vocabularies aside."""
    from regard.models import RecurrentConfig, TransformerConfig

    layers = options["layers"]
    if options["model"] == "transformer":
        return TransformerConfig(
            0,
            0,
            options["dim"],
            options["heads"],
            options["feedforward"],
            layers,
            layers,
            positions=options["positions"],
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
    )


def _check(context: Context) -> None:
    """Refuse options that would have no effect beside others."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}

    def spelt(names: set[str]) -> str:
        return ", ".join(sorted("DATA" if name == "data" else f"--{name.replace('_', '-')}" for name in names))

    if "resume" in given and len(given) > 1:
        context.fail(f"--resume takes everything from the run; leave away {spelt(given - {'resume'})}")
    if "data" in given and "stress" in given:
        context.fail("--stress is for English pronunciation; leave it away, or DATA")
    if "data" not in given and given & _ABOUT_DATA:
        context.fail(f"{spelt(given & _ABOUT_DATA)}: only with DATA; English pronunciation is split and cut already")
    model = context.params["model"]
    for other, names in _OF_MODEL.items():
        if other != model and given & names:
            context.fail(f"{spelt(given & names)}: only with --model {other}, and this is {model}")
    minutes, seed = context.params["minutes"], context.params["seed"]
    if minutes is not None and not math.isfinite(minutes):
        context.fail(f"--minutes: expected a number, got {minutes}; Ctrl-C ends training at any time")
    if not 0 <= seed < 2**32:
        context.fail(f"--seed: expected a number from 0 to {2**32 - 1}, got {seed}")


def _train_new(
    config: Config,
    dropout: float | None,
    recipe: Recipe,
    facts: dict[str, Any],
    units: dict[str, Any],
    out: Path | None,
    console: Console,
) -> None:
    from regard.training.trainer import prepare

    directory = out or _free(Path("runs") / _stem(facts["data"]))
    if (directory / "config.json").exists():
        resumable = (directory / "resume.ckpt").exists()
        remedy = f"go on with it: {_resuming(directory)}" if resumable else "delete it first"
        raise RunError(f"{directory}: there is a run already; choose another --out, or {remedy}")
    splits = _load(facts, units, console)
    if dropout is None:
        dropout = _LEFT_OUT[config.kind]["dropout"][len(splits[0]) >= _MANY]
    located = {name: _absolute(value) if name in ("data", "dev", "test") else value for name, value in facts.items()}
    run = prepare(splits[0], replace(config, dropout=dropout), recipe, max_length=units["max_length"], facts=located)
    run.create(directory)
    _fit(run, splits, recipe, directory, console, resume=False)


def _resume(directory: Path, console: Console) -> None:
    from regard.training.module import Recipe
    from regard.training.run import Run
    from regard.training.trainer import fingerprint

    run = Run.load(directory, trained=False)
    if not (directory / "resume.ckpt").exists():
        raise RunError(
            f"{directory}: nothing to resume: training came to its end, or was stopped in its first epoch; train again"
        )
    try:
        facts, recipe = {name: run.training[name] for name in _FACTS}, Recipe(**run.training["recipe"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{directory}: config.json does not tell how it was trained (no {error}); train anew") from error
    units = {
        "source_units": run.source_units.name,
        "target_units": run.target_units.name,
        "max_length": run.max_length,
    }
    splits = _load(facts, units, console)
    if fingerprint(splits[0].examples) != facts["fingerprint"]:
        raise RunError(
            f"{directory}: the training data are not those that training began with; restore them, or train anew"
        )
    _fit(run, splits, recipe, directory, console, resume=True)


def _fit(
    run: Run,
    splits: tuple[Pairs, Pairs, Pairs | None],
    recipe: Recipe,
    directory: Path,
    console: Console,
    *,
    resume: bool,
) -> None:
    from regard.training.data import unseen_notes
    from regard.training.trainer import fit

    train, dev, test = splits
    for note in (note for pairs in (dev, test) if pairs for note in unseen_notes(pairs, run.source, run.target)):
        console.print(note)
    length = f"{recipe.minutes:g} min" if recipe.epochs is None else count(recipe.epochs, "epoch")
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    console.print(
        f"training for {length}: {count(len(train), 'pair')}, {parameters / 1e6:.2f} M parameters, "
        f"vocabularies {len(run.source)} and {len(run.target)}"
    )
    try:
        outcome = fit(run, train, dev, recipe, directory, console=console, resume=resume)
    except KeyboardInterrupt:  # a second signal
        raise Interrupted from None
    console.print(f"best model in {directory}: dev {outcome.dev.text(run.unit_error)}")
    if outcome.signal is not None:
        again = f"; go on with: {_resuming(directory)}" if (directory / "resume.ckpt").exists() else ""
        console.print(f"stopped on request after {outcome.seconds:.0f} s; the best model so far is kept{again}")
        raise Exit(INTERRUPTED)
    _show(run, outcome.dev.as_dict(), test, test or dev, directory, console)


def _show(
    run: Run, dev_scores: dict[str, float], test: Pairs | None, shown: Pairs, directory: Path, console: Console
) -> None:
    """Score the test set, and tell and draw what becomes of a handful of examples."""
    import json

    from rich.cells import cell_len, set_cell_size

    from regard.look import alignments, save
    from regard.look.answers import pictures
    from regard.training.files import write
    from regard.training.run import Search

    scores = {"dev": dev_scores}
    if test is not None:
        result = run.score(test.examples)
        console.print(f"test ({test.name}, beam 5): {result.text(run.unit_error)}")
        scores["test"] = result.as_dict()
    text = json.dumps(scores, indent=2) + "\n"
    write(directory / "scores.json", lambda path: path.write_text(text, encoding="utf-8"))
    examples = _handful(shown)
    answers = list(run.predict_units([example.source for example in examples], Search(weights=True)))
    sources = [run.source_units.join(example.source) for example in examples]
    width = max(map(cell_len, sources))
    for source, example, answer in zip(sources, examples, answers, strict=True):
        found, wanted = answer.predictions[0].text, run.target_units.join(example.target)
        verdict = "" if found == wanted else f"   (data: {wanted})"
        console.print(f"  {set_cell_size(source, width)}  {found}{verdict}")
    if run.model.config.attends:
        save(alignments(pictures(run, answers)), directory / "attention.png")
        console.print(f"what it looked at: {directory / 'attention.png'}")
    name = shlex.quote(str(directory))
    console.print(f'next: regard look {name} "..."   regard predict {name} FILE   regard evaluate {name} FILE')


def _handful(pairs: Pairs, count: int = 6) -> list[Any]:
    """A few examples, spread over the set, neither the shortest nor the longest; all of a set that has but a few."""
    ranked = sorted(pairs.examples, key=lambda example: len(example.source))
    if len(ranked) <= count:
        return ranked
    middle = ranked[len(ranked) // 2 : max(len(ranked) // 2 + 1, len(ranked) * 19 // 20)]
    return middle[:: max(1, len(middle) // count)][:count]


def _load(facts: dict[str, Any], units: dict[str, Any], console: Console) -> tuple[Pairs, Pairs, Pairs | None]:
    """Training, dev and test pairs; what is to be said of them is said."""
    from regard.training import cmudict
    from regard.training.data import Units, read_pairs, split_off

    if facts["data"] is None:
        splits: tuple[Pairs, Pairs, Pairs | None] = cmudict.load(stress=facts["stress"])
    else:
        sides = [None if units[side] is None else Units(units[side]) for side in ("source_units", "target_units")]
        train = read_pairs(facts["data"], *sides, max_length=units["max_length"])

        def read(path: str) -> Pairs:
            return read_pairs(path, train.source_units, train.target_units, max_length=units["max_length"])

        test = read(facts["test"]) if facts["test"] else None
        train, dev = (train, read(facts["dev"])) if facts["dev"] else split_off(train)
        splits = (train, dev, test)
    for pairs in splits:
        for note in pairs.notes if pairs else ():
            console.print(note)
    return splits


def _free(path: Path) -> Path:
    """``path``, or the first of path-2, path-3, ... that does not exist yet."""
    number = 1
    while (candidate := path if number == 1 else path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return candidate


def _resuming(directory: Path) -> str:
    return f"regard train --resume {shlex.quote(str(directory))}"


def _stem(data: str | None) -> str:
    """What a run on this file is called."""
    return "english" if data is None else Path(data).name.lstrip("-.").split(".")[0] or "data"


def _absolute(path: str | None) -> str | None:
    """``path`` as it reads from any folder, so that training can be resumed from another; - is standard input."""
    return path if path is None or path == "-" else os.path.abspath(path)


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
