"""Items -> padded batches of similar lengths under a token budget.

Items are sorted by (rounded target length, rounded source length); equal ones are shuffled every epoch;
the list is cut into micro-batches of about equal cost: rows × (longest source + longest target). The cuts depend
only on the lengths, so every epoch has the same number of micro-batches. That number is a multiple of
processes × accumulation: every optimizer step sums the same micro-batches for any number of processes,
and no item is dropped or repeated. A step takes micro-batches of different lengths, from short to long:
where items have between one and thirty keyphrases, a step that sees one kind learns less (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pusl.paradigms import Paradigm
from pusl.tokenizer import TokenIds
from pusl.training.losses import UNUSED
from pusl.training.objective import IGNORED, counted_positions
from pusl_eval.files import InputError

BLOCK = 1 << 16  # items turned into Python numbers at once
GRAIN = 4  # lengths within one grain count as equal, which leaves room for shuffling


@dataclass(frozen=True)
class Draw:
    """One item of one micro-batch: which item, in which epoch, in which micro-batch of the run."""

    index: int
    epoch: int
    batch: int


@dataclass
class TokenizedItem:
    """A tokenized item: document ids and the ids of each keyphrase, in target order."""

    source: Sequence[int] | np.ndarray
    phrases: list[list[int]]
    batch: int = 0
    restarts: list[bool] | None = None  # which phrases open a sequence of their own; None: none can


class BatchPlan:
    """Lengths -> the micro-batches of every epoch.

    `rows` is the mean number of items per micro-batch; `tokens` overrides the budget that follows
    from it. `multiple` divides the number of micro-batches.
    """

    def __init__(
        self, sources: np.ndarray, targets: np.ndarray, rows: float, *, tokens: int | None = None, multiple: int = 1,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.seed, self.count, self.multiple = seed, len(sources), multiple
        if self.count < multiple:
            raise InputError(
                f"{self.count} items cannot fill {multiple} micro-batches a step (processes × accumulation); "
                "lower --accumulation or use fewer processes"
            )
        self._key = _key(sources, targets)
        order = np.argsort(self._key, kind="stable")
        sources, targets = sources[order], targets[order]
        del order
        self.tokens = tokens or _budget(sources, targets, rows)
        self._cuts = _cut(sources, targets, self.tokens, multiple)

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """The item numbers of each micro-batch, in training order."""
        random = np.random.default_rng((self.seed, epoch))
        shuffled = random.permutation(self.count)
        items = shuffled[np.argsort(self._key[shuffled], kind="stable")]
        strata = np.arange(len(self)).reshape(self.multiple, -1)  # of similar lengths: a step takes one batch of each
        order = np.stack([random.permutation(stratum) for stratum in strata], 1).ravel()
        return [items[self._cuts[i] : self._cuts[i + 1]] for i in order]


def _key(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Sorts by rounded target length, then by rounded source length, in four bytes an item."""
    high, low = (np.minimum(-(-lengths // GRAIN), 0xFFFF).astype(np.uint32) for lengths in (targets, sources))
    return (high << np.uint32(16)) | low


def _budget(sources: np.ndarray, targets: np.ndarray, rows: float) -> int:
    """The token budget whose batches have `rows` items on average, padding included."""
    step = max(1, len(sources) // 50_000)  # a sample of the sorted items is enough
    sources, targets = sources[::step], targets[::step]
    wanted = max(1.0, len(sources) / rows)
    tokens = max(1.0, rows * float((sources + targets).mean()))
    for _ in range(5):
        tokens *= (len(_cut(sources, targets, max(1, round(tokens)), 1)) - 1) / wanted
    return max(1, round(tokens))


def _cut(sources: np.ndarray, targets: np.ndarray, tokens: int, multiple: int) -> np.ndarray:
    """Where sorted items are cut: no batch above `tokens` (except single items), a multiple of batches.

    Where there are too few items for the next multiple, some of the shortest share a batch.
    Lengths are rounded up to the grain, so that equal items can be exchanged without overflow.
    """
    cuts, rows, longest = [0], 0, [0, 0]
    for low in range(0, len(sources), BLOCK):  # Python numbers of a million items would fill 100 MB
        places = slice(low, low + BLOCK)
        costs = np.stack([-(-sources[places] // GRAIN) * GRAIN, -(-targets[places] // GRAIN) * GRAIN]).T
        for number, (source, target) in enumerate(costs.tolist(), low):
            grown = [max(longest[0], source), max(longest[1], target)]
            if rows and (rows + 1) * sum(grown) > tokens:
                cuts.append(number)
                rows, grown = 0, [source, target]
            rows, longest = rows + 1, grown
    cuts.append(len(sources))
    goal = -(-(len(cuts) - 1) // multiple) * multiple
    if goal > len(sources):
        goal -= multiple
    for place in range(1, len(cuts) - goal):  # pairs of the first, which are the shortest
        del cuts[place]
    while len(cuts) - 1 < goal:
        sizes = np.diff(cuts)
        widest = int(sizes.argmax())
        cuts.insert(widest + 1, cuts[widest] + int(sizes[widest]) // 2)
    return np.array(cuts)


class PlanSampler:
    """A plan -> this process's micro-batches of the current epoch, as `DataLoader` expects them.

    Process r of P takes micro-batches r, r + P, …: the P × accumulation micro-batches of an optimizer
    step are the same for every P.
    """

    def __init__(self, plan: BatchPlan, rank: int = 0, world: int = 1) -> None:
        self.plan, self.rank, self.world, self.current = plan, rank, world, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer at the start of every epoch."""
        self.current = epoch

    def __len__(self) -> int:
        return len(self.plan) // self.world

    def __iter__(self) -> Iterator[list[Draw]]:
        first = self.current * len(self.plan)
        for number, items in enumerate(self.plan.epoch(self.current)):
            if number % self.world == self.rank:
                yield [Draw(int(index), self.current, first + number) for index in items]


@dataclass
class Collator:
    """Items -> tensors for one paradigm. `order_free` asks for the lists of the multi-softmax loss.

    Marks that the decoder writes by itself (`<bok>`) need not be learned. Counting them in the loss all the
    same (`learn_bok`) makes models from scratch worse at what counts (docs/log.md).
    """

    paradigm: Paradigm
    tokens: TokenIds
    max_target_length: int = 256
    order_free: bool = False
    multiple: int = 8
    learn_bok: bool = False

    def __call__(self, items: Sequence[TokenizedItem]) -> dict[str, Any]:
        rows = [self._row(item) for item in items]
        source = _pad([item.source for item in items], self.tokens.pad, self.multiple)  # (B, S)
        lengths = torch.tensor([len(item.source) for item in items])
        labels = _pad([row["labels"] for row in rows], IGNORED, self.multiple)  # (B, T)
        counted = torch.ones_like(labels, dtype=torch.bool)
        for mark in () if self.learn_bok else self.paradigm.unlearned:
            counted &= labels != getattr(self.tokens, mark)
        labels_counted = labels.where(counted, IGNORED)
        batch = {
            "input_ids": source,
            "attention_mask": (torch.arange(source.shape[1]) < lengths[:, None]).long(),
            "decoder_input_ids": _pad([row["inputs"] for row in rows], self.tokens.pad, self.multiple),  # (B, T)
            "labels": labels_counted,
            "positions": counted_positions(labels_counted),  # (N,) on a GPU their number would cost a wait
            "batch_number": items[0].batch,
            "items": len(items),
        }
        if self.paradigm.packs_rows or items[0].restarts is not None:
            batch["blocks"] = _pad([row["blocks"] for row in rows], -1, self.multiple)
        if self.order_free:
            allowed = _pad([ids for row in rows for ids in row["allowed"]], UNUSED, 1)  # one row per target token
            batch["allowed"] = allowed[counted[labels != IGNORED]]  # (N, M)
        return batch

    def _row(self, item: TokenizedItem) -> dict[str, list[Any]]:
        """An item's sequences side by side; `blocks` tells them apart."""
        row: dict[str, list[Any]] = {"inputs": [], "labels": [], "blocks": [], "allowed": []}
        sequences = self.paradigm.sequences(
            item.phrases, self.tokens, self.max_target_length, order_free=self.order_free, restarts=item.restarts
        )
        for number, (target, allowed) in enumerate(sequences):
            if len(row["labels"]) + len(target) > self.max_target_length:
                break
            row["inputs"] += [self.tokens.start, *target[:-1]]
            row["labels"] += target
            row["blocks"] += [number] * len(target)
            row["allowed"] += allowed
        return row


def target_lengths(phrase_tokens: np.ndarray, phrases: np.ndarray, paradigm: Paradigm, limit: int) -> np.ndarray:
    """Target length of each item from its phrases' ids and number, marks included."""
    return np.minimum(phrase_tokens + phrases * paradigm.marks_per_phrase, limit)


def _pad(rows: Sequence[Sequence[int] | np.ndarray], filler: int, multiple: int) -> torch.Tensor:
    width = max(map(len, rows))
    width = -(-width // multiple) * multiple
    padded = np.full((len(rows), width), filler, dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)
