"""Examples with interactions -> the same examples with a group each: hot or rare, diverse or narrow.

An item is hot if buyers interacted with it often, and diverse if it has many different keyphrases. What is
measured by group afterwards (`pusl evaluate` prints it) shows for whom a model is lazy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pusl.config import check, option
from pusl.data.thin import read_popularity
from pusl.examples import Columns, Example, read_examples, write_examples
from pusl_eval.files import InputError, check_apart, check_output
from pusl_eval.laziness import DIVERSE, HOT
from pusl_eval.normalize import distinct_forms

GROUPS = ("hot-diverse", "hot-narrow", "rare-diverse", "rare-narrow")


@dataclass(frozen=True)
class GroupConfig:
    """Where the groups begin."""

    hot: float = option(HOT, "hot: at least this many interactions (the sum of an item's counts)", minimum=0)
    diverse: int = option(DIVERSE, "diverse: at least this many different keyphrases", minimum=1)
    hot_share: float | None = option(
        None, "hot: this share of the items, the most popular ones, instead of --hot", minimum=0
    )
    popularity: str | None = option(
        None, "file with `id TAB number` lines, e.g. downloads, used as interactions; missing ids count 0"
    )
    popularity_is_rank: bool = option(False, "the numbers in --popularity are ranks, 1 being the most popular")

    def checked(self) -> GroupConfig:
        """Itself, if the options make sense together."""
        check(self)
        if self.hot_share is not None and not 0 < self.hot_share < 1:
            raise InputError(f"--hot-share {self.hot_share:g}: expected a share between 0 and 1")
        if self.popularity_is_rank and (self.popularity is None or self.hot_share is None):
            raise InputError("--popularity-is-rank needs --popularity FILE and --hot-share: a rank is not a count")
        return self


def group(
    path: str | Path, out: str | Path, config: GroupConfig, columns: Columns | None = None, force: bool = False
) -> dict[str, Any]:
    """Writes `path` to `out` with the field `group`; returns items, keyphrases and interactions per group."""
    config.checked()
    check_output(out, force)
    check_apart([out], {"input": path, "--popularity": config.popularity})
    known = read_popularity(config.popularity, config.popularity_is_rank) if config.popularity else None
    interactions, sizes = array("d"), array("q")
    for example in read_examples(path, columns=columns):
        interactions.append(_interactions(example, known, path))
        sizes.append(len(distinct_forms(example.keyphrases)))
    if known is not None and not any(interactions):
        raise InputError(f"--popularity {config.popularity}: holds no id of {path}")
    if config.hot_share is not None and not any(interactions):
        raise InputError(f"{path}: all counts are 0, so that no item is popular")
    popular, many = np.array(interactions), np.array(sizes)
    least = config.hot if config.hot_share is None else _least_of(popular, config.hot_share)
    hot, diverse = popular >= least, many >= config.diverse
    ranked = config.popularity_is_rank  # then no interactions are known
    names = [f"{'hot' if h else 'rare'}-{'diverse' if d else 'narrow'}" for h, d in zip(hot, diverse, strict=True)]
    written = write_examples(out, _named(path, columns, names), force)
    groups = {}
    for name in GROUPS:
        inside = np.array([one == name for one in names], dtype=bool)
        groups[name] = {
            "items": int(inside.sum()), "share": float(inside.mean()) if written else 0.0,
            "keyphrases_per_item": float(many[inside].mean()) if inside.any() else None,
            "interactions_per_item": float(popular[inside].mean()) if inside.any() and not ranked else None,
        }  # fmt: skip
    first = {"hot_to_rank": round(1 / least)} if ranked else {"hot_from": float(least)}
    return {"items": written, **first, "diverse_from": config.diverse, "groups": groups}


def _interactions(example: Example, known: dict[str, float] | None, path: str | Path) -> float:
    if known is not None:
        return known.get(example.id, 0.0)
    if example.counts is None:
        raise InputError(
            f"{path}: id {example.id!r} has no counts; name their column with --counts-column, or give the items' "
            "popularity with --popularity FILE"
        )
    return float(sum(example.counts))


def _least_of(popular: np.ndarray, share: float) -> float:
    """The number from which on an item is among the most popular `share` of all; 0 is never popular."""
    count = max(1, round(share * len(popular)))
    return float(max(np.sort(popular)[len(popular) - count], popular[popular > 0].min()))


def _named(path: str | Path, columns: Columns | None, names: list[str]) -> Iterator[Example]:
    for example, name in zip(read_examples(path, columns=columns), names, strict=True):
        yield replace(example, group=name)
