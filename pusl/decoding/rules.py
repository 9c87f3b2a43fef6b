"""A target's marks and limits -> which tokens a phrase may contain, and what a finished phrase is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pusl.tokenizer import TokenIds
from pusl_eval.files import InputError


@dataclass(frozen=True)
class Rules:
    """What a sequence may contain and when it ends."""

    tokens: TokenIds
    marks: bool  # True: <bok> ... <eok> (PUSL); False: phrases joined by <sep>, ended by EOS
    phrases: int  # at most this many
    max_phrase_tokens: int
    banned: tuple[int, ...] = ()  # ids that a phrase may not contain
    whole: bool = False  # a search's "phrase" is a whole sequence: separators are ordinary tokens


@dataclass
class Sampling:
    """Random choice of tokens; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass
class Phrase:
    """A complete keyphrase: its ids, and the sum of its tokens' log-probabilities with the closing mark."""

    ids: tuple[int, ...]
    logprob: float
    score: float = 0.0  # for ranking during a search; a universe's bonus included


def whole_letters(
    rows: list[list[Phrase]], form: Callable[[tuple[int, ...]], str], temperature: float
) -> list[list[Phrase]]:
    """Without drawn phrases that end in the middle of a letter; what a search or a greedy model gives stays."""
    if temperature == 0:
        return rows
    return [[phrase for phrase in row if "\N{REPLACEMENT CHARACTER}" not in form(phrase.ids)] for row in rows]


def check_numbers(logprobs: Iterable[float]) -> None:
    """Raises where a log-probability is NaN: no order of phrases means anything then, and no search would end."""
    if any(value != value for value in logprobs):
        raise InputError("the model gives scores that are not numbers (NaN); its weights are damaged or out of range")
