"""References + predictions of several systems -> one self-contained HTML page.

Tables with intervals, curves over k, narrow against diverse, tail bins, coverage, calibration,
label frequencies and searchable examples: no network, no script needed to read it, the same bytes
for the same input.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pusl_eval import charts
from pusl_eval.budgets import budgets
from pusl_eval.declarations import shown_name
from pusl_eval.evaluation import Evaluation, evaluate, paired_gap
from pusl_eval.files import InputError, open_atomic
from pusl_eval.judge_table import judge_section, read_summaries
from pusl_eval.metrics import REGISTRY
from pusl_eval.report_items import ReportItems, Systems
from pusl_eval.schema import Gap
from pusl_eval.table import best_of, number
from pusl_eval.verdict import verdict

LARGEST_K = 30
Results = dict[str, Evaluation]
DRAWS = 1000  # of the paired bootstrap


def write_report(
    output: str | Path,
    references: str | Path,
    predictions: Systems,
    *,
    train: str | Path | None = None,
    universe: str | Path | None = None,
    complete: str | Path | None = None,
    title: str = "Keyphrase report",
    examples: int = 60,
    seed: int = 0,
    normalization: str = "basic",
    notes: str = "",
    judged: Sequence[str | Path] = (),
    force: bool = False,
) -> None:
    """Builds the page and writes it atomically. `complete` adds a table against the complete labels, `judged`
    (summaries of `pusl judge`) one of verdicts.
    """
    if not predictions:
        raise InputError("a report needs at least one --predictions NAME=FILE")
    page = build_report(
        references, predictions, train=train, universe=universe, complete=complete, title=title,
        examples=examples, seed=seed, normalization=normalization, notes=notes,
        judged=judged,
    )  # fmt: skip
    with open_atomic(output, force) as stream:
        stream.write(page)


def build_report(
    references: str | Path,
    predictions: Systems,
    *,
    train: str | Path | None,
    universe: str | Path | None,
    complete: str | Path | None,
    title: str,
    examples: int,
    seed: int,
    normalization: str,
    notes: str,
    judged: Sequence[str | Path] = (),
) -> str:
    """The page as a string."""
    verdicts = read_summaries(judged)  # what is wrong with a file is said before the slow part
    shared: dict[str, Any] = {
        "train": train, "normalization": normalization, "seed": seed, "warn": False,
    }  # fmt: skip
    first = evaluate(references, next(iter(predictions.values())), k=[1], bootstrap=0, **shared)
    mu = first["mu"]
    middle, double = budgets(mu) if mu else (5, 10)
    items = ReportItems(references, predictions, train, universe, complete, normalization)
    # Behind the end of every list a curve over k shows nothing but the division by k.
    top = min(LARGEST_K, max(double + 2, math.ceil(double * 1.25)), max(items.longest_list(), double))
    ks = sorted({*range(1, top + 1), middle, double})

    def score(truth: str | Path) -> Results:
        return {name: evaluate(truth, path, k=ks, universe=universe, **shared) for name, path in predictions.items()}

    observed = score(references)
    sections = [
        _header(title, observed, mu, (middle, double), complete is not None, notes, _verdict(observed, double, seed)),
        _summary("Against the labels in the references", observed, middle, double, mu),
    ]
    if complete is not None:
        true = score(complete)
        sections.append(
            _summary(
                "Against the COMPLETE labels", true, middle, double, mu, _verdict(true, double, seed, complete=True)
            )
        )
    if verdicts:
        sections.append(judge_section(verdicts))
    marks = {f"μ = {middle}": float(middle), f"2μ = {double}": float(double)} if mu else {}
    sections += [
        _curves(observed, ks, marks),
        _groups(observed, double),
        _tail(observed, double),
        _coverage(observed, ks, marks, items),
        _calibration(items, double),
        items.examples_section(double, examples, seed),
        _every_metric(observed, double),
        _provenance(observed),
    ]
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    colors = "\n".join(
        f"svg .c{i}.line {{ stroke: var(--c{i}); }} "
        f"svg .c{i}:is(.dot, .bar, .band) {{ fill: var(--c{i}); }} "
        f"i.c{i} {{ background: var(--c{i}); }}"
        for i in range(8)
    )
    body = "\n".join(section for section in sections if section)
    return template.replace("{{title}}", escape(title)).replace("{{colors}}", colors).replace("{{body}}", body)


def _header(
    title: str,
    results: Results,
    mu: float | None,
    rounded: tuple[int, int],
    has_complete: bool,
    notes: str,
    verdict: str,
) -> str:
    counts = next(iter(results.values()))["counts"]
    facts = [("items", f"{counts['n_items']:,}"), ("systems", str(len(results)))]
    if mu:
        facts.append((f"keyphrases per training item (μ); @μ means {rounded[0]}, @2μ {rounded[1]}", f"{mu:.2f}"))
    if counts["n_without_references"]:
        facts.append(("items without labels (left out)", f"{counts['n_without_references']:,}"))
    for name, result in results.items():
        if result["counts"]["n_missing_predictions"]:
            facts.append((f"items without a prediction: {name}", f"{result['counts']['n_missing_predictions']:,}"))
    listed = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for name, value in facts)
    warning = (
        "Labels are taken to be incomplete: a phrase that is not among them may still be right. "
        "B@k divides by what was asked for, so a system that stops early cannot gain by it; "
        "P@k divides by what was given, so it can."
    )
    extra = " A second table uses the complete labels." if has_complete else ""
    note = f"<p>{escape(notes)}</p>" if notes else ""
    return f'<h1>{escape(title)}</h1>{verdict}<p class="soft">{warning}{extra}</p>{note}<ul class="facts">{listed}</ul>'


def _verdict(results: Results, k: int, seed: int, complete: bool = False) -> str:
    """Who is ahead, how sure that is, what it costs, what to do next."""

    def gap(a: str, b: str, metric: str) -> Gap:
        return paired_gap(results[a], results[b], metric, DRAWS, seed)

    said = escape(" ".join(verdict(results, gap, k, complete)))
    return '<p class="verdict">' + re.sub(r"`([^`]+)`", r"<code>\1</code>", said) + "</p>"


def _summary(heading: str, results: Results, middle: int, double: int, mu: float | None, verdict: str = "") -> str:
    def named(metric: str, k: int, sign: str) -> tuple[str, str]:
        return metric.replace("@k", f"@{k}"), shown_name(metric).replace("@k", f"@{sign}")

    signs = ("μ", "2μ") if mu else (str(middle), str(double))
    first = ("K@k", "B@k")
    columns = [named("K@k", double, signs[1]), *(named("B@k", *at) for at in zip((middle, double), signs, strict=True))]
    columns.append(("F1@O", "F1@O"))
    further = [declared.names[0] for declared in REGISTRY if declared.summary and declared.names[0] not in first]
    columns += [named(name, double, signs[1]) for name in further]
    columns = [
        column for column in columns if any(r["scores"]["all"].get(column[0]) is not None for r in results.values())
    ]
    meanings = [escape(REGISTRY.of(metric).meaning, quote=True) for metric, _ in columns]
    head = "".join(
        f'<th title="{meaning}">{escape(shown)}</th>' for (_, shown), meaning in zip(columns, meanings, strict=True)
    )
    body = []
    for name, result in results.items():
        cells = []
        for metric, _ in columns:
            best = best_of(metric, [r["scores"]["all"].get(metric) for r in results.values()])
            value = result["scores"]["all"].get(metric)
            praised = best is not None and value == best
            cells.append(_cell(metric, value, result["intervals"]["all"].get(metric), praised))
        body.append(f"<tr><td>{escape(name)}</td>{''.join(cells)}</tr>")
    return (
        f'<h2>{escape(heading)}</h2>{verdict}<div class="scroll"><table><thead><tr><th>system</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="soft">Percent, except #K (distinct phrases given). Small: 95% bootstrap interval over items.'
        f"{_cut_note(results)} “Every metric”, below, says what the columns mean.</p>"
    )


def _cut_note(results: Results) -> str:
    """Whose F1@O is too low, because lists end before the item's number of references."""
    short = [name for name, result in results.items() if result["provenance"]["short_lists"]["O"]]
    if not short:
        return ""
    return f" F1@O is too low for {escape(', '.join(short))}: some lists hold fewer phrases than the item has labels."


