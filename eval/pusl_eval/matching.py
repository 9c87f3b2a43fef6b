"""Lists of phrases -> integer ids -> which predictions are new, and which are right.

Each distinct string is normalized once and gets an id. Everything after that is numpy on ids, in blocks of
items small enough to stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from pusl_eval.normalize import normalize

Ints = NDArray[np.int32]
Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]

BLANK = -1  # the id of a blank phrase, and of a place without a phrase
BLOCK = 1 << 15  # items worked on at once
MANY = 1 << 20  # with this many phrases, importing Arrow pays off


class Vocabulary(dict[str, int]):
    """Raw phrase -> id of its normalized form. Looking up a new phrase gives it the next id.

    >>> words = Vocabulary()
    >>> words["Red shoe"], words["red  SHOE"], words[" "], words["hat"]
    (0, 0, -1, 1)
    """

    def __init__(self, how: str = "basic") -> None:
        super().__init__()
        self.how = how
        self.ids: dict[str, int] = {"": BLANK}  # normalized form -> id

    def __missing__(self, raw: str) -> int:
        # The blank has no number of its own, hence the 1.
        found = self.ids.setdefault(normalize(raw, self.how), len(self.ids) - 1)
        self[raw] = found
        return found

    @property
    def size(self) -> int:
        """How many distinct phrases have an id."""
        return len(self.ids) - 1

    def phrases(self) -> list[str]:
        """The normalized phrases in the order of their ids."""
        return list(self.ids)[1:]

    def encode(self, lists: Sequence[Sequence[str]]) -> Ragged:
        """One row of ids per list, in the lists' order, blanks and repeats included."""
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        starts = np.zeros(len(lists) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        flat = self._encode_many(lists) if starts[-1] >= MANY else None
        if flat is None:
            flat = np.fromiter(map(self.__getitem__, chain.from_iterable(lists)), np.int32, int(starts[-1]))
        return Ragged(flat, starts)

    def _encode_many(self, lists: Sequence[Sequence[str]]) -> Ints | None:
        """The same, with Arrow finding the distinct strings; None if Arrow is not installed or cannot hold them."""
        try:
            import pyarrow
        except ImportError:
            return None
        parts = []
        phrases = chain.from_iterable(lists)
        try:
            while some := list(islice(phrases, 4 * MANY)):
                found = pyarrow.array(some, pyarrow.large_string()).dictionary_encode()
                if found.null_count:
                    return None  # a None among the strings: the plain loop raises the error
                ids = np.fromiter(map(self.__getitem__, found.dictionary.to_pylist()), np.int32)
                parts.append(ids[found.indices.to_numpy()])
        except (pyarrow.ArrowException, TypeError, ValueError):
            return None  # not a string, or half of a surrogate pair
        return np.concatenate(parts)

    def find(self, raw_phrases: Iterable[str]) -> Flags:
        """For each known phrase, whether it is among `raw_phrases`; the last entry (BLANK) is False. Adds no ids."""
        flags = np.zeros(self.size + 1, np.bool_)
        ids, how = self.ids, self.how
        for raw in raw_phrases:
            found = self.get(raw)
            if found is None:
                found = ids.get(normalize(raw, how))
            if found is not None:
                flags[found] = True
        flags[BLANK] = False
        return flags


@dataclass(frozen=True)
class Ragged:
    """Rows of different length, one after the other: row i is `ids[starts[i]:starts[i + 1]]`."""

    ids: Ints
    starts: Offsets

    @cached_property
    def lengths(self) -> Offsets:
        """Entries per row."""
        return np.diff(self.starts)

    @cached_property
    def rows(self) -> Ints:
        """The row number of each entry."""
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), self.lengths)

    def as_sets(self) -> Ragged:
        """Each row without blanks and repeats, sorted by id.

        >>> Ragged(np.array([2, 1, 2, -1], np.int32), np.array([0, 3, 4])).as_sets().ids.tolist()
        [1, 2]
        """
        count = len(self.starts) - 1
        sets, sizes = [], np.zeros(count + 1, np.int64)
        for low in range(0, count, BLOCK):
            high = min(low + BLOCK, count)
            starts = self.starts[low : high + 1]
            keys = np.repeat(np.arange(high - low, dtype=np.int64) << 32, np.diff(starts))
            ids = self.ids[starts[0] : starts[-1]]
            keys = (keys | ids)[ids != BLANK]
            keys.sort()
            if len(keys):
                keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
            sets.append((keys & 0xFFFFFFFF).astype(np.int32))
            sizes[low + 1 : high + 1] = np.bincount(keys >> 32, minlength=high - low)
        return Ragged(np.concatenate(sets) if sets else self.ids[:0], np.cumsum(sizes))

    def keep(self, flags: Flags) -> Ragged:
        """The rows with only the flagged entries.

        >>> Ragged(np.array([2, 1, 3], np.int32), np.array([0, 2, 3])).keep(np.array([False, True, True])).starts
        array([0, 1, 2])
        """
        before = np.concatenate(([0], np.cumsum(flags)))
        return Ragged(self.ids[flags], before[self.starts])

    def columns(self, low: int, high: int, width: int) -> Ints:
        """The first `width` entries of rows low..high, transposed: line p holds place p of every row, else BLANK."""
        starts, ends = self.starts[low:high], self.starts[low + 1 : high + 1]
        table = np.full((width, high - low), BLANK, np.int32)  # (width, rows)
        for place in range(width):
            inside = starts + place < ends
            if inside.all():
                table[place] = self.ids[starts + place]
            elif inside.any():
                table[place, inside] = self.ids[starts[inside] + place]
            else:
                break
        return table


