"""A label tree + items in order -> k labels per item that cover the catalog, by searching the tree until it is proven.

COV-PLT: the k labels with the largest (f + β)·η, where η is the tree's probability and f the chance that no earlier
item has the label right. The tree is searched best first, as in A*: napkinXC gives the labels in order of η, and no
label behind the last one can reach more than (largest f + β)·(last η). The search of an item goes on until k labels
are above that. `pusl rerank` chooses by the same rule among stored candidates only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Fetch = Callable[[int, int], list[tuple[int, float]]]  # item, count -> (label, probability), best first

FIRST = 4  # candidates per wanted label to begin with
GROWTH = 4


class TreeCoverage:
    """The greedy coverage rule over all labels of a tree; remembers what earlier items were given.

    >>> rule = TreeCoverage(3, beta=0.0)
    >>> found = [(0, 0.9), (1, 0.3), (2, 0.2)]
    >>> [rule.choose(lambda item, count: found[:count], item, 1)[0].tolist() for item in range(3)]
    [[0], [1], [1]]
    """

    def __init__(self, labels: int, beta: float) -> None:
        self.beta = beta
        self.missing = np.ones(labels)  # f
        self.fetched = 0  # candidates looked at, over all items
        self.items = 0

    def choose(self, fetch: Fetch, item: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Labels and their probabilities, largest gain first."""
        total = len(self.missing)
        count = min(total, FIRST * k)
        while True:
            pairs = fetch(item, count)
            numbers = np.array([number for number, _ in pairs], np.int64)
            chances = np.minimum(np.array([chance for _, chance in pairs]), 1.0)
            gains = (self.missing[numbers] + self.beta) * chances
            best = np.lexsort((numbers, -gains))[:k]
            if count >= total or len(pairs) < count:
                break
            left = np.ones(total, bool)
            left[numbers] = False
            reachable = (self.missing[left].max(initial=0.0) + self.beta) * chances[-1]
            if len(best) == k and gains[best[-1]] >= reachable:
                break
            count = min(total, GROWTH * count)
        self.fetched += len(pairs)
        self.items += 1
        chosen = numbers[best]
        self.missing[chosen] *= 1 - chances[best]
        return chosen, chances[best]
