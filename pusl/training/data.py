"""A training file -> token ids on disk -> memory-mapped items.

The file is read once, in a stream; ids go to flat arrays that training maps into memory. What stays in
memory is a few numbers per item and, while reading, the distinct labels (each is tokenized once), so
a million items cost little more than a thousand. A resumed run uses a finished folder again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch.utils.data import Dataset

from pusl.checkpoint import save_labels
from pusl.examples import Example
from pusl.tokenizer import TokenIds, encode_keyphrases, encode_texts
from pusl.training.collate import Draw, TokenizedItem
from pusl_eval.files import InputError, write_json
from pusl_eval.normalize import distinct

CHUNK = 1000  # examples tokenized at once
BLOCK = 1 << 16  # items measured at once


@dataclass(frozen=True)
class DataSummary:
    """What the training file holds. μ counts every item, as `pusl_eval` does."""

    items: int  # in the file
    trained: int  # with at least min_keyphrases
    labels: int
    mu: float
    longest_phrase: int  # in tokens
    dropped_phrases: int  # longer than max_phrase_tokens, or blank after tokenization
    cut_texts: int  # longer than max_source_length


def prepare(
    examples: Iterable[Example], tokenizer: Any, tokens: TokenIds, folder: Path, *, max_source_length: int,
    max_phrase_tokens: int, min_keyphrases: int = 1, name: str = "the training file",
) -> DataSummary:  # fmt: skip
    """Tokenizes examples into `folder`; summary.json is written last and marks it as complete.

    `name` is what an error calls the examples.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    known: dict[str, int] = {}
    counts = _LabelCounts()
    items = trained = occurrences = dropped = cut = 0
    with (
        _RaggedWriter(folder / "source") as sources,
        _RaggedWriter(folder / "item") as labels,
        _RaggedWriter(folder / "label") as phrases,
    ):
        for chunk in _chunks(examples):
            kept = [(example.text, distinct(example.keyphrases)) for example in chunk]
            items += len(kept)
            occurrences += sum(len(words) for _, words in kept)
            new = list(dict.fromkeys(word for _, words in kept for word in words if word not in known))
            for word, ids in zip(new, encode_keyphrases(tokenizer, new, tokens), strict=True):
                known[word] = len(known)
                # A dropped phrase keeps its number with no tokens, and items leave it out.
                phrases.add(ids if len(ids) <= max_phrase_tokens else [])
            usable = phrases.lengths
            rows = [[known[word] for word in words] for _, words in kept]
            fitting = [[number for number in row if usable[number]] for row in rows]
            dropped += sum(map(len, rows)) - sum(map(len, fitting))
            chosen = [(text, row) for (text, _), row in zip(kept, fitting, strict=True) if len(row) >= min_keyphrases]
            for ids in encode_texts(tokenizer, [text for text, _ in chosen], max_source_length + 1):
                cut += len(ids) > max_source_length
                sources.add([*ids[: max_source_length - 1], tokens.eos])
            for _, row in chosen:
                labels.add(row)
                counts.increment(row)
            trained += len(chosen)
        longest = int(max(phrases.lengths, default=0))
    if not trained:
        few = "a keyphrase" if min_keyphrases == 1 else f"{min_keyphrases} keyphrases (--min-keyphrases)"
        raise InputError(f"{name} has no item with {few}; there is nothing to learn")
    counts.save(folder / "counts.npy", len(known))
    seen = [label for label, count in zip(known, np.load(folder / "counts.npy"), strict=True) if count]
    save_labels(folder, seen)
    summary = DataSummary(items, trained, len(seen), occurrences / items, longest, dropped, cut)
    write_json(folder / "summary.json", asdict(summary))
    return summary


