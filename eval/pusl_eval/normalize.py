"""Keyphrases as written -> the forms in which they are compared, and which of them are distinct."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from pusl_eval.files import InputError
from pusl_eval.porter import stem
from pusl_eval.porter_nltk import nltk_stem

NORMALIZATIONS = ("basic", "stem", "nltk-stem", "none")
STEMMERS: dict[str, Callable[[str], str]] = {"stem": stem, "nltk-stem": nltk_stem}
_WORD_BREAK = re.compile(r"[\s\-\u2010]+")  # NFKC turns the non-breaking hyphen U+2011 into U+2010


def normalize(text: str, how: str = "basic") -> str:
    """The compared form of one keyphrase; an empty result means that it was blank.

    `basic`: NFKC, casefold, runs of white space to one space, strip. `stem`: basic, then the Porter
    stem of each word (split on white space and hyphens). `nltk-stem`: the same with the stemmer of most keyphrase
    papers (NLTK's, as in OpenNMT-kpg). `none`: as written (white space alone is blank).

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
    if how in STEMMERS:
        return " ".join(STEMMERS[how](word) for word in _WORD_BREAK.split(normalize(text)) if word)
    if how == "none":
        return text if text.strip() else ""
    raise InputError(f"normalization {how!r} is unknown; allowed: {', '.join(NORMALIZATIONS)}")


def distinct_forms(keyphrases: Iterable[str], how: str = "basic") -> dict[str, int]:
    """Each distinct normalized form, in order, with the place (from 0) of its first spelling; blanks are dropped.

    >>> distinct_forms(["Red  Shoe", " ", "boot", "red shoe"])
    {'red shoe': 0, 'boot': 2}
    """
    places: dict[str, int] = {}
    for place, phrase in enumerate(keyphrases):
        places.setdefault(normalize(phrase, how), place)
    places.pop("", None)
    return places


def distinct(keyphrases: Iterable[str], how: str = "basic") -> list[str]:
    """The keyphrases without blanks and without repeats after normalization, first spelling kept.

    >>> distinct(["Red  Shoe", "boot", "red shoe", " "])
    ['Red  Shoe', 'boot']
    """
    given = list(keyphrases)
    return [given[place] for place in distinct_forms(given, how).values()]


def collapse(keyphrases: Iterable[str], counts: Iterable[int]) -> tuple[list[str], list[int]]:
    """The distinct keyphrases, first spelling kept, and for each the sum of the counts of its repeats.

    >>> collapse(["a", "b", "A"], [1, 2, 5])
    (['a', 'b'], [6, 2])
    """
    given, total = list(keyphrases), dict[str, int]()
    for phrase, count in zip(given, counts, strict=True):
        form = normalize(phrase)
        total[form] = total.get(form, 0) + count
    places = distinct_forms(given)
    return [given[place] for place in places.values()], [total[form] for form in places]
