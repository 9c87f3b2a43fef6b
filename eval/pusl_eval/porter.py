"""An English word -> its Porter stem.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the two corrections of the
author's own later code (`-bli` -> `-ble`, `-logi` -> `-log`). Words are expected in lower case; letters
outside a-z count as consonants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

# Longest ending first: the first one that fits is the only one tried, as in the paper.
STEP2 = (
    ("ational", "ate"), ("ization", "ize"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"),
    ("tional", "tion"), ("biliti", "ble"), ("entli", "ent"), ("ousli", "ous"), ("ation", "ate"), ("alism", "al"),
    ("aliti", "al"), ("iviti", "ive"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("alli", "al"),
    ("ator", "ate"), ("logi", "log"), ("bli", "ble"), ("eli", "e"),
)  # fmt: skip
STEP3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ness", ""), ("ful", ""),
)  # fmt: skip
_STEP4 = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ion", "ism", "ate", "iti", "ous", "ive", "ize",
    "al", "er", "ic", "ou",
)  # fmt: skip
_VOWEL_RUN = re.compile(r"v+c")


def shape(word: str) -> str:
    """The word as consonants and vowels: `syzygy` -> `cvcvcv` (y is a vowel after a consonant)."""
    found = []
    vowel = False
    for position, letter in enumerate(word):
        vowel = letter in "aeiou" or (letter == "y" and position > 0 and not vowel)
        found.append("v" if vowel else "c")
    return "".join(found)


def measure(stem: str) -> int:
    """m in the paper's [C](VC)^m[V]."""
    return len(_VOWEL_RUN.findall(shape(stem)))


def _has_vowel(stem: str) -> bool:
    return "v" in shape(stem)


def _double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and shape(word)[-1] == "c"


def ends_cvc(word: str) -> bool:
    """Consonant-vowel-consonant at the end, the last one not w, x or y (hop, fil)."""
    return shape(word).endswith("cvc") and word[-1] not in "wxy"


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The Porter stem of one lower-case word.

    >>> [stem(word) for word in ("relational", "hopping", "flies", "skis")]
    ['relat', 'hop', 'fli', 'ski']
    """
    if len(word) <= 2:
        return word
    word = endings(plurals(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    for table in (STEP2, STEP3):
        word = replace_ending(word, table)
    return tidy(drop_ending(word))


def replace_ending(word: str, table: Sequence[tuple[str, str]]) -> str:
    """Steps 2 and 3: the first ending that fits is replaced if enough stands before it."""
    for ending, replacement in table:
        if word.endswith(ending):
            base = word[: -len(ending)]
            return base + replacement if measure(base) > 0 else word
    return word


def drop_ending(word: str) -> str:
    """Step 4."""
    for ending in _STEP4:
        if word.endswith(ending):
            base = word[: -len(ending)]
            return base if measure(base) > 1 and (ending != "ion" or base[-1:] in ("s", "t")) else word
    return word


def plurals(word: str) -> str:
    """Step 1a."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def endings(word: str, short: Callable[[str], bool] = ends_cvc) -> str:
    """Step 1b."""
    if word.endswith("eed"):
        return word[:-1] if measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        base = word[: -len(ending)]
        if word.endswith(ending) and _has_vowel(base):
            if base.endswith(("at", "bl", "iz")):
                return base + "e"
            if _double_consonant(base) and base[-1] not in "lsz":
                return base[:-1]
            return base + "e" if measure(base) == 1 and short(base) else base
    return word


def tidy(word: str, short: Callable[[str], bool] = ends_cvc) -> str:
    """Step 5: a final e, a final double l."""
    if word.endswith("e"):
        size = measure(word[:-1])
        if size > 1 or (size == 1 and not short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure(word) > 1 else word
