"""A data folder -> FastXML's nDCG by the number of trees, beside the plain label tree and kNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tables.classifiers import KS, measure, predictions
from tables.registry import Row, Work, declare

TREES = (1, 5, 10, 20)


def draw(rows: Sequence[Row], figure: Any) -> None:
    """nDCG@5 against the number of trees, the others as lines."""
    axes = figure.add_subplot()
    forest = [row for row in rows if row["system"] == "fastxml"]
    axes.plot([row["trees"] for row in forest], [row["nDCG@5"] for row in forest], marker="o", label="fastxml")
    for number, row in enumerate(row for row in rows if row["system"] != "fastxml"):
        axes.axhline(row["nDCG@5"], color=f"C{number + 1}", linewidth=1, linestyle="--", label=str(row["system"]))
    axes.set(xlabel="trees", ylabel="nDCG@5 (%)", xticks=[row["trees"] for row in forest])
    axes.legend()


@declare(
    "fastxml-ndcg", source="FastXML", item="nDCG", shows="nDCG@1, 3 and 5 by the number of trees", picture=draw,
    note="`/k`: divided by the sum over k ranks, also where an item has fewer labels.",
)  # fmt: skip
def ndcg(work: Work) -> list[Row]:
    """One row per size of the forest, and two other systems to compare with."""
    plans: list[tuple[str, dict[str, int]]] = [("fastxml", {"trees": t}) for t in (TREES[:2] if work.smoke else TREES)]
    rows: list[Row] = []
    for system, settings in [*plans, ("knn", {}), ("plt", {})]:
        path, seconds = predictions(work, system, work.seeds((0,))[0], **settings)
        name = " ".join([system, *map(str, settings.values())])
        found = work.cell(name, lambda path=path: _ndcg(work, path))  # type: ignore[misc]
        rows.append({"system": system, "trees": settings.get("trees"), **found, "seconds": seconds})
    return rows


def _ndcg(work: Work, path: Any) -> dict[str, float]:
    found = measure(work, path, KS)["scores"]["all"]
    return {
        f"nDCG@{k}{name}": 100 * float(found[f"nDCG@{k}{ours}"] or 0)
        for name, ours in (("", ""), (" /k", "_k"))
        for k in KS
    }