@dataclass(frozen=True)
class Block:
    """Some items' predictions, place by place: `ids[p, i]` is the phrase at place p of item low + i."""

    low: int
    high: int
    ids: Ints  # (width, items)
    first: Flags  # (width, items): not blank and not a repeat of an earlier place
    hits: Flags  # (width, items): first, and among the item's references


def match(references: Ragged, predictions: Ragged, width: int, size: int = BLOCK) -> Iterator[Block]:
    """Streams blocks of items with the first `width` predictions matched to the reference sets.

    `references` must be sets (`as_sets`).

    >>> words = Vocabulary()
    >>> truth = words.encode([["red shoe", "hat"]]).as_sets()
    >>> block = next(match(truth, words.encode([["hat", "Hat ", "coat", "red shoe"]]), 4))
    >>> block.first[:, 0].tolist(), block.hits[:, 0].tolist()
    ([True, False, True, True], [True, False, False, True])
    """
    items = len(references.starts) - 1
    for low in range(0, max(1, items), size):  # no items: one empty block
        high = min(low + size, items)
        ids = predictions.columns(low, high, width)
        first = ids != BLANK
        for place in range(1, width):
            first[place] &= ~(ids[:place] == ids[place]).any(axis=0)
        hits = _among(ids, references, low, high)
        hits &= first
        yield Block(low, high, ids, first, hits)


def _among(ids: Ints, references: Ragged, low: int, high: int) -> Flags:
    """(width, items): whether each entry is one of its item's references.

    Items are taken in order of falling set size, so that the comparison with everyone's r-th reference
    runs over a shrinking prefix: the work is exactly (entries) x (references), all of it contiguous.
    """
    starts = references.starts[low:high]
    sizes = references.starts[low + 1 : high + 1] - starts
    order = np.argsort(-sizes, kind="stable")
    ids, starts, sizes = ids[:, order], starts[order], sizes[order]
    found = np.zeros(ids.shape, np.bool_)
    for place in range(int(sizes[0]) if len(sizes) else 0):
        count = int(np.searchsorted(-sizes, -place, side="left"))  # items with more than `place` references
        found[:, :count] |= ids[:, :count] == references.ids[starts[:count] + place]
    back = np.empty_like(found)
    back[:, order] = found
    return back
