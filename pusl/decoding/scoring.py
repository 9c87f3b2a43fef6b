"""Texts + candidate phrases -> the log-probability of every candidate, written or not.

The document is encoded once. All its candidates stand in ONE decoder row: a tree in which candidates share
their common beginnings, and each token sees its own ancestors only. T5's position bias depends on distances
alone, so a candidate's tokens get the numbers they would get in a row of their own.

What is computed, by paradigm (the numbers that `generate` reports for the same phrase):

    pusl           log P(phrase EOK | BOK): the phrase fills the next slot
    one2one        log P(phrase EOS)
    one2seq, groov log P(phrase SEP or EOS): the sequence begins with the phrase, whatever follows
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pusl.decoding import arguments
from pusl.decoding.calibration import Calibration
from pusl.decoding.cpu.engine import LOGITS, Engine, Pool, padded
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.tokenizer import encode_keyphrases, encode_texts
from pusl_eval.files import InputError

if TYPE_CHECKING:
    from pusl.decoding.generator import KeyphraseGenerator

COLUMNS = 16  # tokens of an item fed at once; fixed, so that the shape of its products is its own affair


@dataclass
class PhraseScores:
    """Scores of one text's candidates, in their order.

    `scores` are log-probabilities of whole phrases (-inf for a blank one), `normalized` the same per token.
    `probabilities` is None without a calibration.
    """

    scores: list[float]
    normalized: list[float]
    probabilities: list[float] | None = None


class PhraseTree:
    """An opening and the phrases that may follow it, level by level; parents stand before their children.

    >>> tree = PhraseTree([0, 7], [[4, 5], [4], []])
    >>> tree.tokens.tolist(), tree.parents.tolist(), tree.leaves
    ([0, 7, 4, 5], [-1, 0, 1, 2], [3, 2, -1])
    """

    def __init__(self, opening: Sequence[int], phrases: Sequence[Sequence[int]]) -> None:
        tokens, parents = list(opening), list(range(-1, len(opening) - 1))
        self.root = len(opening) - 1
        at = [self.root if phrase else -1 for phrase in phrases]
        for level in range(max(map(len, phrases), default=0)):
            known: dict[tuple[int, int], int] = {}
            for number in sorted((i for i, phrase in enumerate(phrases) if len(phrase) > level), key=at.__getitem__):
                edge = (at[number], phrases[number][level])
                if edge not in known:
                    known[edge] = len(tokens)
                    parents.append(edge[0])
                    tokens.append(edge[1])
                at[number] = known[edge]
        self.leaves = at  # node of each phrase's last token; -1 for a blank phrase
        self.tokens, self.parents = np.array(tokens, np.int64), np.array(parents, np.int64)

    def __len__(self) -> int:
        return len(self.tokens)

    def blocks(self, columns: int) -> int:
        """How often the item has to be fed, so many tokens at a time."""
        return -(-len(self) // columns)

    def ancestors(self) -> np.ndarray:
        """Each node, its parent, its parent's parent, ...; -1 behind the first token. (nodes, depth)

        >>> PhraseTree([0], [[4, 5], [6]]).ancestors().tolist()
        [[0, -1, -1], [1, 0, -1], [2, 0, -1], [3, 1, 0]]
        """
        lists = [np.arange(len(self))]
        while (above := np.where(lists[-1] >= 0, self.parents[lists[-1]], -1)).max() >= 0:
            lists.append(above)
        return np.stack(lists, 1)

    def scores(self, taken: np.ndarray, ended: np.ndarray) -> list[float]:
        """Log-probabilities of the phrases, from those of each node's token and of an end after it."""
        total = [0.0] * len(self)
        for node in range(self.root + 1, len(self)):
            total[node] = total[self.parents[node]] + float(taken[node])
        return [total[leaf] + float(ended[leaf]) if leaf >= 0 else -math.inf for leaf in self.leaves]


def candidate_lists(candidates: Iterable[str] | Iterable[Iterable[str]], texts: int) -> list[list[str]]:
    """One list per text, from one list for all or one for each.

    >>> candidate_lists(["cat", "dog"], 2), candidate_lists([["cat"], []], 2)
    ([['cat', 'dog'], ['cat', 'dog']], [['cat'], []])
    """
    if isinstance(candidates, str):
        raise InputError("candidates must be a list of phrases, or one list of phrases per text")
    given = list(candidates)
    if given and isinstance(given[0], str):
        return [arguments.text_list(given, "candidates")] * texts
    if len(given) != texts:
        raise InputError(f"candidates has {len(given)} lists for {texts} texts")
    return [arguments.text_list(phrases, f"candidates[{number}]") for number, phrases in enumerate(given)]


