"""Summaries of `pusl judge` -> one table of all systems, as text and as a section of the report.

G, Uni, Rel (a language model's verdicts) and Hum (people's) at the largest k, for all items and for every
part of them: the form of the paper's Tables 2 and 8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pusl_eval.files import InputError, check_input

NAMES = ("G", "Uni", "Rel", "Hum")
Summary = Mapping[str, Any]


def read_summaries(paths: Sequence[str | Path]) -> dict[str, Summary]:
    """Summary files, of one system (named by its file) or of several -> {system: summary}.

    A system may have two: a language model's verdicts, and people's alone (`pusl judge --human-only`).
    """
    found: dict[str, Summary] = {}
    for path in paths:
        try:
            content = json.loads(check_input(path).read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError):
            content = None
        if not isinstance(content, dict) or not ("k" in content or "systems" in content):
            raise InputError(f"{path}: not a summary of `pusl judge` (OUTPUT.summary.json)")
        name = Path(path).name.removesuffix(".json").removesuffix(".summary")
        for system, summary in content.get("systems", {name: content}).items():
            found[system] = _united(found[system], summary, system, path) if system in found else summary
    return found


def _united(first: Summary, second: Summary, system: str, path: str | Path) -> Summary:
    """A language model's summary with people's verdicts from the other one."""
    people, judged = (first, second) if "scores" in second else (second, first)
    if "scores" in people or judged.get("human"):
        raise InputError(f"{path}: a second summary of {system!r}; give each system once")
    if people["k"][-1] != judged["k"][-1]:
        raise InputError(f"{path}: {system!r} has other verdicts at k = {first['k'][-1]}, here {second['k'][-1]}")
    return {**judged, "human": people["human"]}


def judged_parts(systems: Mapping[str, Summary]) -> dict[str, list[dict[str, Any]]]:
    """Part ("all", "narrow", "group:shoes", ...) -> one row per system: its name, items, phrases and scores."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for name, summary in systems.items():
        cut = summary["k"][-1]
        people = summary.get("human") or {"scores": {}, "intervals": {}, "sizes": {}}
        scores, intervals, sizes = (
            _flat(summary.get(kind), summary, kind) for kind in ("scores", "intervals", "sizes")
        )
        for part in dict.fromkeys([*scores, *people["scores"]]):
            size = sizes.get(part) or people["sizes"].get(part) or {}
            if not size.get("n_items"):
                continue
            row: dict[str, Any] = {"system": name, "items": size["n_items"], "phrases": size[f"n@{cut}"], "k": cut}
            for metric in NAMES:
                shown = f"{metric}@{cut}"
                side = people if metric == "Hum" else {"scores": scores, "intervals": intervals}
                row[metric] = (side["scores"].get(part) or {}).get(shown)
                row[f"{metric} interval"] = (side["intervals"].get(part) or {}).get(shown)
            row["judged by people"] = (people["sizes"].get(part) or {}).get(f"n@{cut}")
            parts.setdefault(part, []).append(row)
    return parts


def _flat(by_part: Mapping[str, Any] | None, summary: Summary, kind: str) -> dict[str, Any]:
    """all, narrow, diverse and `group:NAME` side by side."""
    if by_part is None:
        return {}
    groups = summary.get("groups", {}) if kind == "scores" else by_part.get("groups", {})
    plain = {part: values for part, values in by_part.items() if part != "groups"}
    return {**plain, **{f"group:{name}": values for name, values in groups.items()}}


def _columns(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The metrics that some system has."""
    return [name for name in NAMES if any(row[name] is not None for rows in parts.values() for row in rows)]


def judge_table(systems: Mapping[str, Summary]) -> str:
    """Text: a block per part, a line per system; percent with 95% intervals."""
    parts = judged_parts(systems)
    names = _columns(parts)
    rows: list[list[str]] = []
    for part, found in parts.items():
        cut = found[0]["k"]
        rows.append([part, "items", "phrases", *(f"{name}@{cut}" for name in names)])
        for row in found:
            cells = [percent(row[name], row[f"{name} interval"]) for name in names]
            rows.append([f"  {row['system']}", f"{row['items']:,}", f"{row['phrases']:,}", *cells])
    if not rows:
        return "no verdicts"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]).rstrip() for r in rows)


def judge_section(systems: Mapping[str, Summary]) -> str:
    """HTML: the same table as a section of the report."""
    parts = judged_parts(systems)
    names = _columns(parts)
    body = []
    for part, rows in parts.items():
        for row in rows:
            cells = "".join(f"<td>{escape(percent(row[name], row[f'{name} interval']))}</td>" for name in names)
            body.append(
                f"<tr><td>{escape(row['system'])}</td><td>{escape(part)}</td><td>{row['items']:,}</td>"
                f"<td>{row['phrases']:,}</td>{cells}</tr>"
            )
    head = "".join(f"<th>{name}</th>" for name in names)
    cuts = ", ".join(dict.fromkeys(str(rows[0]["k"]) for rows in parts.values()))
    return (
        "<h2>Judged phrase by phrase</h2><p>Percent with 95% intervals, at k = "
        f"{escape(cuts)}. G: called relevant by the language model. Uni: in the universe. Rel: both. Hum: called "
        "relevant by people, of the phrases that they judged.</p>"
        f'<div class="scroll"><table><thead><tr><th>system</th><th>items of</th><th>items</th><th>phrases</th>{head}'
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def percent(value: float | None, interval: Sequence[float] | None) -> str:
    """`55.6 [33.3, 66.7]`, or `-`.

    >>> percent(0.5, [0.25, 0.75]), percent(None, None)
    ('50.0 [25.0, 75.0]', '-')
    """
    if value is None:
        return "-"
    shown = f"{100 * value:.1f}"
    return shown + (f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else "")
