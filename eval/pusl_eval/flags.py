"""Flags that several commands share -> one spelling, one meaning, the same words in every help text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pusl_eval.files import InputError

FORCE = "replace an existing output"
SEED = "seed of every random choice; the same seed gives the same result"
CUTS = "score the first K keyphrases: integers, mu or 2mu (μ is the mean number per training item)"

Arguments = Any  # a parser or one of its groups; argparse has no public type for both


MOST = 2**32 - 1  # of any integer flag: the largest seed that numpy takes, and more than any count of ours


def integer(least: int, most: int = MOST) -> Callable[[str], int]:
    """An argparse type: an integer from `least` to `most`.

    >>> integer(1)("3")
    3
    """

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} must be at least {least}")
        if number > most:
            raise argparse.ArgumentTypeError(f"{text[:20]} must be at most {most}")
        return number

    return convert


def add_force(parser: Arguments) -> None:
    """`--force`, without which no command overwrites a file."""
    parser.add_argument("--force", action="store_true", help=FORCE)


def add_seed(parser: Arguments) -> None:
    """`--seed N`."""
    parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help=f"{SEED} (default: 0)")


def add_cuts(parser: Arguments, note: str = "", **settings: Any) -> None:
    """`-k K ...` or `--k K ...`, for commands that score predictions at several depths."""
    parser.add_argument("-k", "--k", nargs="+", metavar="K", help=CUTS + note, **settings)


def named_files(given: Sequence[str], flag: str = "--predictions", kind: str = "FILE") -> dict[str, str]:
    """`NAME=FILE` or `FILE` (named by its stem) -> {name: file}.

    A path that exists, or with a slash before the equals sign, is a path and has no name of its own.

    >>> named_files(["pusl=out/a.jsonl", "out/svm.jsonl.gz", "runs/lr=0.1/b.jsonl"])
    {'pusl': 'out/a.jsonl', 'svm': 'out/svm.jsonl.gz', 'b': 'runs/lr=0.1/b.jsonl'}
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists() or "/" in name:
            name, path = Path(text).name.split(".")[0], text
        if not name or not path:
            raise InputError(f"{flag} {text}: expected {kind} or NAME={kind}")
        if name in found:
            raise InputError(f"{flag}: two systems are called {name!r}; write NAME={kind} with different names")
        found[name] = path
    return found


def parameters(given: str | Sequence[str], flag: str = "--propensity-parameters") -> dict[str, float]:
    """`a=0.55 b=1.5` -> {"a": 0.55, "b": 1.5}; commas separate too.

    >>> parameters(["a=0.55", "b=1.5"]) == parameters("a=0.55,b=1.5") == {"a": 0.55, "b": 1.5}
    True
    """
    found: dict[str, float] = {}
    for text in (given if isinstance(given, str) else " ".join(given)).replace(",", " ").split():
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise InputError(f"{flag} {text}: expected NAME=NUMBER, as in a=0.55 b=1.5")
        if name in found:
            raise InputError(f"{flag}: {name} is given twice")
        found[name] = number
    return found