def score_candidates(
    generator: KeyphraseGenerator,
    texts: str | Iterable[str],
    candidates: Iterable[str] | Iterable[Iterable[str]],
    *,
    known: Iterable[Iterable[str]] | None = None,
    batch_size: int = 64,
    calibration: Calibration | None = None,
) -> list[PhraseScores]:
    """What `KeyphraseGenerator.score` does."""
    texts = arguments.text_list(texts)
    batch_size = arguments.whole_number("batch_size", batch_size, 1)
    known = None if known is None else arguments.known_lists(known, len(texts))
    lists = candidate_lists(candidates, len(texts))
    if not texts:
        return []
    spelled = list(dict.fromkeys(phrase for phrases in lists for phrase in phrases))
    tokens, paradigm = generator.tokens, generator.paradigm
    rows = dict(zip(spelled, encode_keyphrases(generator.tokenizer, spelled, tokens), strict=True))
    trees, shared = [], {}
    for number, phrases in enumerate(lists):
        told = generator._known_ids(known[number]) if known is not None and paradigm.reads_known else []
        opening = paradigm.prefix(tokens, told)
        key = (tuple(opening), tuple(phrases))
        if key not in shared:
            shared[key] = PhraseTree(opening, [rows[phrase] for phrase in phrases])
        trees.append(shared[key])
    source = encode_texts(generator.tokenizer, list(texts), generator.max_source_length)
    found = score_trees(generator.engine, source, trees, paradigm.ends(tokens), batch_size)
    calibration = calibration or generator.calibration
    return [
        PhraseScores(
            scores,
            [score / (len(rows[phrase]) + 1) for score, phrase in zip(scores, phrases, strict=True)],
            None if calibration is None else [calibration(score) for score in scores],
        )
        for scores, phrases in zip(found, lists, strict=True)
    ]


@torch.inference_mode()
def score_trees(
    engine: Engine | DeviceEngine,
    texts: Sequence[Sequence[int]],
    trees: Sequence[PhraseTree],
    ends: Sequence[int],
    slots: int = 64,
) -> list[list[float]]:
    """Log-probabilities of each text's phrases; any of `ends` may close a phrase."""
    slots = max(1, min(slots, LOGITS // (COLUMNS * engine.vocab_size), len(texts)))
    # Items of one batch need about as many steps; those that need most stand first, so the rest can drop out.
    order = sorted(range(len(texts)), key=lambda i: (-trees[i].blocks(COLUMNS), -len(texts[i]), i))
    if isinstance(engine, DeviceEngine):
        return engine.score_trees(texts, trees, order, ends, slots=slots, columns=COLUMNS)
    found: list[list[float]] = [[] for _ in texts]
    pool = Pool(engine, slots)
    for first in range(0, len(order), slots):
        batch = order[first : first + slots]
        pool.fill(range(len(batch)), [texts[i] for i in batch])
        for i, scores in zip(batch, _score_batch(engine, pool, [trees[i] for i in batch], ends), strict=True):
            found[i] = scores
    pool.release()
    return found


def _score_batch(engine: Engine, pool: Pool, trees: Sequence[PhraseTree], ends: Sequence[int]) -> list[list[float]]:
    longest = max(map(len, trees))
    tokens, parents = np.zeros((len(trees), longest), np.int64), np.full((len(trees), longest), -1, np.int64)
    for slot, tree in enumerate(trees):
        tokens[slot, : len(tree)], parents[slot, : len(tree)] = tree.tokens, tree.parents
    sizes, roots = np.array([len(tree) for tree in trees]), np.array([tree.root for tree in trees])
    taken, ended = np.zeros((len(trees), longest)), np.zeros((len(trees), longest))  # log P(token), log P(end after it)
    closing = torch.tensor(list(ends))
    for low in range(0, longest, COLUMNS):
        going = int((sizes > low).sum())  # they stand first
        high = np.minimum(sizes[:going], low + COLUMNS)
        rows = np.repeat(np.arange(going), high - low)
        columns = np.arange(len(rows)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
        places = columns + low
        distance = _distance(parents, rows, columns, places, going, padded(int(high.max())))
        wanted = np.flatnonzero(places >= roots[rows])
        if not len(wanted):
            wanted = np.array([0])  # an opening of several blocks: only its keys and values are needed
        logits = engine.step(pool, tokens[rows, places], rows, columns, places, distance, wanted)
        logprobs = logits.log_softmax(-1)
        ended[rows[wanted], places[wanted]] = logprobs.index_select(1, closing).double().logsumexp(-1).numpy()
        line = np.full((going, COLUMNS), -1)  # which of the wanted rows holds a node's logits
        line[rows[wanted], columns[wanted]] = np.arange(len(wanted))
        inside = (parents[:going] >= low) & (parents[:going] < low + COLUMNS) & (parents[:going] >= roots[:going, None])
        owner, child = np.nonzero(inside)
        source = torch.from_numpy(line[owner, parents[owner, child] - low])
        taken[owner, child] = logprobs[source, torch.from_numpy(tokens[owner, child])].double().numpy()
    return [tree.scores(taken[slot], ended[slot]) for slot, tree in enumerate(trees)]


def _distance(
    parents: np.ndarray, rows: np.ndarray, columns: np.ndarray, places: np.ndarray, going: int, length: int
) -> np.ndarray:
    """How far back each node of a tree lies for every fed token; negative unless it is an ancestor. (n, Q, T)"""
    seen = np.full((going, COLUMNS, length), -1, np.int64)
    at, back = places, 0
    while len(rows):
        seen[rows, columns, at] = back
        above = parents[rows, at]
        inside = above >= 0
        rows, columns, at, back = rows[inside], columns[inside], above[inside], back + 1
    return seen
