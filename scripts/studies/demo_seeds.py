"""python scripts/studies/demo_seeds.py --out RUNS --seeds 0 1 2 3 4 --save pusl/demo_seeds.json

Runs `pusl demo` with several seeds (catalog, weights and order all change) and prints the spread of the
scores as the Markdown table of docs/results. Finished demos are reused. `pusl demo` prints the spread
from the saved file. The file keeps earlier results from other kinds of processors with the same settings:
they round differently, so the same seeds give other models.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from pusl.demo import SYSTEMS, DemoConfig, demo
from pusl_eval.files import write_json


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the demos")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="one demo per seed (default: 0 1 2 3 4)"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="store the spread of this machine as JSON")
    args = parser.parse_args()
    rows: dict[str, list[list[float]]] = {title: [] for title in SYSTEMS.values()}
    for seed in args.seeds:
        folder = args.out / f"seed-{seed}"
        if not (folder / "report.html").exists():
            demo(folder, DemoConfig(seed=seed))
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        middle, double = metrics["observed"]["k"]
        for title in SYSTEMS.values():
            seen, true = (metrics[truth]["systems"][title]["scores"]["all"] for truth in ("observed", "complete"))
            rows[title].append(
                [seen[f"K@{double}"], *(100 * seen[m] for m in (f"B@{middle}", f"B@{double}", "F1@O", f"P@{double}")),
                 100 * true[f"B@{double}"], 100 * true["F1@O"]]
            )  # fmt: skip
    if args.save:
        settings = {key: value for key, value in asdict(DemoConfig()).items() if key != "seed"}
        columns = {"K": 0, "B": 2, "true B": 5}
        spread = {
            title: {name: [row[column] for row in values] for name, column in columns.items()}
            for title, values in rows.items()
        }
        kept = json.loads(args.save.read_text(encoding="utf-8")) if args.save.exists() else {}
        others = kept.get("processors", {}) if kept.get("settings") == settings else {}
        here = {torch.backends.cpu.get_cpu_capability(): {"seeds": args.seeds, "percent at 2μ": spread}}
        write_json(args.save, {"settings": settings, "processors": {**others, **here}}, force=True)
    heads = ["#K@2μ", "B@μ", "B@2μ", "F1@O", "P@2μ", "true B@2μ", "true F1@O"]
    print("| system | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    for title, values in rows.items():
        table = np.array(values)
        spreads = table.std(0, ddof=1) if len(table) > 1 else np.zeros(table.shape[1])  # one seed has no spread
        cells = [f"{m:.2f} ± {s:.2f} ({low:.2f}–{high:.2f})" for m, s, low, high in zip(
            table.mean(0), spreads, table.min(0), table.max(0), strict=True)]  # fmt: skip
        print(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
