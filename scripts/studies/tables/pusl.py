"""A data folder -> the tables and figures of the PUSL paper, from the parts of reproduce.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tables.pusl_study import (
    by_time,
    evaluated,
    hot_and_diverse,
    judged,
    mean,
    metric_means,
    regrouped,
    scored,
    study_of,
    title_of,
)
from tables.registry import Row, Work, declare

PUSL = "PUSL"
MAIN = ("one2one", "one2seq", "groov", "pusl", "pusl-pt")
JUDGED = ("one2seq", "pusl", "pusl-pt")
PARTS = ("narrow", "diverse", "all")
OWN_NUMBER = "Which table of the paper this is was inferred; what it shows is in its text."


def _rows(work: Work, systems: Sequence[str], names: Sequence[str], parts: Sequence[str] = PARTS) -> list[Row]:
    """One row per system; `μ` and `2μ` in a name stand for the study's budgets. Computed system by system."""
    study = study_of(work, systems)
    at = {"μ": str(study.k[0]), "2μ": str(study.k[1])}
    real = [f"{head}@{at.get(cut, cut)}" for head, cut in (name.split("@") for name in names)]

    def compute(system: str, truth: str) -> dict[str, Any]:
        found = scored(work, study, system, truth)
        cells: dict[str, Any] = {}
        for part in parts:
            means = metric_means(found, real, part)
            for shown, (name, value) in zip(names, means.items(), strict=True):
                sign = "#" if name.startswith("#") else ""
                cells[f"{sign}{shown} {part}"] = value
        return cells

    rows: list[Row] = []
    for truth in ("test", "complete"):
        if truth == "test" or work.optional_file(truth):
            for system in systems:
                cells = work.cell(f"{truth}-{system}", lambda s=system, t=truth: compute(s, t))  # type: ignore[misc]
                rows.append({"system": title_of(system), "labels": "observed" if truth == "test" else truth, **cells})
    return rows


@declare("pusl-table1", source=PUSL, item="Table 1", shows="every system on narrow and diverse items")
def main_results(work: Work) -> list[Row]:
    """#K, B at μ and 2μ, and F1@O."""
    return _rows(work, MAIN, ("K@μ", "K@2μ", "B@μ", "B@2μ", "F1@O"))


@declare(
    "pusl-table2", source=PUSL, item="Table 2", shows="verdicts: relevant, in the universe, both; and people's",
    note="G: called relevant. Uni: in universe.txt. Rel: both. Hum: people's verdicts (people.csv in the data folder). "
    "Without --judge the judge is a rule (every word of the phrase is in the text), and so is the zero-shot system.",
)  # fmt: skip
def verdicts(work: Work) -> list[Row]:
    """G, Uni, Rel, Hum at 2μ over all judged phrases."""
    return _judged_rows(work, {"sample": 6 if work.smoke else 500}, lambda part: part == "all", by_group=False)


@declare("pusl-table3", source=PUSL, item="Table 3", shows="P@k beside B@k, which can never be above it")
def precision_and_budget(work: Work) -> list[Row]:
    """P divides by what was given, B by what was asked for."""
    return _rows(work, MAIN, ("P@μ", "P@2μ", "B@μ", "B@2μ"))


@declare(
    "pusl-table4", source=PUSL, item="Table 4", shows="different phrases (#K) of hot, rare, diverse and narrow items",
    digits=2,
)  # fmt: skip
def phrases_by_group(work: Work) -> list[Row]:
    """#K@2μ by group."""
    study = study_of(work, MAIN)
    references = hot_and_diverse(work)
    name = f"K@{study.k[1]}"
    rows: list[Row] = []
    for system in MAIN:
        cells = work.cell(
            system,
            lambda s=system: {  # type: ignore[misc]
                group: mean([one["groups"][group][name] for one in found], 1.0)
                for found in [evaluated(study, s, references)]
                for group in found[0]["groups"]
            },
        )
        rows.append({"system": title_of(system), **{f"#K@2μ {group}": value for group, value in cells.items()}})
    return rows


