"""The tasks in the commands: one module for each, and the defaults of its options.

A module has, for `regard train`: `read` (a file, with the task's own options as keywords), `MODELS` (kinds of model,
each with its options), `new` (a run), `describe` and `show_examples`, `EXAMPLE_NOUN` and `SCORING_NOTE`. For the other
commands: `predict` and `PREDICT_OPTIONS`, `score` and `EVALUATE_OPTIONS`, `draw`, `watch` and `LOOK_OPTIONS`. Libraries
are imported within functions, so that the help needs none of them.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from regard.cli.tasks import classify, seq2seq, tag
from regard.training.settings import training_defaults

__all__ = ["TASK_MODULES", "default_of", "options_of", "reading_options", "task_options"]

TASK_MODULES: dict[str, ModuleType] = {"seq2seq": seq2seq, "tag": tag, "classify": classify}


def reading_options(task: str) -> dict[str, Any]:
    """Return the options of a task's reader with their defaults."""
    parameters = inspect.signature(TASK_MODULES[task].read).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def options_of(task: str, model: str) -> dict[str, Any]:
    """Return the options that a task has with a kind of model, with their defaults."""
    return {**reading_options(task), **TASK_MODULES[task].MODELS[model], **training_defaults(task, model)}


def task_options() -> set[str]:
    """Return all options that depend on the task, whatever the task."""
    return {
        name for task, module in TASK_MODULES.items() for model in module.MODELS for name in options_of(task, model)
    }


def default_of(option: str) -> str:
    """Return the default of an option for a help text, and the tasks and models for which it differs.

    >>> default_of("weight_decay"), default_of("layers"), default_of("epochs")
    ('[default: 0.01]', '[default: 1; seq2seq transformer 3; tag 2]', '[default: tag 10; classify 8]')
    """
    values: dict[str, Any] = {}
    for task, module in TASK_MODULES.items():
        of_task = {model: options_of(task, model) for model in module.MODELS}
        of_task = {model: options[option] for model, options in of_task.items() if option in options}
        if len(set(of_task.values())) == 1:
            values[task] = next(iter(of_task.values()))
        else:
            values.update({f"{task} {model}": value for model, value in of_task.items()})
    if len(set(values.values())) == 1:
        return f"[default: {_text(next(iter(values.values())))}]"
    known = {name: value for name, value in values.items() if value is not None}
    first = next(iter(known))
    shown = [f"{name} {_text(value)}" for name, value in known.items()]
    if first.startswith("seq2seq") and len(known) == len(values):  # the first holds for all but these
        others = [f"{name} {_text(value)}" for name, value in known.items() if value != known[first]]
        shown = [_text(known[first]), *others]
    return f"[default: {'; '.join(shown)}]"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
