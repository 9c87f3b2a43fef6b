"""Keyphrases not yet written -> the ids that may come next, by the prefixes they share."""

from __future__ import annotations

from collections.abc import Sequence


def allowed_ids(phrases: Sequence[Sequence[int]], closings: Sequence[int], count: int) -> list[list[list[int]]]:
    """For each of the first `count` phrases: the right ids at each of its positions and at its closing mark.

    `closings[i]` is the mark that closes the i-th phrase to be written, whichever phrase that is.

    >>> allowed_ids([[4, 5], [4]], [9, 1], 2)
    [[[4], [5, 9], [9]], [[4], [1]]]
    """
    root = _Node()
    for phrase in phrases:
        root.add(phrase, 1)
    found = []
    for phrase, closing in zip(phrases[:count], closings, strict=False):
        node, sets = root, [root.next_ids(closing)]
        for token in phrase:
            node = node.children[token]
            sets.append(node.next_ids(closing))
        root.add(phrase, -1)
        found.append(sets)
    return found


class _Node:
    """A prefix shared by phrases: how many remaining phrases pass through it and end in it."""

    __slots__ = ("children", "ends", "passing")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.passing = self.ends = 0

    def add(self, phrase: Sequence[int], count: int) -> None:
        node = self
        for token in phrase:
            node = node.children.setdefault(token, _Node())
            node.passing += count
        node.ends += count

    def next_ids(self, closing: int) -> list[int]:
        ids = [token for token, child in self.children.items() if child.passing > 0]
        return [*ids, closing] if self.ends > 0 else ids