@declare(
    "pusl-table5", source=PUSL, item="Table 5", shows="the data: items, labels, labels per item and their skew",
    digits=2, note=OWN_NUMBER,
)  # fmt: skip
def data_sets(work: Work) -> list[Row]:
    """What `pusl data stats` says about every file."""
    from pusl.data.stats import stats

    columns = ("items", "unique_labels", "mu", "sigma", "cv", "median", "max", "share_above_2mu", "ilir", "pos_80")
    rows: list[Row] = []
    for name in ("train", "dev", "test", "complete"):
        path = work.optional_file(name)
        if path is not None:
            found = work.cell(name, lambda path=path: next(iter(stats([path])[0].values())))  # type: ignore[misc]
            rows.append({"file": name, **{column: found[column] for column in columns}})
    return rows


@declare("pusl-table6", source=PUSL, item="Table 6", shows="post-training on raw items, synthetic items and both")
def post_training_sources(work: Work) -> list[Row]:
    """PUSL, and PUSL+PT by the source of its items."""
    return _rows(
        work, ("pusl", "pusl-pt-raw", "pusl-pt-synthetic", "pusl-pt"), ("K@2μ", "B@μ", "B@2μ", "F1@O")
    )  # fmt: skip


@declare("pusl-table7", source=PUSL, item="Table 7", shows="post-training of One2Seq, on PUSL's items too")
def post_training_of_one2seq(work: Work) -> list[Row]:
    """One2Seq, its own items, PUSL's items, and PUSL+PT."""
    return _rows(work, ("one2seq", "one2seq-pt", "one2seq-pt-pusl", "pusl-pt"), ("K@2μ", "B@μ", "B@2μ", "F1@O"))


@declare("pusl-table8", source=PUSL, item="Table 8", shows="the verdicts of Table 2 by group")
def verdicts_by_group(work: Work) -> list[Row]:
    """A sample of every group."""
    options = {"sample": 2 if work.smoke else 100, "sample_per_group": True}
    return _judged_rows(work, options, lambda part: part != "all", by_group=True)


def _judged_rows(work: Work, options: dict[str, Any], wanted: Any, by_group: bool) -> list[Row]:
    from pusl_eval.judge_table import NAMES, judged_parts

    def compute() -> list[Row]:
        references = hot_and_diverse(work) if by_group else work.file("test")
        parts = judged_parts(judged(work, JUDGED, references, "verdicts", **options))
        return [
            {
                "system": row["system"], "items of": part, "items": row["items"], "phrases": row["phrases"],
                **{name: None if row[name] is None else 100 * row[name] for name in NAMES},
            }
            for part, rows in parts.items() if wanted(part) for row in rows
        ]  # fmt: skip

    return work.cell("verdicts", compute)


@declare(
    "pusl-table9", source=PUSL, item="Table 9", note=OWN_NUMBER,
    shows="out of time (Appendix F): later items seen and unseen in training, and unseen ones of the same time",
)  # fmt: skip
def out_of_time(work: Work) -> list[Row]:
    """Scores on the three test sets, and what each shares with the training part."""
    import json

    folder = by_time(work)
    shared = json.loads((folder / "split.json").read_text(encoding="utf-8"))["out_of_time"]
    study = study_of(work, ("one2seq", "pusl"), folder, "by-time-runs")
    names = [f"K@{study.k[1]}", f"B@{study.k[0]}", f"B@{study.k[1]}", "F1@O"]
    rows: list[Row] = []
    for test, about in shared.items():
        facts = {"test set": test, "items": about["items"]}
        facts |= {name.replace("_", " "): mean([about[name]]) for name in ("texts_shared", "labels_unchanged")}
        for system in study.systems if about["items"] else ():
            cells = work.cell(
                f"{test}-{system}",
                lambda s=system, t=test: metric_means(evaluated(study, s, study.file(t), t), names),  # type: ignore[misc]
            )
            rows.append({**facts, "system": title_of(system), **cells})
    return rows


def _draw_histogram(rows: Sequence[Row], figure: Any) -> None:
    axes = figure.subplots()
    for place, name in enumerate(name for name in rows[0] if name not in ("keyphrases", "items")):
        counts, shares = [row["keyphrases"] for row in rows], [row[name] or 0.0 for row in rows]
        axes.bar([count + 0.4 * (place - 0.5) for count in counts], shares, width=0.4, label=name)
    axes.set(xlabel="keyphrases per item", ylabel="percent of the items")
    axes.legend()


