"""Metrics -> text for a terminal: percent, intervals, the best system in bold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = (
    "B", "B_max", "K", "P", "R", "F1", "nDCG", "Success", "Abandonment", "PSP", "PSP_norm", "PSnDCG", "weighted P",
    "Diversity", "MacroP", "MacroR", "MacroF1", "Cov", "αCov", "Entropy", "R_seen", "R_unseen", "Uni", "New",
)  # fmt: skip
UNSCALED = ("K@", "Entropy@")  # not shares: printed as they are
LOWER_IS_BETTER = ("Abandonment@",)
NOT_A_RACE = ("New@", "Diversity@")  # neither more nor less is better
MAIN = ("F1", "B", "K", "nDCG", "PSP", "MacroF1", "Cov")  # shown where there is no room for all
ACROSS = 3  # values of k side by side
BOLD, PLAIN = "\033[1m", "\033[0m"


def number(metric: str, value: float | None, digits: int = 1) -> str:
    """A score as it is printed: percent, K@k and Entropy@k as they are, `-` for null."""
    if value is None:
        return "-"
    return f"{value:.2f}" if metric.startswith(UNSCALED) else f"{100 * value:.{digits}f}"


def metrics_table(metrics: Mapping[str, Any], color: bool = False) -> str:
    """One system: a row per metric; all items with intervals, then narrow, diverse and the groups."""
    counts, mu, sizes = metrics["counts"], metrics["mu"], metrics["provenance"]["group_sizes"]
    lines = [
        f"{counts['n_items']:,} items ({counts['n_without_references']:,} without references, "
        f"{counts['n_missing_predictions']:,} without predictions), {metrics['provenance']['n_labels']:,} labels"
        + (f", μ = {mu:.2f}" if mu is not None else "")
    ]
    lines.append("Percent (#K@k and Entropy@k as they are); in brackets the 95% bootstrap interval over items.")
    columns = [("all", "all")]
    if mu is not None:
        columns += [(name, f"{name} ({sizes[name]:,})") for name in ("narrow", "diverse")]
    lines += ["", *_at_o(metrics, columns, color)]
    for low in range(0, len(metrics["k"]), ACROSS):
        lines += ["", *_at_k(metrics, columns, metrics["k"][low : low + ACROSS], color)]
    if metrics["bins"]:
        lines += ["", *_bins(metrics, color)]
    if metrics["groups"]:
        lines += ["", *_groups(metrics, color)]
    if mu is None:
        lines += ["", "No --train: narrow/diverse, PSP, New, R_seen/R_unseen and bins are left out (null)."]
    return "\n".join(lines)


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
    lines.append(f"Percent (#K@k and Entropy@k as they are), the best {mark}; in brackets the 95% bootstrap interval.")
    groups = ["all"] + (["narrow", "diverse"] if compared["mu"] is not None else [])
    for group in groups:
        size = counts["n_items"] if group == "all" else first["provenance"]["group_sizes"][group]
        rows = [[f"{group} ({size:,})", *systems]]
        metrics = [
            m for m in first["scores"][group] if any(s["scores"][group][m] is not None for s in systems.values())
        ]
        for metric in metrics:
            if group == "all" or (metric.split("@")[0] in MAIN and " " not in metric):
                rows.append([_shown(metric), *_race(metric, group, systems, color)])
        lines += ["", *_aligned(rows, color)]
    if compared["comparisons"]:
        lines += ["", "Differences over all items, paired bootstrap (every metric and group is in --output):"]
    for pair in compared["comparisons"]:
        lines += ["", *_differences(pair, color)]
    return "\n".join(lines)


def _differences(pair: Mapping[str, Any], color: bool) -> list[str]:
    rows = [[f"{pair['a']} - {pair['b']}", "difference", "interval", "p"]]
    for metric, gap in pair["scores"]["all"].items():
        if gap["difference"] is not None and metric.split("@")[0] in MAIN and not metric.endswith("_max"):
            span = gap["interval"]
            low_high = f"[{number(metric, span[0], 2)}, {number(metric, span[1], 2)}]" if span else "-"
            p = "-" if gap["p"] is None else f"{gap['p']:.3f}"
            rows.append([_shown(metric), f"{_signed(metric, gap['difference'])}", low_high, p])
    return _aligned(rows, color)


def _signed(metric: str, value: float) -> str:
    return ("+" if value > 0 else "") + number(metric, value, 2)


def _race(metric: str, group: str, systems: Mapping[str, Any], color: bool) -> list[str]:
    """One cell per system, the best one marked."""
    values = [m["scores"][group][metric] for m in systems.values()]
    known = [value for value in values if value is not None]
    best = None
    if len(known) > 1 and len(set(known)) > 1 and not metric.startswith(NOT_A_RACE) and not metric.endswith("_max"):
        best = min(known) if metric.startswith(LOWER_IS_BETTER) else max(known)
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


def _at_o(metrics: Mapping[str, Any], columns: Sequence[tuple[str, str]], color: bool) -> list[str]:
    rows = [["", *(title for _, title in columns)]]
    for metric in ("F1@O", "P@O", "R@O"):
        rows.append([metric, *(_value(metrics, group, metric) for group, _ in columns)])
    return _aligned(rows, color)


def _at_k(metrics: Mapping[str, Any], columns: Sequence[tuple[str, str]], ks: Sequence[int], color: bool) -> list[str]:
    rows = [["", *(f"{title} k={k}" for title, _ in columns for k in ks)]]
    for name in [*NAMES, *_extra_coverage(metrics)]:
        cells = [_value(metrics, group, _metric(name, k)) for group, _ in columns for k in ks]
        if any(cell != "-" for cell in cells):
            rows.append([_shown(_metric(name, "k")), *cells])
    return _aligned(rows, color)


def _value(metrics: Mapping[str, Any], group: str, metric: str) -> str:
    span = metrics["intervals"][group].get(metric) if group == "all" else None
    return _cell(metric, metrics["scores"][group].get(metric), span)


def _extra_coverage(metrics: Mapping[str, Any]) -> list[str]:
    """`Cov|1000` for every "Cov@k (1000 items)"."""
    start = f"Cov@{metrics['k'][0]} ("
    return [f"Cov|{m[len(start) :].split()[0]}" for m in metrics["scores"]["all"] if m.startswith(start)]


def _metric(name: str, k: int | str) -> str:
    if name.startswith("Cov|"):
        return f"Cov@{k} ({name[4:]} items)"
    base, _, suffix = name.partition("_")
    return f"{name}@{k}" if suffix not in ("max", "norm") else f"{base}@{k}_{suffix}"


def _shown(metric: str) -> str:
    return f"#{metric}" if metric.startswith("K@") else metric


def _bins(metrics: Mapping[str, Any], color: bool) -> list[str]:
    rows = [["training frequency", "labels", *(f"MacroF1@{k}" for k in metrics["k"])]]
    for name, row in metrics["bins"].items():
        scores = (number("MacroF1", row[f"MacroF1@{k}"]) for k in metrics["k"])
        rows.append([f"{name} (unseen)" if name == "0" else name, f"{row['n_labels']:,}", *scores])
    return _aligned(rows, color)


def _groups(metrics: Mapping[str, Any], color: bool) -> list[str]:
    shown = ["F1@O", *(f"{name}@{k}" for name in ("B", "K") for k in metrics["k"][:ACROSS])]
    rows = [["group", "items", *map(_shown, shown)]]
    for name, scores in metrics["groups"].items():
        size = metrics["provenance"]["group_sizes"][f"group:{name}"]
        rows.append([name, f"{size:,}", *(number(metric, scores[metric]) for metric in shown)])
    return _aligned(rows, color)


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
