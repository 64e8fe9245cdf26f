"""What each task adds to the commands: the same functions, one module a task."""

from __future__ import annotations

from types import ModuleType

from regard.cli.tasks import classify, seq2seq, tag

__all__ = ["TASKS"]

TASKS: dict[str, ModuleType] = {"seq2seq": seq2seq, "tag": tag, "classify": classify}
