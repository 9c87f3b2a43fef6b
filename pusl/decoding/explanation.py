"""A keyphrase + its text -> where it occurs in the text, whether it is new, whether it is a real query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypedDict

from pusl.words import located
from pusl_eval.normalize import normalize


class Marks(TypedDict):
    """What is known about any keyphrase; None where there is nothing to compare with."""

    present: bool  # occurs in the text, word by word, in normalized form
    offsets: list[list[int]]  # [start, end) of every occurrence, in characters of the text as given
    seen: bool | None  # among the training labels; False: new
    in_universe: bool | None


class Explanation(Marks, total=False):
    """One keyphrase's marks; a fused model adds who proposed it."""

    sources: dict[str, int]  # source -> the rank it gave the keyphrase


Words = tuple[list[str], list[tuple[int, int]]]  # what `located` gives


def occurrences(text: Words, phrase: str) -> list[list[int]]:
    """Character ranges of the text whose words are the phrase's, compared in normalized form.

    >>> occurrences(located("Zeto drone: the ZETO  Drone X2"), "zeto drone")
    [[0, 10], [16, 27]]
    >>> occurrences(located("swordfish"), "sword"), occurrences(located("折叠无人机"), "无人机")
    ([], [[2, 5]])
    >>> occurrences(located("ｶﾒﾗ"), "カメラ")
    [[0, 3]]
    """
    words, spans = text
    wanted, _ = located(phrase)
    if not wanted:
        return []
    size = len(wanted)
    return [
        [spans[i][0], spans[i + size - 1][1]] for i in range(len(words) - size + 1) if words[i : i + size] == wanted
    ]


def explain(
    text: str,
    keyphrases: Sequence[str],
    labels: Collection[str] | None = None,
    contains: Callable[[str], bool] | None = None,
) -> list[Explanation]:
    """Marks every keyphrase. `labels`: normalized training labels; `contains`: a universe's membership."""
    marks: list[Explanation] = []
    words = located(text)
    for phrase in keyphrases:
        offsets = occurrences(words, phrase)
        marks.append(
            Explanation(
                present=bool(offsets),
                offsets=offsets,
                seen=None if labels is None else normalize(phrase) in labels,
                in_universe=None if contains is None else contains(phrase),
            )
        )
    return marks
