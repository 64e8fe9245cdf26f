"""Handling of Ctrl-C and SIGTERM, from the first moment of a command on."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

__all__ = ["INTERRUPTED", "Interrupted", "handle_signals", "interrupt"]

INTERRUPTED = 130  # exit status


class Interrupted(BaseException):
    """A request to exit. Not a ``KeyboardInterrupt``, which Typer and Lightning handle themselves."""


def handle_signals(handler: Any) -> None:
    """Set one handler for SIGINT and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def interrupt(_: int, frame: FrameType | None) -> None:
    """Unwind the stack; at a second signal, or during an import, which could swallow the exception, exit at once."""
    handle_signals(_leave)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave()
        frame = frame.f_back
    raise Interrupted


def _leave(*_: object) -> None:
    os.write(2, b"regard: interrupted\n")
    os._exit(INTERRUPTED)