@declare(
    "pusl-figure2b", source=PUSL, item="Figure 2b", shows="keyphrases per item, hot and rare items apart",
    picture=_draw_histogram,
)  # fmt: skip
def keyphrases_per_item(work: Work) -> list[Row]:
    """Percent of hot and of rare training items (of all items without counts) by number of keyphrases, 20 and more."""
    from collections import Counter

    from pusl.examples import read_examples
    from pusl_eval.laziness import HOT
    from pusl_eval.normalize import distinct

    def compute() -> list[Row]:
        sizes: dict[str, Counter[int]] = {}
        for one in read_examples(work.file("train")):
            kind = "all" if one.counts is None else "hot" if sum(one.counts) >= HOT else "rare"
            sizes.setdefault(kind, Counter())[min(len(distinct(one.keyphrases)), 20)] += 1
        last = max(max(counted) for counted in sizes.values())
        return [
            {"keyphrases": n, **{kind: 100 * sizes[kind][n] / sizes[kind].total() for kind in sorted(sizes)}}
            for n in range(1, last + 1)
        ]

    return work.cell("histogram", compute)


def _draw_quadrants(rows: Sequence[Row], figure: Any) -> None:
    axes = figure.subplots()
    for place, file in enumerate(dict.fromkeys(row["file"] for row in rows)):
        found = [row for row in rows if row["file"] == file]
        axes.bar([n + 0.25 * place for n in range(len(found))], [row["percent"] for row in found], 0.25, label=file)
    axes.set_xticks(range(4), [row["group"] for row in rows[:4]])
    axes.set(ylabel="percent of the items")
    axes.legend()


@declare(
    "pusl-figure2c", source=PUSL, item="Figure 2c", shows="shares of hot and rare, diverse and narrow items",
    picture=_draw_quadrants, note="Which part of the paper's Figure 2 this is was inferred.",
)  # fmt: skip
def quadrants(work: Work) -> list[Row]:
    """Hot: 5 interactions or more. Diverse: 5 keyphrases or more."""
    from pusl.data.stats import stats
    from pusl_eval.files import InputError

    rows: list[Row] = []
    for name in ("train", "test"):
        path = work.file(name)
        found = work.cell(name, lambda path=path: next(iter(stats([path])[0].values()))["quadrants"])  # type: ignore[misc]
        if found is None:
            raise InputError(f"{path}: has no counts; hot and rare items cannot be told apart")
        rows += [
            {"file": name, "group": group.replace("_", "-"), "items": cell["items"], "percent": 100 * cell["share"]}
            for group, cell in found.items()
        ]
    return rows


def _draw_counts(rows: Sequence[Row], figure: Any) -> None:
    axes = figure.subplots()
    for name in (name for name in rows[0] if name not in ("keyphrases", "items")):
        axes.plot([row["keyphrases"] for row in rows], [row[name] for row in rows], marker="o", label=name)
    axes.set(xlabel="keyphrases of the test item", ylabel="F1@O, percent")
    axes.legend()


@declare(
    "pusl-figure4", source=PUSL, item="Figure 4", shows="F1@O by the number of keyphrases of the test item",
    picture=_draw_counts,
)  # fmt: skip
def by_count(work: Work) -> list[Row]:
    """Test items by number of keyphrases; from 40 on in one group."""
    from pusl_eval.normalize import distinct

    study = study_of(work, MAIN)
    references = regrouped(work, "by-count", lambda one: f"{min(len(distinct(one.keyphrases)), 40):02d}")

    def compute(system: str) -> dict[str, Any]:
        found = evaluated(study, system, references)
        sizes = found[0]["provenance"]["group_sizes"]
        return {
            group: {
                "items": sizes[f"group:{group}"], "F1@O": mean([one["groups"][group]["F1@O"] for one in found]),
            }
            for group in found[0]["groups"]
        }  # fmt: skip

    columns = {title_of(s): work.cell(s, lambda s=s: compute(s)) for s in MAIN}  # type: ignore[misc]
    first = next(iter(columns.values()))
    return [
        {
            "keyphrases": int(count), "items": cell["items"],
            **{f"{title} F1@O": found[count]["F1@O"] for title, found in columns.items()},
        }
        for count, cell in first.items()
    ]  # fmt: skip
