"""A file of real queries or labels -> which tokens may follow which prefix, for millions of phrases.

The phrases' token ids are sorted, so that every prefix is a range; the ranges are written out level by
level as plain arrays (a node's children lie side by side, sorted by token). Asking for the tokens after
a prefix is one slice. The arrays are saved as .npy files and memory-mapped: opening costs nothing, and
several processes share one copy. Membership is asked in normalized form, through sorted 64-bit digests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pusl.tokenizer import encode_keyphrases, token_ids
from pusl_eval.errors import damage_refused
from pusl_eval.files import InputError, check_input, folder_atomic, read_json
from pusl_eval.normalize import normalize
from pusl_eval.records import read_label_file

FORMAT = 1
CHUNK = 100_000
MAX_TOKENS = 32  # longer phrases are members, but cannot be generated
INDEX_ENDING = ".index"
ARRAYS = ("tokens", "first", "terminal", "digests")


@dataclass
class Universe:
    """Phrases that a model may or must give, such as real queries, as a tree of token ids; node 0 is the empty prefix.

    Attributes:
        tokens: the last token of each node's prefix (nodes level by level, parents in order).
        first: node i's children are the nodes first[i] ... first[i + 1] - 1.
        terminal: whether a phrase ends at the node.
        digests: sorted 64-bit digests of the normalized phrases.

    Examples:
        >>> from pusl.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer(["red shoe boot"] * 9, 300)
        >>> universe = Universe.build(["red shoe", "boot"], tokenizer)
        >>> len(universe), universe.contains("Red  SHOE"), universe.contains("red")
        (2, True, False)
    """

    tokens: np.ndarray
    first: np.ndarray
    terminal: np.ndarray
    digests: np.ndarray
    too_long: int = 0

    def __len__(self) -> int:
        return len(self.digests)

    def contains(self, phrase: str) -> bool:
        """Whether the phrase is one of the universe's, in normalized form."""
        key = _digest(normalize(phrase))
        place = int(np.searchsorted(self.digests, key))
        return place < len(self.digests) and int(self.digests[place]) == int(key)

    @classmethod
    def build(
        cls, source: str | os.PathLike[str] | Iterable[str], tokenizer: Any, out: str | Path | None = None
    ) -> Universe:
        """Reads a file (or phrases) as a stream and sorts it; `out` saves the index and maps it back."""
        name = "universe"
        if isinstance(source, (str, os.PathLike)):
            name = os.fspath(source)
            source = tqdm(
                read_label_file(check_input(Path(source))), f"index {Path(name).name}", unit=" phrases",
                delay=2, unit_scale=True, leave=False,
            )  # fmt: skip
        blocks, digests, too_long = _collect(iter(source), tokenizer)
        if not len(digests):
            raise InputError(f"{name}: holds no phrases")
        universe = cls(*_tree(_sorted(blocks)), digests=digests, too_long=too_long)
        if out is None:
            return universe
        universe.save(out, tokenizer)
        return cls.load(out)

    @classmethod
    def open(cls, path: str | os.PathLike[str], tokenizer: Any) -> Universe:
        """The index kept beside a phrase file; made first if it is missing or older than the file."""
        source = check_input(Path(path))
        folder = source.with_name(source.name + INDEX_ENDING)
        stamp = _stamp(source, tokenizer)
        try:
            if read_json(folder / "meta.json").get("stamp") == stamp:
                return cls.load(folder)
        except InputError:  # missing or damaged: it is made again
            pass
        if not os.access(source.parent, os.W_OK):
            return cls.build(source, tokenizer)
        return cls.build(source, tokenizer, folder)

    def save(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Writes the arrays into a hidden folder, then renames it."""
        folder = Path(folder)
        with folder_atomic(folder, wait=True) as staging:  # two commands may meet the same new universe
            for name in ARRAYS:
                np.save(staging / f"{name}.npy", getattr(self, name))
            source = folder.with_name(folder.name.removesuffix(INDEX_ENDING))
            stamp = _stamp(source, tokenizer) if tokenizer is not None and source.is_file() else None
            meta = {"format": FORMAT, "phrases": len(self), "too_long": self.too_long, "stamp": stamp}
            (staging / "meta.json").write_text(json.dumps(meta))

    @classmethod
    def load(cls, folder: str | Path) -> Universe:
        """Maps a saved index into memory."""
        with damage_refused(folder, "the universe index", "delete it, and it is built again"):
            meta = read_json(Path(folder) / "meta.json")
            arrays = {name: np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
            universe = cls(**arrays, too_long=int(meta["too_long"]))
            universe.check()
        return universe

    def check(self) -> None:
        """Raises ValueError if the arrays do not fit together, as after a damaged file."""
        nodes = len(self.tokens)
        for name, kinds, length in (("tokens", "iu", nodes), ("first", "iu", nodes + 1), ("terminal", "b", nodes)):
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype.kind not in kinds or len(array) != length:
                raise ValueError(f"{name} has the wrong shape or type")
        if self.digests.ndim != 1 or self.digests.dtype != np.uint64:
            raise ValueError("digests has the wrong shape or type")
        falling = nodes and bool((self.first[1:] < self.first[:-1]).any())
        if not nodes or int(self.first[0]) != 1 or int(self.first[-1]) != nodes or falling:
            raise ValueError("its nodes and their children do not match")

    def children(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All (index into `nodes`, next token) pairs, for nodes that are not outside."""
        start, stop = self.first[nodes].astype(np.int64), self.first[nodes + 1].astype(np.int64)
        counts = stop - start
        owner = np.repeat(np.arange(len(nodes)), counts)
        offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, self.tokens[start[owner] + offset].astype(np.int64)

    def descend(self, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The node after each (node, token); -1 if the universe has no such prefix or the node is outside."""
        inside = np.maximum(nodes, 0)
        low, high = self.first[inside].astype(np.int64), self.first[inside + 1].astype(np.int64)
        stop = high.copy()
        while (open_ := low < high).any():
            middle = (low + high) // 2
            less = open_ & (self.tokens[np.minimum(middle, len(self.tokens) - 1)] < tokens)
            low, high = np.where(less, middle + 1, low), np.where(open_ & ~less, middle, high)
        found = (nodes >= 0) & (low < stop)
        found &= self.tokens[np.minimum(low, len(self.tokens) - 1)] == tokens
        return np.where(found, low, -1)


class UniverseRule:
    """A universe as a rule for the phrase search: `closed` forbids to leave it, `prefer` makes it cost `bonus`."""

    root = 0

    def __init__(
        self, universe: Universe, end: int, vocab_size: int, bonus: float | None, device: torch.device
    ) -> None:
        self.universe, self.end, self.bonus, self.device = universe, end, bonus, device
        start = torch.zeros(vocab_size, dtype=torch.bool)
        start[torch.from_numpy(universe.children(np.zeros(1, dtype=np.int64))[1])] = True
        self.start = start.to(device)

    def apply(self, logprobs: Tensor, nodes: np.ndarray) -> Tensor:
        """Ranking scores of every next token; -inf (closed) or minus the bonus (prefer) outside. (N, V)"""
        if self.bonus is None:
            ranked = torch.full_like(logprobs, -torch.inf)
        else:
            inside = torch.from_numpy(nodes >= 0).to(logprobs)
            ranked = logprobs - self.bonus * inside[:, None]
        first = torch.from_numpy(np.flatnonzero(nodes == self.root)).to(self.device)
        if len(first):  # thousands of children, the same for every item
            ranked[first] = torch.where(self.start, logprobs[first], ranked[first])
        rows = np.flatnonzero(nodes > self.root)
        owner, tokens = self.universe.children(nodes[rows])
        ending = rows[self.universe.terminal[nodes[rows]]]
        flat = np.concatenate([rows[owner] * logprobs.shape[1] + tokens, ending * logprobs.shape[1] + self.end])
        index = torch.from_numpy(flat).to(self.device)
        ranked.view(-1)[index] = logprobs.reshape(-1)[index]
        return ranked

    def descend(self, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The nodes after taking tokens; -1 outside."""
        return self.universe.descend(nodes, tokens)


def _digest(form: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(form.encode(), digest_size=8).digest(), "little"))


def _collect(phrases: Iterator[str], tokenizer: Any) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Phrases -> blocks of padded token rows (ids + 1; 0 is the end), sorted digests, number too long."""
    tokens = token_ids(tokenizer)
    kind = np.uint16 if len(tokenizer) < 2**16 else np.uint32
    blocks: list[np.ndarray] = []
    digests: list[np.ndarray] = []
    too_long = 0
    while chunk := list(islice(phrases, CHUNK)):
        forms = {normalize(phrase): phrase for phrase in chunk}
        forms.pop("", None)
        digests.append(np.array([_digest(form) for form in forms], dtype=np.uint64))
        rows = encode_keyphrases(tokenizer, list(forms.values()), tokens)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        fitting = (lengths > 0) & (lengths <= MAX_TOKENS)
        too_long += int((lengths > MAX_TOKENS).sum())
        rows, lengths = [row for row, fits in zip(rows, fitting, strict=True) if fits], lengths[fitting]
        block = np.zeros((len(rows), int(lengths.max(initial=1))), dtype=kind)
        block[np.arange(block.shape[1]) < lengths[:, None]] = np.concatenate([*rows, []]).astype(kind) + 1
        blocks.append(block)
    return blocks, np.unique(np.concatenate([*digests, np.zeros(0, dtype=np.uint64)])), too_long


def _sorted(blocks: list[np.ndarray]) -> np.ndarray:
    """Blocks of rows -> one matrix, rows sorted and different."""
    width = max((block.shape[1] for block in blocks), default=1)
    matrix = np.zeros((sum(len(block) for block in blocks), width), dtype=blocks[0].dtype)
    row = 0
    while blocks:  # each block is freed as soon as it is copied
        block = blocks.pop()
        matrix[row : row + len(block), : block.shape[1]] = block
        row += len(block)
    # Several ids in one 64-bit key: far fewer passes than one per column.
    each = 8 // matrix.dtype.itemsize
    shift = np.uint64(8 * matrix.dtype.itemsize)
    keys = []
    for start in range(0, width, each):
        key = np.zeros(len(matrix), dtype=np.uint64)
        for column in range(start, start + each):
            key <<= shift
            if column < width:
                key |= matrix[:, column]
        keys.append(key)
    order = np.lexsort(keys[::-1])
    changed = np.ones(len(matrix), dtype=bool)
    same = np.ones(max(len(matrix) - 1, 0), dtype=bool)
    for key in keys:
        ordered = key[order]
        same &= ordered[1:] == ordered[:-1]
    changed[1:] = ~same
    return matrix[order[changed]]


def _tree(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted rows -> (tokens, first, terminal), level by level."""
    tokens: list[np.ndarray] = [np.full(1, -1, dtype=np.int32)]
    counts: list[np.ndarray] = []  # children of each node
    terminal: list[np.ndarray] = []
    node = np.zeros(len(rows), dtype=np.int64)  # each row's node on the present level
    size = 1
    for column in range(rows.shape[1] + 1):
        ends = rows[:, column] == 0 if column < rows.shape[1] else np.ones(len(rows), dtype=bool)
        level_terminal = np.zeros(size, dtype=bool)
        level_terminal[node[ends]] = True
        terminal.append(level_terminal)
        rows, node = rows[~ends], node[~ends]
        if not len(rows):
            counts.append(np.zeros(size, dtype=np.int64))
            break
        token = rows[:, column]
        new = np.ones(len(rows), dtype=bool)
        new[1:] = (token[1:] != token[:-1]) | (node[1:] != node[:-1])
        counts.append(np.bincount(node[new], minlength=size))
        tokens.append(token[new].astype(np.int32) - 1)
        node = np.cumsum(new) - 1
        size = int(node[-1]) + 1
    first = np.concatenate([[1], 1 + np.cumsum(np.concatenate(counts))])
    kind = np.uint32 if first[-1] < 2**32 else np.int64
    return np.concatenate(tokens), first.astype(kind), np.concatenate(terminal)


def _stamp(source: Path, tokenizer: Any) -> str:
    """Changes when the file or the tokenizer does."""
    facts = source.stat()
    code = hashlib.blake2b(f"{FORMAT} {facts.st_size} {facts.st_mtime_ns}".encode(), digest_size=16)
    code.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    return code.hexdigest()
