"""Flags that several commands share -> one spelling, one meaning, the same words in every help text.

The light package needs some of them too, so they are defined in `pusl_eval.flags`; the rest is here.
"""

from __future__ import annotations

from pusl.config import DEVICE, THREADS, add_flags
from pusl.examples import Columns
from pusl_eval.flags import Arguments, add_cuts, add_force, add_seed, integer

__all__ = ["add_columns", "add_cuts", "add_device", "add_force", "add_k", "add_seed", "add_threads", "integer"]


def add_k(parser: Arguments, default: int | None = None) -> None:
    """`-k N` or `--k N`; required unless there is a default."""
    shown = "" if default is None else f" (default: {default})"
    parser.add_argument(
        "-k", "--k", type=integer(1), required=default is None, default=default, metavar="N",
        help="keyphrases per item" + shown,
    )  # fmt: skip


def add_threads(parser: Arguments, default: int | None = None) -> None:
    """`--threads N`."""
    shown = "" if default is None else f" (default: {default})"
    parser.add_argument("--threads", type=integer(1), default=default, metavar="N", help=THREADS + shown)


def add_device(parser: Arguments) -> None:
    """`--device NAME`."""
    parser.add_argument("--device", default="auto", metavar="NAME", help=f"{DEVICE} (default: auto)")


def add_columns(parser: Arguments, skip: tuple[str, ...] = ()) -> None:
    """The names of the columns of a table and how its cells are read."""
    add_flags(parser.add_argument_group("columns"), Columns, skip=skip)
