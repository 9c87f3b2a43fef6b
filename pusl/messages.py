"""What the library logs -> lines on stderr, for the command line and its worker processes.

The library speaks through `logging` (loggers below `pusl`) and never prints, so a program that imports it decides what
is shown. Warnings begin with `pusl: `, as the command line's errors do; information is shown as it is.
"""

from __future__ import annotations

import logging
import sys


class Lines(logging.Handler):
    """Writes to whatever stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """One message, one line."""
        before = "pusl: " if record.levelno >= logging.WARNING else ""
        print(f"{before}{record.getMessage()}", file=sys.stderr, flush=True)


def show_messages() -> None:
    """Shows the library's messages from now on; calling it again changes nothing."""
    logger = logging.getLogger("pusl")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, Lines) for handler in logger.handlers):
        logger.addHandler(Lines())