class PreparedData(Dataset):
    """A prepared folder as a dataset: `data[Draw]` is a TokenizedItem with its keyphrases in target order."""

    def __init__(self, folder: Path, order: str = "shuffle", seed: int = 0, restart: float = 0.0) -> None:
        self.folder, self.order, self.seed, self.restart = folder, order, seed, restart
        self.summary = read_summary(folder)
        self._source, self._source_ends = _map(folder / "source")
        self._labels, self._label_ends = _map(folder / "item")
        self._tokens, self._token_ends = _map(folder / "label")
        self._counts = np.load(folder / "counts.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._source_ends) - 1

    def __getitem__(self, draw: Draw) -> TokenizedItem:
        row = np.array(_row(self._labels, self._label_ends, draw.index))
        # Depends on item and epoch only: the same on every process and in every resumed run.
        chance = np.random.default_rng((self.seed, draw.epoch, draw.index))
        if self.order == "shuffle":
            chance.shuffle(row)
        elif self.order == "frequency":
            row = row[np.argsort(-self._counts[row], kind="stable")]
        phrases = [_row(self._tokens, self._token_ends, label).tolist() for label in row]
        source = _row(self._source, self._source_ends, draw.index)
        if not self.restart:
            return TokenizedItem(source, phrases, draw.batch)
        return TokenizedItem(source, phrases, draw.batch, (chance.random(len(row)) < self.restart).tolist())

    def source_lengths(self) -> np.ndarray:
        """Document tokens of each item."""
        found = np.empty(len(self), np.int32)
        for low, high in self._blocks():
            found[low:high] = np.diff(self._source_ends[low : high + 1])
        return found

    def phrase_lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """(sum of phrase tokens, number of phrases) of each item."""
        label_lengths = np.diff(self._token_ends).astype(np.int32)
        totals, counts = np.empty(len(self), np.int32), np.empty(len(self), np.int32)
        for low, high in self._blocks():
            ends = np.array(self._label_ends[low : high + 1])
            lengths = label_lengths[self._labels[ends[0] : ends[-1]]]
            totals[low:high] = np.add.reduceat(lengths, ends[:-1] - ends[0])
            counts[low:high] = np.diff(ends)
        return totals, counts

    def keyphrase_tokens(self) -> np.ndarray:
        """The ids that occur in keyphrases, each once."""
        return np.unique(self._tokens)

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Item ranges: one temporary number per label of a million items would need more memory than the data."""
        for low in range(0, len(self), BLOCK):
            yield low, min(low + BLOCK, len(self))


def read_summary(folder: Path) -> DataSummary:
    """The summary of a complete folder."""
    return DataSummary(**json.loads((folder / "summary.json").read_text(encoding="utf-8")))


def is_prepared(folder: Path) -> bool:
    """Whether `prepare` finished here."""
    return (folder / "summary.json").is_file()


class _RaggedWriter:
    """Writes rows of ids as one flat int32 file and one int64 file of row ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lengths: list[int] = []
        self._keep = path.name == "label"
        self._end = 0

    def __enter__(self) -> _RaggedWriter:
        self._ids: BinaryIO = open(self.path.with_suffix(".ids"), "wb")
        self._ends: BinaryIO = open(self.path.with_suffix(".ends"), "wb")
        self._ends.write(np.int64(0).tobytes())
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()
        self._ends.close()

    def add(self, row: list[int]) -> None:
        self._end += len(row)
        self._ids.write(np.asarray(row, dtype=np.int32).tobytes())
        self._ends.write(np.int64(self._end).tobytes())
        if self._keep:
            self.lengths.append(len(row))


class _LabelCounts:
    """Counts per label in an array that doubles when labels appear."""

    def __init__(self) -> None:
        self._values = np.zeros(1024, dtype=np.int64)

    def increment(self, row: list[int]) -> None:
        while max(row) >= len(self._values):
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
        self._values[row] += 1

    def save(self, path: Path, size: int) -> None:
        if size > len(self._values):
            self._values = np.concatenate([self._values, np.zeros(size - len(self._values), dtype=np.int64)])
        np.save(path, self._values[:size])


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    stream = iter(examples)
    while chunk := list(islice(stream, CHUNK)):
        yield chunk


def _map(path: Path) -> tuple[np.ndarray, np.ndarray]:
    ids_file = path.with_suffix(".ids")
    empty = ids_file.stat().st_size == 0  # an empty file cannot be mapped
    ids = np.zeros(0, np.int32) if empty else np.memmap(ids_file, dtype=np.int32, mode="r")
    return ids, np.memmap(path.with_suffix(".ends"), dtype=np.int64, mode="r")


def _row(ids: np.ndarray, ends: np.ndarray, number: int) -> np.ndarray:
    return ids[ends[number] : ends[number + 1]]
