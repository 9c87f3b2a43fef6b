"""Predicted phrase ids -> how much the phrases of one item overlap in their words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from eval.matching import Flags, Ints

Floats = NDArray[np.float64]


class WordTable:
    """The words of each phrase: a phrase x word matrix, and a 64-bit mask that tells most pairs apart at once."""

    def __init__(self, phrases: Sequence[str]) -> None:
        words: dict[str, int] = {}
        sets = [sorted({words.setdefault(word, len(words)) for word in phrase.split()}) for phrase in phrases]
        starts = np.zeros(len(sets) + 1, np.int32)
        np.cumsum([len(row) for row in sets], out=starts[1:])
        columns = np.fromiter((word for row in sets for word in row), np.int32, int(starts[-1]))
        ones = np.ones(len(columns), np.int32)
        self.matrix = csr_array((ones, columns, starts), shape=(len(sets), max(1, len(words))))
        self.sizes = np.diff(starts)
        # Two phrases whose masks share no bit share no word; a shared bit has to be looked into.
        bits = np.left_shift(np.uint64(1), (columns % 64).astype(np.uint64))
        self.masks = np.zeros(len(sets) + 1, np.uint64)  # the last one is the blank's
        np.bitwise_or.at(self.masks, np.repeat(np.arange(len(sets)), self.sizes), bits)

    def jaccard(self, left: Ints, right: Ints) -> Floats:
        """|A ∩ B| / |A ∪ B| of the word sets of phrase pairs."""
        both = self.matrix[left].multiply(self.matrix[right]).sum(axis=1)
        return np.asarray(both / (self.sizes[left] + self.sizes[right] - both), np.float64)

    def overlap(self, ids: Ints, first: Flags) -> Floats:
        """(width, items): for each place the sum of Jaccard(words) with every earlier place of its item.

        `first` says which places count (no blanks, no repeats).
        """
        width, items = ids.shape
        total = np.zeros((width, items))
        masks = np.where(first, self.masks[ids], np.uint64(0))
        for place in range(1, width):
            earlier, item = np.nonzero(masks[:place] & masks[place])
            if len(item):
                shared = self.jaccard(ids[earlier, item], ids[place, item])
                total[place] = np.bincount(item, shared, items)
        return total
