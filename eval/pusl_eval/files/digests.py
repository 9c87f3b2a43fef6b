"""A file or an id -> a digest: names content, and draws the same sample in every run."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pusl_eval.files.storage import open_stored

Item = TypeVar("Item")


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content."""
    code = hashlib.sha256()
    with open_stored(path) as stream:
        while block := stream.read(1 << 20):
            code.update(block)
    return code.hexdigest()


def hash_rank(text: str, size: int = 8) -> bytes:
    """A digest that orders texts at random, the same in every process."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).digest()


def sample_by_hash(items: Iterable[Item], count: int, rank: Callable[[Item], bytes]) -> list[Item]:
    """The `count` items with the smallest ranks, in their order: one pass, `count` items of memory.

    >>> sample_by_hash(["lamp", "drone", "kite", "cup"], 2, hash_rank)
    ['lamp', 'kite']
    """
    drawn = heapq.nsmallest(count, enumerate(items), key=lambda pair: rank(pair[1]))
    return [item for _, item in sorted(drawn, key=lambda pair: pair[0])]
