"""An English word -> the stem that NLTK's PorterStemmer gives by default.

Most keyphrase papers are scored with it (OpenNMT-kpg, and evaluation scripts before it). It differs from the
published algorithm in a few words: a list of exceptions, short words in -ies, -ied and -y, and -alli, -fulli and
-logi. Everything else is `porter.py`.
"""

from __future__ import annotations

from functools import lru_cache

from pusl_eval import porter

_EXCEPTIONS = {
    form: stem
    for stem, forms in {
        "sky": ("sky", "skies"), "die": ("dying",), "lie": ("lying",), "tie": ("tying",), "news": ("news",),
        "inning": ("innings", "inning"), "outing": ("outings", "outing"), "canning": ("cannings", "canning"),
        "howe": ("howe",), "proceed": ("proceed",), "exceed": ("exceed",), "succeed": ("succeed",),
    }.items()
    for form in forms
}  # fmt: skip


@lru_cache(maxsize=1 << 16)
def nltk_stem(word: str) -> str:
    """The stem of one lower-case word.

    >>> [nltk_stem(word) for word in ("dying", "dies", "flies", "enjoy", "news", "analogy")]
    ['die', 'die', 'fli', 'enjoy', 'news', 'analog']
    """
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    if len(word) <= 2:
        return word
    word = _endings(_plurals(word))
    if word.endswith("y") and len(word) > 2 and porter.shape(word)[-2] == "c":
        word = word[:-1] + "i"
    word = porter.replace_ending(_adverbs(word), porter.STEP3)
    return porter.tidy(porter.drop_ending(word), _ends_cvc)


def _ends_cvc(word: str) -> bool:
    """As in the paper, and two letters such as `us`."""
    return porter.ends_cvc(word) or porter.shape(word) == "vc"


def _plurals(word: str) -> str:
    return word[:-1] if word.endswith("ies") and len(word) == 4 else porter.plurals(word)


def _endings(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    return porter.endings(word, _ends_cvc)


def _adverbs(word: str) -> str:
    """Step 2: -alli may leave another ending; -fulli loses two letters; -logi is measured with its l."""
    if word.endswith("alli") and porter.measure(word[:-4]) > 0:
        return _adverbs(word[:-2])
    found = porter.replace_ending(word, tuple(pair for pair in porter.STEP2 if pair[0] != "logi"))
    if found == word and word.endswith("fulli") and porter.measure(word[:-5]) > 0:
        return word[:-2]
    if found == word and word.endswith("logi") and porter.measure(word[:-3]) > 0:
        return word[:-1]
    return found
