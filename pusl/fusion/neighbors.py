"""Unit TF-IDF rows + queries -> the most similar rows, from an inverted index.

The same neighbors as the brute-force product of `pusl.baselines.simple.Neighbors`, but only the rows that share
a word with the query are touched, and no matrix of all similarities is built. Rare words come first: as soon as
the words that are left could not lift a row from nothing into the best (MaxScore; Turtle and Flood 1995), only
the rows found so far are looked up in their long lists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse

Nearest = tuple[np.ndarray, np.ndarray]  # rows (q, count), -1 where there is none; similarities (q, count)
SLACK = 1e-5  # of a bound, for rounding


class NeighborIndex:
    """Rows of unit length, stored term by term."""

    def __init__(self, features: sparse.csr_matrix) -> None:
        postings = features.tocsc()
        postings.sort_indices()
        self.size = int(features.shape[0])
        self.starts = postings.indptr.astype(np.int64)
        self.rows = postings.indices.astype(np.int32)
        self.weights = postings.data.astype(np.float32)
        filled = np.diff(self.starts) > 0
        self.largest = np.zeros(len(filled), np.float32)  # weight of each term
        if filled.any():
            self.largest[filled] = np.maximum.reduceat(self.weights, self.starts[:-1][filled])

    def nearest(self, queries: sparse.csr_matrix, count: int) -> Nearest:
        """The `count` most similar rows of each query, best first; ties go to the earlier row."""
        rows = np.full((queries.shape[0], count), -1, np.int64)
        similar = np.zeros((queries.shape[0], count), np.float32)
        terms, values = self._rare_first(queries)
        _kernel()(
            self.starts, self.rows, self.weights, self.largest, queries.indptr.astype(np.int64), terms, values,
            np.zeros(self.size, np.float32), np.zeros(self.size, np.int32), rows, similar,
        )  # fmt: skip
        return rows, similar

    def _rare_first(self, queries: sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        owner = np.repeat(np.arange(queries.shape[0]), np.diff(queries.indptr))
        lengths = np.diff(self.starts)[queries.indices]
        order = np.lexsort((queries.indices, lengths, owner))
        return queries.indices[order].astype(np.int64), queries.data[order].astype(np.float32)


def _search(
    starts: Any, rows: Any, weights: Any, largest: Any, pointers: Any, terms: Any, values: Any, score: Any,
    touched: Any, best: Any, similar: Any,
) -> None:  # fmt: skip
    """Adds up the postings of each query's terms, then keeps the best rows in order."""
    count = best.shape[1]
    heap = np.zeros(count, np.float32)
    for query in range(len(pointers) - 1):
        seen = 0
        left = 0.0  # the most that the remaining terms could add to a row
        for at in range(pointers[query], pointers[query + 1]):
            left += values[at] * largest[terms[at]]
        lookup = False
        for at in range(pointers[query], pointers[query + 1]):
            value, first, last = values[at], starts[terms[at]], starts[terms[at] + 1]
            if not lookup and seen >= count and last - first > 8 * seen:
                heap[:] = 0.0
                for number in range(seen):  # the count-th best so far
                    own = score[touched[number]]
                    if own > heap[0]:
                        place = 0
                        while place + 1 < count and heap[place + 1] < own:
                            heap[place] = heap[place + 1]
                            place += 1
                        heap[place] = own
                lookup = left * (1 + SLACK) < heap[0]
            left -= value * largest[terms[at]]
            if lookup:
                for number in range(seen):
                    row = touched[number]
                    low, high = first, last
                    while low < high:
                        middle = (low + high) // 2
                        if rows[middle] < row:
                            low = middle + 1
                        else:
                            high = middle
                    if low < last and rows[low] == row:
                        score[row] += value * weights[low]
            else:
                for place in range(first, last):
                    row = rows[place]
                    if score[row] == 0.0:
                        touched[seen] = row
                        seen += 1
                    score[row] += value * weights[place]
        kept = 0
        for number in range(seen):
            row = touched[number]
            own = score[row]
            score[row] = 0.0
            if kept == count and (
                own < similar[query, kept - 1] or (own == similar[query, kept - 1] and row > best[query, kept - 1])
            ):
                continue
            place = kept if kept < count else count - 1
            while place > 0 and (
                own > similar[query, place - 1] or (own == similar[query, place - 1] and row < best[query, place - 1])
            ):
                similar[query, place] = similar[query, place - 1]
                best[query, place] = best[query, place - 1]
                place -= 1
            similar[query, place] = own
            best[query, place] = row
            kept = min(kept + 1, count)


@cache
def _kernel() -> Callable[..., None]:
    """The search as machine code, cached on disk where a folder can be written."""
    import numba

    compiled: Callable[..., None]
    try:
        compiled = numba.njit(nogil=True, cache=True)(_search)
    except RuntimeError:
        compiled = numba.njit(nogil=True)(_search)
    return compiled
