"""The command line: train, predict, evaluate, look. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer

from regard import __version__
from regard.cli.evaluate import evaluate
from regard.cli.look import look
from regard.cli.predict import predict
from regard.cli.train import train
from regard.errors import RegardError

__all__ = ["app", "main"]

app = typer.Typer(
    name="regard",
    help="Attention that you can see: train a sequence model, use it, and look at what it attends to.",
    epilog="Start with: regard train   (English pronunciation, two minutes). Any command takes --debug for tracebacks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, predict, evaluate, look):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Show the version and leave.")) -> None:
    if version:
        print(f"regard {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run one command; errors are one line on stderr, unless ``--debug`` asks for the traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(args=[argument for argument in arguments if argument != "--debug"], standalone_mode=True)
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("regard: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, RegardError):
            print(f"regard: error: {error}", file=sys.stderr)
        else:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"regard: unexpected error, {what}; --debug shows where", file=sys.stderr)
        sys.exit(1)


def _terminate(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt
