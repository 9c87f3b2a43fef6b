"""Metrics -> text for a terminal: percent, intervals, the best system in bold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pusl_eval.declarations import LOWER, NEEDS, NEITHER, Metric, shown_name, template
from pusl_eval.metrics import REGISTRY

ACROSS = 3  # values of k side by side
BOLD, PLAIN = "\033[1m", "\033[0m"


def number(metric: str, value: float | None, digits: int = 1) -> str:
    """A score as it is printed: in percent, or as it is if the metric's unit is a number; `-` for null."""
    if value is None:
        return "-"
    return f"{value:.2f}" if _declared(metric).unit == "number" else f"{100 * value:.{digits}f}"


def _declared(metric: str) -> Metric[Any]:
    return REGISTRY.of(metric)


def is_brief(metric: str) -> bool:
    """Whether a metric is shown where there is no room for all."""
    return _declared(metric).brief


def best_of(metric: str, values: Sequence[float | None]) -> float | None:
    """The best of the systems' values; None if no value is better than another."""
    known = [value for value in values if value is not None]
    better = _declared(metric).better
    if better == NEITHER or len(set(known)) < 2:
        return None
    return min(known) if better == LOWER else max(known)


def _unscaled() -> str:
    """The metrics that are not in percent, in words."""
    names = [shown_name(metric.names[0]) for metric in REGISTRY if metric.unit == "number"]
    return " and ".join(names)


def metrics_table(metrics: Mapping[str, Any], color: bool = False) -> str:
    """One system: a row per metric; all items with intervals, then narrow, diverse and the groups."""
    counts, mu, sizes = metrics["counts"], metrics["mu"], metrics["provenance"]["group_sizes"]
    lines = [
        f"{counts['n_items']:,} items ({counts['n_without_references']:,} without references, "
        f"{counts['n_missing_predictions']:,} without predictions), {metrics['provenance']['n_labels']:,} labels"
        + (f", μ = {mu:.2f}" if mu is not None else "")
    ]
    lines.append(f"Percent ({_unscaled()} as they are); in brackets the 95% bootstrap interval over items.")
    columns = [("all", "all")]
    if mu is not None:
        columns += [(name, f"{name} ({sizes[name]:,})") for name in ("narrow", "diverse")]
    lines += ["", *_without_k(metrics, columns, color)]
    for low in range(0, len(metrics["k"]), ACROSS):
        lines += ["", *_at_k(metrics, columns, metrics["k"][low : low + ACROSS], color)]
    if metrics["bins"]:
        lines += ["", *_bins(metrics, color)]
    if metrics["groups"]:
        lines += ["", *_groups(metrics, color)]
    return "\n".join(lines + _left_out(metrics))


def _left_out(metrics: Mapping[str, Any]) -> list[str]:
    """What is null because something was not given, by what would give it."""
    lacking: dict[str, list[str]] = {}
    for metric in REGISTRY:
        if metric.needs and metric.needs not in ("judge", *metrics["provenance"]["given"]):
            lacking.setdefault(NEEDS[metric.needs], []).append(shown_name(metric.names[0]))
    if metrics["mu"] is None:
        lacking["--train"] = ["narrow and diverse", "bins", *lacking.get("--train", [])]
    return ["", *(f"Not given: {source}. Left out: {', '.join(names)}." for source, names in lacking.items())]


def comparison_table(compared: Mapping[str, Any], color: bool = False) -> str:
    """Several systems side by side, then the differences of every two of them."""
    systems = compared["systems"]
    first = next(iter(systems.values()))
    counts = first["counts"]
    lines = [
        f"{counts['n_items']:,} items ({counts['n_without_references']:,} without references)"
        + (f", μ = {compared['mu']:.2f}" if compared["mu"] is not None else "")
        + "; without predictions: "
        + ", ".join(f"{name} {m['counts']['n_missing_predictions']:,}" for name, m in systems.items())
    ]
    mark = "in bold" if color else "marked *"
    lines.append(f"Percent ({_unscaled()} as they are), the best {mark}; in brackets the 95% bootstrap interval.")
    groups = ["all"] + (["narrow", "diverse"] if compared["mu"] is not None else [])
    for group in groups:
        size = counts["n_items"] if group == "all" else first["provenance"]["group_sizes"][group]
        rows = [[f"{group} ({size:,})", *systems]]
        metrics = [
            m for m in first["scores"][group] if any(s["scores"][group][m] is not None for s in systems.values())
        ]
        for metric in metrics:
            if group == "all" or is_brief(metric):
                rows.append([shown_name(metric), *_race(metric, group, systems, color)])
        lines += ["", *_aligned(rows, color)]
    lines += _groups_side_by_side(systems, color)
    if compared["comparisons"]:
        lines += ["", "Differences over all items, paired bootstrap (every metric and group is in --output):"]
    for pair in compared["comparisons"]:
        lines += ["", *_differences(pair, color)]
    return "\n".join(lines)


def _differences(pair: Mapping[str, Any], color: bool) -> list[str]:
    rows = [[f"{pair['a']} - {pair['b']}", "difference", "interval", "p"]]
    for metric, gap in pair["scores"]["all"].items():
        if gap["difference"] is not None and is_brief(metric) and _declared(metric).better != NEITHER:
            span = gap["interval"]
            low_high = f"[{number(metric, span[0], 2)}, {number(metric, span[1], 2)}]" if span else "-"
            p = "-" if gap["p"] is None else f"{gap['p']:.3f}"
            rows.append([shown_name(metric), f"{_signed(metric, gap['difference'])}", low_high, p])
    return _aligned(rows, color)


def _signed(metric: str, value: float) -> str:
    return ("+" if value > 0 else "") + number(metric, value, 2)


def _race(metric: str, group: str, systems: Mapping[str, Any], color: bool) -> list[str]:
    """One cell per system, the best one marked."""
    values = [m["scores"][group][metric] for m in systems.values()]
    best = best_of(metric, values)
    cells = []
    for m, value in zip(systems.values(), values, strict=True):
        text = _cell(metric, value, m["intervals"][group].get(metric))
        if best is not None and value == best:
            text = f"{BOLD}{text}{PLAIN}" if color else f"*{text}"
        cells.append(text)
    return cells


def _cell(metric: str, value: float | None, span: Sequence[float] | None) -> str:
    if value is None or not span or metric.endswith("_max"):
        return number(metric, value)
    return f"{number(metric, value)} [{number(metric, span[0])}, {number(metric, span[1])}]"


def _without_k(metrics: Mapping[str, Any], columns: Sequence[tuple[str, str]], color: bool) -> list[str]:
    """The metrics at O and M."""
    rows = [["", *(title for _, title in columns)]]
    for metric in metrics["scores"]["all"]:
        if template(metric) == metric and metrics["scores"]["all"][metric] is not None:
            rows.append([shown_name(metric), *(_value(metrics, group, metric) for group, _ in columns)])
    return _aligned(rows, color)


def _at_k(metrics: Mapping[str, Any], columns: Sequence[tuple[str, str]], ks: Sequence[int], color: bool) -> list[str]:
    rows = [["", *(f"{title} k={k}" for title, _ in columns for k in ks)]]
    first = metrics["k"][0]
    for metric in metrics["scores"]["all"]:
        if template(metric) != metric and f"@{first}" in metric and metric == _at(metric, first):
            cells = [_value(metrics, group, _at(metric, k)) for group, _ in columns for k in ks]
            if any(cell != "-" for cell in cells):
                rows.append([shown_name(_at(metric, "k")), *cells])
    return _aligned(rows, color)


def _at(metric: str, k: int | str) -> str:
    """The same metric at another cut: `B@3_max` -> `B@6_max`."""
    return re.sub(r"@\d+", f"@{k}", metric)


def _value(metrics: Mapping[str, Any], group: str, metric: str) -> str:
    span = metrics["intervals"][group].get(metric) if group == "all" else None
    return _cell(metric, metrics["scores"][group].get(metric), span)


def _bins(metrics: Mapping[str, Any], color: bool) -> list[str]:
    rows = [["training frequency", "labels", *(f"MacroF1@{k}" for k in metrics["k"])]]
    for name, row in metrics["bins"].items():
        scores = (number(f"MacroF1@{k}", row[f"MacroF1@{k}"]) for k in metrics["k"])
        rows.append([f"{name} (unseen)" if name == "0" else name, f"{row['n_labels']:,}", *scores])
    return _aligned(rows, color)


def _groups(metrics: Mapping[str, Any], color: bool) -> list[str]:
    shown = ["F1@O", *(f"{name}@{k}" for name in ("B", "K") for k in metrics["k"][:ACROSS])]
    rows = [["group", "items", *map(shown_name, shown)]]
    for name, scores in metrics["groups"].items():
        size = metrics["provenance"]["group_sizes"][f"group:{name}"]
        rows.append([name, f"{size:,}", *(number(metric, scores[metric]) for metric in shown)])
    return _aligned(rows, color)


def _groups_side_by_side(systems: Mapping[str, Any], color: bool) -> list[str]:
    """#K, B and F1@O of every group, a column per system (the paper's Table 4)."""
    first = next(iter(systems.values()))
    if not first["groups"]:
        return []
    k = first["k"][-1]
    lines = []
    for metric in (f"K@{k}", f"B@{k}", "F1@O"):
        rows = [[f"{shown_name(metric)} by group", "items", *systems]]
        for name in first["groups"]:
            size = first["provenance"]["group_sizes"][f"group:{name}"]
            values = (number(metric, found["groups"].get(name, {}).get(metric)) for found in systems.values())
            rows.append([name, f"{size:,}", *values])
        lines += ["", *_aligned(rows, color)]
    return lines


def _aligned(rows: Sequence[Sequence[str]], color: bool) -> list[str]:
    """The first column to the left, the others to the right, the header in bold."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for position, row in enumerate(rows):
        cells = [row[0] + " " * (widths[0] - _width(row[0]))]
        cells += [" " * (width - _width(cell)) + cell for cell, width in zip(row[1:], widths[1:], strict=True)]
        line = "  ".join(cells).rstrip()
        lines.append(f"{BOLD}{line}{PLAIN}" if color and position == 0 else line)
    return lines


def _width(text: str) -> int:
    return len(text.replace(BOLD, "").replace(PLAIN, ""))
