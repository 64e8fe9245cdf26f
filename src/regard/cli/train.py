"""`regard train`: from a file of pairs, or from the CMU dictionary, to a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Exit, Option

from regard.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.training.data import Pairs
    from regard.training.module import Recipe
    from regard.training.run import Run

_INTERRUPTED = 130


def train(
    data: Annotated[
        Path | None, Argument(help="SOURCE TAB TARGET, a pair a line, plain or .gz; left out: English pronunciation")
    ] = None,
    dev: Annotated[
        Path | None, Option(help="pairs to choose the best model by; left out: some of DATA are set apart")
    ] = None,
    test: Annotated[Path | None, Option(help="pairs to score the best model on, once, at the end")] = None,
    out: Annotated[Path | None, Option(help="the run directory to make; left out: runs/NAME")] = None,
    resume: Annotated[
        Path | None, Option(help="go on with an interrupted run; everything else comes from it", metavar="RUN")
    ] = None,
    minutes: Annotated[float | None, Option(help="how long to train; left out, as --epochs: 2 minutes")] = None,
    epochs: Annotated[int | None, Option(help="how often to read the data, in place of --minutes")] = None,
    source_units: Annotated[str | None, Option(help="chars, words or a separator; left out: guessed")] = None,
    target_units: Annotated[str | None, Option(help="the same for the target")] = None,
    max_length: Annotated[int, Option(help="leave out pairs with more units on a side")] = 200,
    stress: Annotated[bool, Option("--stress", help="English pronunciation with stress marks (AH0, AH1)")] = False,
    score: Annotated[
        Literal["additive", "dot", "scaled_dot", "general", "none"], Option(help="how the decoder attends")
    ] = "additive",
    input_feeding: Annotated[
        bool, Option(help="let the context enter the recurrence (Bahdanau) or not (Luong)")
    ] = True,
    cell: Annotated[Literal["gru", "lstm"], Option(help="the recurrent cell")] = "gru",
    embed_dim: Annotated[int, Option(help="size of embeddings")] = 128,
    hidden_dim: Annotated[int, Option(help="size of states")] = 256,
    layers: Annotated[int, Option(help="layers of the encoder")] = 1,
    dropout: Annotated[float, Option(help="share of units dropped in training")] = 0.3,
    lr: Annotated[float, Option(help="highest learning rate")] = 2e-3,
    warmup: Annotated[int, Option(help="updates until it is reached")] = 200,
    batch_tokens: Annotated[int, Option(help="units of source and target in a batch, padding included")] = 1200,
    weight_decay: Annotated[float, Option(help="of AdamW")] = 0.01,
    label_smoothing: Annotated[float, Option(help="share of probability spread over all units")] = 0.1,
    patience: Annotated[int, Option(help="stop after so many dev scores, of 20, without a better one")] = 8,
    seed: Annotated[int, Option(help="of everything random")] = 0,
) -> None:
    """Train a model, keep the best one, and show what it learned.

    The run directory holds all that `predict`, `evaluate` and `look` need. Ctrl-C keeps the best model so far.
    """
    from rich.console import Console

    from regard.models import RecurrentConfig
    from regard.training.module import Recipe

    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    if resume is not None:
        if data is not None or out is not None:
            raise ArgumentError("--resume takes data and folder from the run; leave DATA and --out away")
        _resume(resume, console)
        return
    facts = {"data": _path(data), "dev": _path(dev), "test": _path(test), "stress": stress}
    units = {"source_units": source_units, "target_units": target_units, "max_length": max_length}
    if minutes is None and epochs is None:
        minutes = 2.0
    recipe = Recipe(
        minutes, epochs, lr, warmup, batch_tokens, weight_decay, label_smoothing, patience=patience, seed=seed
    )
    config = RecurrentConfig(
        0, 0, embed_dim, hidden_dim, layers, cell, None if score == "none" else score, input_feeding, dropout
    )
    _train_new(config, recipe, facts, units, out, console)


def _train_new(
    config: Any, recipe: Recipe, facts: dict[str, Any], units: dict[str, Any], out: Path | None, console: Console
) -> None:
    from regard.training.trainer import prepare

    directory = out or _free(Path("runs") / (Path(facts["data"]).name.split(".")[0] if facts["data"] else "english"))
    if (directory / "config.json").exists():
        raise RunError(
            f"{directory}: there is a run already; choose another --out, or go on with it: --resume {directory}"
        )
    splits = _load(facts, units, console)
    run = prepare(splits[0], config, recipe, max_length=units["max_length"], facts=facts)
    run.create(directory)
    _train(run, splits, recipe, directory, console, resume=False)


def _resume(directory: Path, console: Console) -> None:
    from regard.training.module import Recipe
    from regard.training.run import Run
    from regard.training.trainer import fingerprint

    run = Run.load(directory)
    if not (directory / "resume.ckpt").exists():
        raise RunError(
            f"{directory}: nothing to resume: training came to its end, or was stopped in its first epoch; train again"
        )
    facts = run.training
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
    _train(run, splits, Recipe(**facts["recipe"]), directory, console, resume=True)


def _train(
    run: Run,
    splits: tuple[Pairs, Pairs, Pairs | None],
    recipe: Recipe,
    directory: Path,
    console: Console,
    *,
    resume: bool,
) -> None:
    from regard.training.trainer import fit

    train, dev, test = splits
    length = f"{recipe.minutes:g} minutes" if recipe.minutes else f"{recipe.epochs} epochs"
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    console.print(
        f"training for {length}: {len(train):,} pairs, {parameters / 1e6:.2f} M parameters, "
        f"vocabularies {len(run.source)} and {len(run.target)}"
    )
    outcome = fit(run, train, dev, recipe, directory, console=console, resume=resume)
    console.print(f"best model in {directory}: dev {outcome.dev.text(run.unit_error)}")
    if outcome.signal is not None:
        again = f"; go on with: regard train --resume {directory}" if (directory / "resume.ckpt").exists() else ""
        console.print(f"stopped on request after {outcome.seconds:.0f} s; the best model so far is kept{again}")
        raise Exit(_INTERRUPTED)
    _show(run, outcome.dev.as_dict(), test, test or dev, directory, console)


def _show(
    run: Run, dev_scores: dict[str, float], test: Pairs | None, shown: Pairs, directory: Path, console: Console
) -> None:
    """Score the test set, and tell and draw what becomes of a handful of examples."""
    import json

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
    width = max(len(run.source_units.join(example.source)) for example in examples)
    for example, answer in zip(examples, answers, strict=True):
        found, wanted = answer.predictions[0].text, run.target_units.join(example.target)
        verdict = "" if found == wanted else f"   (data: {wanted})"
        console.print(f"  {run.source_units.join(example.source):{width}}  {found}{verdict}")
    if run.model.attention is not None:
        save(alignments(pictures(run, answers)), directory / "attention.png")
        console.print(f"what it looked at: {directory / 'attention.png'}")
    console.print(
        f'next: regard look {directory} "..."   regard predict {directory} FILE   regard evaluate {directory} FILE'
    )


def _handful(pairs: Pairs, count: int = 6) -> list[Any]:
    """A few examples, spread over the set, neither the shortest nor the longest."""
    ranked = sorted(pairs.examples, key=lambda example: len(example.source))
    middle = ranked[len(ranked) // 2 : max(len(ranked) // 2 + 1, len(ranked) * 19 // 20)]
    return middle[:: max(1, len(middle) // count)][:count]


def _load(facts: dict[str, Any], units: dict[str, Any], console: Console) -> tuple[Pairs, Pairs, Pairs | None]:
    """Training, dev and test pairs; what is to be said of them is said."""
    from regard.training import cmudict
    from regard.training.data import Units, read_pairs, split_off

    if facts["data"] is None:
        if facts["dev"] or facts["test"]:
            raise ArgumentError("--dev and --test go with DATA; English pronunciation has a split of its own")
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


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
