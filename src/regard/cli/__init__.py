"""The command line: train, predict, evaluate, look, export, recipes and bench.

Imports only the signal handling, so that Ctrl-C works as early as possible; `regard.cli.app` has the commands, and each
of them imports the rest when it runs.
"""

from __future__ import annotations

import io
import os
import signal
import sys

from regard.cli.signals import INTERRUPTED, Interrupted, handle_signals, interrupt
from regard.errors import RegardError

__all__ = ["FAILED", "main"]

FAILED = 1  # exit status


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted (SIGINT or SIGTERM).

    A failure prints one line on standard error; ``--debug`` prints the traceback.
    """
    handle_signals(interrupt)
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # data in, data out: UTF-8 whatever the locale, and \n alone
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
        code = _run(sys.argv[1:] if arguments is None else arguments)
    except Interrupted:
        code = _say("interrupted", INTERRUPTED)
    handle_signals(signal.SIG_IGN)  # the work is done
    sys.exit(code)


def _run(arguments: list[str]) -> int | str | None:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    arguments = [argument for argument in own if argument != "--debug"] + arguments[len(own) :]
    try:
        try:
            from regard.cli.app import run

            run(arguments, debug=debug)
        finally:
            _flush()  # here, where a full disk can still be reported
    except SystemExit as end:
        return end.code
    except BrokenPipeError:  # the reader, such as head, has enough
        return FAILED
    except Exception as error:
        if debug:
            raise
        return _say(_reason(error), FAILED)
    return 0


def _reason(error: Exception) -> str:
    """Return a description of the error in one line."""
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or str(error)).split(".")[0]
        text = f"error: the commands need {missing}, which is not installed: pip install 'regard[train]'"
    elif isinstance(error, RegardError):
        text = f"error: {error}"
    elif isinstance(error, OSError):
        text = f"error: cannot read or write {error.filename or 'the output'} ({error.strerror or error})"
    else:
        text = f"unexpected error, {type(error).__name__}: {error}; --debug shows where"
    return " ".join(text.splitlines())


def _say(text: str, code: int) -> int:
    print(f"regard: {text}", file=sys.stderr)
    return code


def _flush() -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:  # discard the rest: Python would try to write it again at exit, and complain
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        raise