def _every_metric(results: Results, k: int) -> str:
    """All declared metrics at one k, with their meaning; those without a value are left out."""
    rows = []
    for metric in next(iter(results.values()))["scores"]["all"]:
        values = [result["scores"]["all"][metric] for result in results.values()]
        if metric.partition("@")[2].split(" ")[0].partition("_")[0] in (str(k), "O", "M"):
            best = best_of(metric, values)
            spans = [result["intervals"]["all"].get(metric) for result in results.values()]
            if any(value is not None for value in values):
                cells = [_cell(metric, *pair, pair[0] == best) for pair in zip(values, spans, strict=True)]
                meaning = f"<small>{escape(REGISTRY.of(metric).meaning)}</small>"
                rows.append(f"<tr><td>{escape(shown_name(metric))}{meaning}</td>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in results)
    return (
        f'<details><summary>Every metric at k = {k}</summary><div class="scroll"><table class="every">'
        f"<thead><tr><th>metric</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _cell(metric: str, value: float | None, interval: Sequence[float] | None, best: bool) -> str:
    if value is None:
        return "<td>–</td>"
    small = f"<small>{number(metric, interval[0])}–{number(metric, interval[1])}</small>" if interval else ""
    return f'<td class="{"best" if best else ""}">{number(metric, value)}{small}</td>'


def _curves(results: Results, ks: Sequence[int], marks: Mapping[str, float]) -> str:
    def chart(metric: str, form: Callable[[float], str], ceiling: str | None) -> str:
        series = {
            name: [(float(k), r["scores"]["all"].get(f"{metric}@{k}")) for k in ks] for name, r in results.items()
        }
        bands = {name: [r["intervals"]["all"].get(f"{metric}@{k}") for k in ks] for name, r in results.items()}
        if ceiling:
            best = next(iter(results.values()))["scores"]["all"]
            series[ceiling] = [(float(k), best.get(f"{metric}@{k}_max")) for k in ks]
        label = "#K@k" if metric == "K" else f"{metric}@k"
        return charts.line_chart(series, "k asked for", label, form, bands=bands, marks=marks)

    names = [*results, "ceiling (B@k)"]
    figures = [
        ("B@k", "right phrases per phrase asked for", chart("B", charts.percent, "ceiling (B@k)")),
        ("#K@k", "distinct phrases given", chart("K", charts.plain, None)),
        ("P@k", "right phrases per phrase given: favors systems that stop early", chart("P", charts.percent, None)),
    ]
    return f"<h2>How far each system goes</h2>{charts.legend(names)}{_row(figures)}"


def _groups(results: Results, k: int) -> str:
    groups = ["narrow", "diverse"] if all(r["mu"] is not None for r in results.values()) else []
    extra = sorted({g for r in results.values() for g in r.get("groups", {})})[:8]
    if not groups and not extra:
        return ""

    def chart(metric: str, form: Callable[[float], str]) -> str:
        def pick(result: dict[str, Any], group: str, part: str) -> Any:
            if group in groups:
                table = result[part]
            else:
                table = result["groups"] if part == "scores" else result["intervals"]["groups"]
            return (table.get(group) or {}).get(f"{metric}@{k}")

        shown = [*groups, *extra]
        values = {name: [pick(r, g, "scores") for g in shown] for name, r in results.items()}
        whiskers = {name: [pick(r, g, "intervals") for g in shown] for name, r in results.items()}
        return charts.bar_chart(shown, values, "#K@" + str(k) if metric == "K" else f"{metric}@{k}", whiskers, form)

    figures = [
        (f"B@{k}", "narrow: at most 2μ labels; diverse: more", chart("B", charts.percent)),
        (f"#K@{k}", "distinct phrases given", chart("K", charts.plain)),
    ]
    return f"<h2>Narrow and diverse items</h2>{charts.legend(list(results))}{_row(figures)}"


def _tail(results: Results, k: int) -> str:
    rows = {name: _bins(result, k) for name, result in results.items()}
    names = list(next(iter(rows.values()), {}))
    if not names:
        return ""
    values = {name: [row.get(b, (None, 0))[0] for b in names] for name, row in rows.items()}
    sizes = {b: next(iter(rows.values()))[b][1] for b in names}
    labels = [f"{b} ({sizes[b]:,})" for b in names]
    chart = charts.bar_chart(labels, values, f"MacroF1@{k}")
    caption = "labels grouped by how often they occur in training; number of labels in brackets"
    figure = _row([(f"MacroF1@{k} by training frequency", caption, chart)])
    return f"<h2>Tail labels</h2>{charts.legend(list(results))}{figure}"


def _bins(result: dict[str, Any], k: int) -> dict[str, tuple[float | None, int]]:
    """{bin: (MacroF1@k, number of labels)} of one system."""
    return {name: (row.get(f"MacroF1@{k}"), int(row["n_labels"])) for name, row in result["bins"].items()}


def _coverage(results: Results, ks: Sequence[int], marks: Mapping[str, float], items: ReportItems) -> str:
    series = {name: [(float(k), r["scores"]["all"].get(f"Cov@{k}")) for k in ks] for name, r in results.items()}
    figures = [
        (
            "Cov@k",
            "share of labels found for at least one item",
            charts.line_chart(series, "k asked for", "Cov@k", marks=marks),
        )
    ]
    ranked: dict[str, list[charts.Point]] = {}
    for name, predictions in items.predictions.items():
        counts = Counter(p for record in predictions.values() for p in {items.norm(p) for p in record.keyphrases})
        ranked[name] = _rank_curve(counts)
    ranked["labels in the references"] = _rank_curve(Counter(p for labels in items.truth.values() for p in labels))
    figures.append(
        (
            "Label frequencies",
            "how often the i-th most frequent phrase is given",
            charts.log_log_chart(ranked, "rank", "items"),
        )
    )
    return f"<h2>Coverage</h2>{charts.legend(list(ranked))}{_row(figures)}"


def _rank_curve(counts: Counter[str]) -> list[charts.Point]:
    values = sorted(counts.values(), reverse=True)
    picks = sorted({min(len(values), round(10 ** (i / 12))) for i in range(12 * 8)}) if values else []
    return [(float(rank), float(values[rank - 1])) for rank in picks]


def _calibration(items: ReportItems, k: int) -> str:
    """Share of right phrases by score decile, and against the score where scores are probabilities."""
    series: dict[str, list[charts.Point]] = {}
    reliability: dict[str, list[charts.Point]] = {}
    for name, predictions in items.predictions.items():
        pairs = [
            (score, items.norm(phrase) in items.truth[key])
            for key, record in predictions.items()
            if items.truth.get(key) and record.scores
            for phrase, score in zip(record.keyphrases[:k], record.scores[:k], strict=True)
        ]
        if len(pairs) < 20:
            continue
        pairs.sort(key=lambda pair: pair[0])
        tenths = [pairs[len(pairs) * i // 10 : len(pairs) * (i + 1) // 10] for i in range(10)]
        right = [sum(hit for _, hit in part) / len(part) for part in tenths]
        series[name] = [(i + 1.0, share) for i, share in enumerate(right)]
        probable = pairs[0][0] >= 0 and pairs[-1][0] <= 1
        means = [sum(score for score, _ in part) / len(part) for part in tenths]
        reliability[name] = list(zip(means, right, strict=True)) if probable else []  # [] keeps the colors in step
    if not series:
        return ""
    chart = charts.line_chart(series, "score decile (10 = the system's surest tenth)", "share right")
    caption = "an honest score rises from left to right; with incomplete labels the height is a lower bound"
    figures = [("Right phrases by score", caption, chart)]
    names = list(series)
    if any(reliability.values()):
        names.append("score = share right")
        ideal: list[charts.Point] = [(0.0, 0.0), (1.0, 1.0)]
        chart = charts.line_chart({**reliability, names[-1]: ideal}, "score", "share right")
        caption = "scores that are probabilities lie on the straight line; missing labels pull the points down"
        figures.append(("Reliability", caption, chart))
    return f"<h2>Do the scores mean something?</h2>{charts.legend(names)}{_row(figures)}"


def _row(figures: Sequence[tuple[str, str, str]]) -> str:
    drawn = "".join(
        f"<figure><figcaption><b>{escape(name)}</b> · {escape(caption)}</figcaption>{svg}</figure>"
        for name, caption, svg in figures
    )
    return f'<div class="row">{drawn}</div>'


def _provenance(results: Results) -> str:
    lines = []
    for name, result in results.items():
        facts = ", ".join(
            f"{key}: {value}" for key, value in result["provenance"].items() if not isinstance(value, (dict, list))
        )
        lines.append(f"{name}: {facts}")
    return f"<details><summary>Provenance</summary><pre>{escape(chr(10).join(lines))}</pre></details>"
