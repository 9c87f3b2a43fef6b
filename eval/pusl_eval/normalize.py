"""A keyphrase as written -> the form in which keyphrases are compared."""

from __future__ import annotations

import re
import unicodedata

from pusl_eval.files import InputError
from pusl_eval.porter import stem

NORMALIZATIONS = ("basic", "stem", "none")
_WORD_BREAK = re.compile(r"[\s\-\u2010]+")  # NFKC turns the non-breaking hyphen U+2011 into U+2010


def normalize(text: str, how: str = "basic") -> str:
    """The compared form of one keyphrase; an empty result means that it was blank.

    `basic`: NFKC, casefold, runs of white space to one space, strip. `stem`: basic, then the Porter
    stem of each word (split on white space and hyphens). `none`: as written (white space alone is blank).

    >>> normalize("  Running\\tSHOES ")
    'running shoes'
    >>> normalize("Wide-angle lenses", "stem")
    'wide angl lens'
    >>> normalize("Running shoes", "none")
    'Running shoes'
    """
    if how == "basic":
        if text.isascii():  # NFKC leaves ASCII as it is, and casefold is lower there
            return " ".join(text.lower().split())
        return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    if how == "stem":
        return " ".join(stem(word) for word in _WORD_BREAK.split(normalize(text)) if word)
    if how == "none":
        return text if text.strip() else ""
    raise InputError(f"normalization {how!r} is unknown; allowed: {', '.join(NORMALIZATIONS)}")
