"""Flags that several commands share -> one spelling, one meaning, the same words in every help text.

The light package needs some of them too, so they are defined in `pusl_eval.flags`; the rest is here.
"""

from __future__ import annotations

from pusl.config import DEVICE, PRECISION, PRECISIONS, THREADS
from pusl_eval.columns import add_columns
from pusl_eval.flags import Arguments, add_cuts, add_force, add_seed, integer

__all__ = [
    "MODEL", "add_columns", "add_cuts", "add_device", "add_force", "add_k", "add_precision", "add_seed", "add_speed",
    "add_threads", "integer",
]  # fmt: skip


MODEL = "a folder made by `pusl train` or `pusl fuse`, or user/model[@revision] on the Hub"


def add_k(parser: Arguments, default: int | None = None) -> None:
    """`-k N` or `--k N`; required unless there is a default."""
    shown = "" if default is None else f" (default: {default})"
    parser.add_argument(
        "-k", "--k", type=integer(1), required=default is None, default=default, metavar="N",
        help="keyphrases per item" + shown,
    )  # fmt: skip


def add_threads(parser: Arguments, default: int | None = None) -> None:
    """`--threads N`."""
    shown = f" (default: {default or 'all cores'})"
    parser.add_argument("--threads", type=integer(1), default=default, metavar="N", help=THREADS + shown)


def add_device(parser: Arguments) -> None:
    """`--device NAME`."""
    parser.add_argument("--device", default="auto", metavar="NAME", help=f"{DEVICE} (default: auto)")


def add_precision(parser: Arguments) -> None:
    """`--precision NAME`."""
    parser.add_argument("--precision", choices=PRECISIONS, help=PRECISION)


def add_speed(parser: Arguments) -> None:
    """How a catalog is worked through: batches, device, precision, processes, threads, shards, progress."""
    parser.add_argument("--batch-size", type=integer(1), default=64, metavar="N", help="items per batch (default: 64)")
    add_device(parser)
    add_precision(parser)
    parser.add_argument(
        "--workers", type=integer(1), metavar="N", help="processes (default: by cores and memory, or one per GPU)"
    )
    add_threads(parser, default=1)
    parser.add_argument(
        "--shard-size",
        type=integer(1),
        metavar="N",
        help="items between two saves; a killed run repeats at most these (default: 512, or 128 for files up to 4 MiB)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
