"""Held-out scores of the dev items -> a table of sources, each source left out, and how reliable scores are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pusl.fusion.features import CandidatePool, Pooler
from pusl.fusion.ranker import Ranker, cross_fit, platt
from pusl_eval.normalize import normalize

BINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
ABLATION_FOLDS = 3


def measure(
    pooler: Pooler, pools: Sequence[CandidatePool], references: Sequence[Sequence[str]], held_out: np.ndarray,
    mu: float, seed: int = 0, ablate: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """What fusion.json tells: B@μ, B@2μ and F1@O of every ranking on the dev items, in percent."""
    wanted = [frozenset(map(normalize, phrases)) for phrases in references]
    ks = [max(1, math.floor(mu + 0.5)), max(1, math.floor(2 * mu + 0.5))]
    features = np.concatenate([pool.features for pool in pools])
    names = pooler.names
    rows = {"fused": accuracy(pools, wanted, held_out, ks)}
    rows["reciprocal ranks"] = accuracy(pools, wanted, Ranker(names).log_odds(features), ks)
    for source in pooler.sources:
        own = features[:, names.index(f"{source.name}:reciprocal_rank")]
        rows[source.name] = accuracy(pools, wanted, np.where(own > 0, own, -np.inf), ks)
    right = np.concatenate([[form in known for form in p.forms] for p, known in zip(pools, wanted, strict=True)])
    left_out = {}
    if ablate and len(pooler.sources) > 1:
        for source in pooler.sources:
            scores = _without(pooler, pools, features, right.astype(float), source.name, seed)
            left_out[source.name] = accuracy(pools, wanted, scores, ks)
    return {
        "k": ks, "percent": rows, "without": left_out,
        "reliability": reliability(pools, right, held_out, ks[1], seed),
        "recall of the pool": _recall(pools, wanted),
    }  # fmt: skip


def accuracy(
    pools: Sequence[CandidatePool], references: Sequence[frozenset[str]], scores: np.ndarray, ks: Sequence[int]
) -> dict[str, float]:
    """B@k (right ones per keyphrase asked for) and F1@O (k = number of references) of one ranking, in percent."""
    found: dict[str, list[float]] = {name: [] for name in (*(f"B@{k}" for k in ks), "F1@O")}
    start = 0
    for pool, known in zip(pools, references, strict=True):
        own = scores[start : start + len(pool.forms)]
        start += len(pool.forms)
        order = [i for i in np.argsort(-own, kind="stable").tolist() if own[i] > -np.inf]
        hits = np.cumsum([pool.forms[i] in known for i in order]) if order else np.zeros(1)
        for k in ks:
            found[f"B@{k}"].append(float(hits[min(k, len(hits)) - 1]) / k)
        count = len(known)
        given = min(count, len(order))
        right = float(hits[given - 1]) if given else 0.0
        found["F1@O"].append(2 * right / (given + count) if count else 0.0)
    return {name: round(100 * float(np.mean(values)), 2) for name, values in found.items()}


def _without(
    pooler: Pooler, pools: Sequence[CandidatePool], features: np.ndarray, right: np.ndarray, name: str, seed: int
) -> np.ndarray:
    """Held-out log-odds of a ranker without one source; what only it proposed is gone."""
    others = np.array([bool(set(ranks) - {name}) for pool in pools for ranks in pool.ranks])
    owner = np.repeat(np.arange(len(pools)), [len(pool.forms) for pool in pools])
    kept = [place for place, column in enumerate(pooler.names) if not column.startswith(f"{name}:")]
    part = features[others][:, kept].copy()
    names = [pooler.names[place] for place in kept]
    named = features[others, pooler.names.index(f"{name}:reciprocal_rank")] > 0
    part[:, names.index("agreement")] -= named
    ranks = part[:, [place for place, column in enumerate(names) if column.endswith(":reciprocal_rank")]]
    part[:, names.index("best_rank")] = ranks.max(1)
    scores = np.full(len(features), -np.inf)
    if not others.any():  # no other source proposes anything
        return scores
    scores[others] = cross_fit(part, right[others], owner[others], names, folds=ABLATION_FOLDS, seed=seed)
    return scores


def reliability(
    pools: Sequence[CandidatePool], right: np.ndarray, held_out: np.ndarray, k: int, seed: int
) -> dict[str, Any]:
    """Probability against share of right ones among the k best of each item, by bins; `gap` is the weighted mean.

    The curve is fitted on one half of the items and looked at on the other, both ways.
    """
    owner = np.repeat(np.arange(len(pools)), [len(pool.forms) for pool in pools])
    half = (np.random.default_rng(seed).permutation(len(pools)) % 2)[owner]
    chances = np.zeros(len(held_out))
    for side in (0, 1):
        slope, shift = platt(held_out[half != side], right[half != side])
        chances[half == side] = 1 / (1 + np.exp(-(slope * held_out[half == side] + shift)))
    best = np.zeros(len(held_out), bool)
    for start, stop in zip(*_spans(pools), strict=True):
        best[start + np.argsort(-held_out[start:stop], kind="stable")[:k]] = True
    chances, hits = chances[best], right[best]
    place = np.digitize(chances, BINS[1:-1])
    rows = [
        {"score": float(chances[place == b].mean()), "right": float(hits[place == b].mean()), "count": int(n)}
        for b in range(len(BINS) - 1)
        if (n := int((place == b).sum()))
    ]
    gap = sum(row["count"] * abs(row["score"] - row["right"]) for row in rows) / max(1, len(chances))
    return {"gap": round(100 * float(gap), 2), "bins": rows}


def _spans(pools: Sequence[CandidatePool]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([len(pool.forms) for pool in pools])
    return np.concatenate([[0], ends[:-1]]), ends


def _recall(pools: Sequence[CandidatePool], references: Sequence[frozenset[str]]) -> float:
    found = sum(len(known & set(pool.forms)) for pool, known in zip(pools, references, strict=True))
    return round(100 * found / max(1, sum(map(len, references))), 2)


def describe(report: dict[str, Any]) -> str:
    """The table that `pusl fuse` prints."""
    heads = list(report["percent"]["fused"])
    lines = ["dev items, percent, by folds" + " " * 4 + "".join(f"{head:>9}" for head in heads)]
    for name, row in report["percent"].items():
        lines.append(f"  {name:<30}" + "".join(f"{row[head]:>9.1f}" for head in heads))
    fused = report["percent"]["fused"]
    for name, row in report["without"].items():
        cells = "".join(f"{row[head] - fused[head]:>+9.1f}" for head in heads)
        lines.append(f"  {'without ' + name:<30}{cells}")
    gap, recall = report["reliability"]["gap"], report["recall of the pool"]
    lines.append(f"Scores are off by {gap:.1f} points on average; the candidates hold {recall:.0f}% of the keyphrases.")
    return "\n".join(lines)
