"""Words of the command line -> named files and numbers: the rules that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pusl_eval.files import InputError


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
