"""Rows that share an id -> one item each, in the way the user names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pusl.examples import Example
from pusl_eval.normalize import collapse, distinct

WAYS = ("error", "merge", "first")
HELP = "rows with the same id: stop with an error, merge their keyphrases, or keep the first row"
FIX = "; pass --duplicates merge to unite such rows, or --duplicates first"
OTHER_TEXT = "rows whose text differs from that of an earlier row with their id (the first text is kept)"


def resolve(examples: Iterable[Example], way: str, note: Callable[[str], None]) -> Iterator[Example]:
    """Items with different ids, in order of first appearance; `note` counts what was done.

    `first` keeps the ids in memory, `merge` the items.

    >>> rows = [Example("1", "Zeto X2", ["drone"]), Example("2", "Bavix", ["tent"]), Example("1", "Zeto X2", ["gps"])]
    >>> [(item.id, item.keyphrases) for item in resolve(rows, "merge", print)]
    rows united with an earlier row with their id
    [('1', ['drone', 'gps']), ('2', ['tent'])]
    """
    if way == "first":
        yield from _first(examples, note)
        return
    groups: dict[str, list[Example]] = {}
    for example in examples:
        group = groups.setdefault(example.id, [])
        if group:
            note("rows united with an earlier row with their id")
            if example.text != group[0].text:
                note(OTHER_TEXT)
        group.append(example)
    for item, group in groups.items():
        yield unite(group, item) if len(group) > 1 else group[0]


def _first(examples: Iterable[Example], note: Callable[[str], None]) -> Iterator[Example]:
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            note("rows left out because an earlier row has their id")
            continue
        seen.add(example.id)
        yield example


def with_first_text(examples: Iterable[Example], note: Callable[[str], None]) -> Iterator[Example]:
    """All rows, each with the text of the first row that has its id, for a caller that unites rows by text."""
    texts: dict[str, str] = {}
    for example in examples:
        text = texts.setdefault(example.id, example.text)
        if text != example.text:
            note(OTHER_TEXT)
            example = replace(example, text=text)
        yield example


def unite(group: Sequence[Example], item: str) -> Example:
    """One example of several rows: keyphrases united, counts added, other fields of the first row that has them.

    Counts stay only where every row has them.
    """
    given = [phrase for example in group for phrase in example.keyphrases]
    counts: list[int] | None = None
    if all(example.counts is not None for example in group):
        phrases, counts = collapse(given, [number for example in group for number in example.counts or ()])
    else:
        phrases = distinct(given)
    extra: dict[str, Any] = {}
    for example in group:
        extra = {**example.extra, **extra}
    label = next((example.group for example in group if example.group), None)
    return Example(item, group[0].text, phrases, counts, group[0].timestamp, label, extra)
