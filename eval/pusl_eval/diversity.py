"""Predicted phrase ids -> how much the phrases of one item overlap in their words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from pusl_eval.matching import Flags, Ints, Ragged, Vocabulary

Floats = NDArray[np.float64]


class WordTable:
    """The words of each phrase: a phrase x word matrix, and 64-bit masks that rule out most pairs at once."""

    def __init__(self, phrases: Sequence[str]) -> None:
        sets = Vocabulary("none").encode([phrase.split() for phrase in phrases]).as_sets()
        ones = np.ones(len(sets.ids), np.int32)
        width = int(sets.ids.max(initial=0)) + 1
        self.matrix = csr_array((ones, sets.ids, sets.starts.astype(np.int32)), shape=(len(phrases), width))
        self.sizes = sets.lengths
        # Two phrases whose masks share no bit share no word. If they share one, the other masks, which group the
        # words in another way, are compared before the words themselves.
        self.masks = self._masks(sets, sets.ids % 64)
        self.other_masks = self._masks(sets, sets.ids // 64 % 64)

    @staticmethod
    def _masks(sets: Ragged, bits: Ints) -> NDArray[np.uint64]:
        masks = np.zeros(len(sets.starts), np.uint64)  # one per phrase, and at the end one for BLANK
        np.bitwise_or.at(masks, sets.rows, np.left_shift(np.uint64(1), bits.astype(np.uint64)))
        return masks

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
            earlier, item = np.divmod(np.flatnonzero((masks[:place] & masks[place]) != 0), items)
            left, right = ids[earlier, item], ids[place, item]
            close = np.flatnonzero(self.other_masks[left] & self.other_masks[right])
            if len(close):
                total[place] = np.bincount(item[close], self.jaccard(left[close], right[close]), items)
        return total
