"""What a caller gives -> a list of texts, and numbers within bounds; anything else is one line that names it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pusl_eval.files import InputError

MOST_KEYPHRASES = 1000
MOST_BEAMS_ASKED = 1000
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 100.0


def text_list(texts: Any, name: str = "texts", start: int = 0) -> list[str]:
    """One string, or any column of strings, as a list in the same order.

    Lists, tuples, iterators, NumPy arrays, and columns of pandas, polars, pyarrow and `datasets`.

    >>> text_list("a red drone"), text_list(iter(["a", "b"]))
    (['a red drone'], ['a', 'b'])
    >>> text_list(["a", None])
    Traceback (most recent call last):
    pusl_eval.errors.InputError: texts[1] is None; expected a string
    """
    if isinstance(texts, str):
        return [texts]
    found = _values(texts, name, "a string, or a list or column of strings")
    return [_string(text, f"{name}[{i}]") for i, text in enumerate(found, start)]


def known_lists(known: Any, texts: int) -> list[list[str]]:
    """The known keyphrases of each text: one list per text, in the same order."""
    found = _values(known, "known", "a list of keyphrases for each text")
    if len(found) != texts:
        raise InputError(f"known has {len(found)} entries for {texts} texts")
    lists = []
    for i, phrases in enumerate(found):
        expected = "known holds a list of keyphrases for each text"
        if isinstance(phrases, str):
            raise InputError(f"{expected}, found {phrases!r} at {i}")
        values = _values(phrases, f"known[{i}]", "a list of keyphrases for each text")
        lists.append([_string(phrase, f"{expected}; known[{i}][{j}]") for j, phrase in enumerate(values)])
    return lists


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """An integer within bounds.

    >>> whole_number("k", 0, 1)
    Traceback (most recent call last):
    pusl_eval.errors.InputError: k is 0; it must be at least 1
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; expected an integer") from None
    if isinstance(value, bool):
        raise InputError(f"{name} is {value}; expected an integer")
    if least is not None and number < least:
        raise InputError(f"{name} is {number}; it must be at least {least}")
    if most is not None and number > most:
        raise InputError(f"{name} is {number}; it must be at most {most}")
    return number


def real_number(name: str, value: Any, *, finite: bool = True) -> float:
    """A number that is not NaN, and finite where that matters."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise InputError(f"{name} is {value!r}; expected a number")
    number = float(value)
    if math.isnan(number) or (finite and math.isinf(number)):
        raise InputError(f"{name} is {number}; expected a {'finite ' if finite else ''}number")
    return number


def threshold(value: Any, scores: str, name: str = "min_score", hint: str = "or give a calibration") -> float | None:
    """A least score that scores of this kind can reach: `log-probability`, `probability` or another word for any.

    >>> threshold(None, "probability"), threshold(-2, "log-probability")
    (None, -2.0)
    >>> threshold(2, "probability")
    Traceback (most recent call last):
    pusl_eval.errors.InputError: min_score 2: the scores of this model are probabilities, at most 1
    """
    if value is None:
        return None
    number = real_number(name, value)
    if scores == "log-probability" and number > 0:
        more = f", {hint}" if hint else ""
        kind = f"log-probabilities, at most 0; give a negative number{more}"
    elif scores == "probability" and number > 1:
        kind = "probabilities, at most 1"
    else:
        return number
    raise InputError(f"{name} {number:g}: the scores of this model are {kind}")


def check_sampling(temperature: Any, top_p: Any) -> tuple[float, float]:
    """A temperature of 0 searches; the others are neither so low nor so high that probabilities overflow."""
    temperature, top_p = real_number("temperature", temperature), real_number("top_p", top_p)
    if temperature != 0 and not LOWEST_TEMPERATURE <= temperature <= HIGHEST_TEMPERATURE:
        raise InputError(
            f"temperature is {temperature}; expected 0, or {LOWEST_TEMPERATURE:g} to {HIGHEST_TEMPERATURE:g}"
        )
    if not 0 < top_p <= 1:
        raise InputError(f"top_p is {top_p}; it must be above 0 and at most 1")
    return temperature, top_p


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """One of a few words."""
    if value not in allowed:
        raise InputError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")


def _values(column: Any, name: str, expected: str) -> list[Any]:
    """The values of a column, in order."""
    table = hasattr(column, "columns") or hasattr(column, "column_names")
    if table or isinstance(column, (str, bytes, Mapping, set, frozenset)) or not isinstance(column, Iterable):
        hint = "; name one of its columns" if table else ""
        raise InputError(f"{name} is a {type(column).__name__}; expected {expected}{hint}")
    if hasattr(column, "to_pylist"):  # pyarrow would give its own scalars
        return list(column.to_pylist())
    return list(column)


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        found = "None" if value is None else f"{value!r:.40} ({type(value).__name__})"
        raise InputError(f"{name} is {found}; expected a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} holds half of a surrogate pair, which is not text") from None
    return str(value)
