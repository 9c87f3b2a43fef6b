"""python -m pusl_eval.glossary docs/reference/metrics.md

Declared metrics -> the list in `--help` and the tables in docs/reference/metrics.md, which this command rewrites.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from pusl_eval.declarations import HIGHER, LOWER, NEEDS, SECTIONS, Metric
from pusl_eval.files import InputError, check_input, open_atomic
from pusl_eval.metrics import REGISTRY

ARROWS = {HIGHER: "↑", LOWER: "↓"}
_TABLE = re.compile(r"(<!-- metrics: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def help_text(width: int = 100) -> str:
    """Every metric with its meaning, for a terminal."""
    lines = ["metrics (formulas: docs/reference/metrics.md):"]
    for metric in REGISTRY:
        if metric.needs != "judge":
            first, *rest = textwrap.wrap(_meaning(metric), width - 24)
            lines += [f"  {_names(metric):<20}  {first}", *(" " * 24 + line for line in rest)]
    return "\n".join(lines)


def markdown(section: str) -> str:
    """The table of one section of docs/reference/metrics.md."""
    rows = ["| name | meaning | definition | better |", "|---|---|---|---|"]
    for metric in REGISTRY:
        if metric.section == section:
            meaning = re.sub(r"(?<![\w`-])(--[a-z-]+|pusl judge)", r"`\1`", _meaning(metric))  # so that they stay whole
            cells = (_names(metric), meaning, metric.formula, ARROWS.get(metric.better, "–"))
            rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def rewritten(text: str) -> str:
    """A page with the tables between `<!-- metrics: SECTION -->` and `<!-- end -->` made anew."""
    found = [section for _, section, _ in _TABLE.findall(text)]
    if found != list(SECTIONS):
        raise InputError(f"expected one table for each of: {', '.join(SECTIONS)}; found: {', '.join(found) or 'none'}")
    return _TABLE.sub(lambda match: match[1] + markdown(match[2]) + match[3], text)


def _meaning(metric: Metric[Any]) -> str:
    return metric.meaning + (f" Needs {NEEDS[metric.needs]}." if metric.needs else "")


def _names(metric: Metric[Any]) -> str:
    return ", ".join([metric.shown + metric.names[0], *metric.names[1:]])


def main() -> None:
    """Rewrites the tables of one page."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pusl_eval.glossary docs/reference/metrics.md")
    try:
        path = check_input(Path(sys.argv[1]))
        text = rewritten(path.read_text(encoding="utf-8"))
        with open_atomic(path, force=True) as stream:
            stream.write(text)
    except InputError as error:
        sys.exit(f"glossary: {error}")


if __name__ == "__main__":
    main()
