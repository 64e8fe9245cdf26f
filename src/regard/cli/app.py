"""The commands as one program, and the layout of their help."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
from typer.core import TyperCommand

from regard import __version__
from regard.cli.bench import bench
from regard.cli.evaluate import evaluate
from regard.cli.export import export
from regard.cli.look import look
from regard.cli.predict import predict
from regard.cli.recipes import recipes
from regard.cli.train import train

__all__ = ["app", "run"]

app = typer.Typer(
    name="regard",
    help="Attention that you can see: train a sequence model, use it, and look at what it attends to.",
    epilog="Start with: regard train   (English pronunciation, two minutes).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command whose help groups its options by panel; Typer itself would import rich for that."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = record
                argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None) or ("Arguments" if argument else "Options")
                panels.setdefault(panel, []).append((name.split(" ")[0] if argument else name, text))
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)


for command in (train, predict, evaluate, look, export, recipes, bench):
    app.command(cls=_Command)(command)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks and warnings; works with any command."),
) -> None:
    # --debug is declared for the help only: main removes it wherever it stands
    if version:
        print(f"regard {__version__}")
        raise typer.Exit


def run(arguments: list[str], *, debug: bool = False) -> None:
    """Run one command; it ends with ``SystemExit``, or with the exception that made it fail."""
    if not debug and not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings of libraries, meant for developers
    app(args=arguments, prog_name="regard")
