"""python scripts/bench/strategies.py --dev dev.jsonl.gz --models pusl=m/p0,m/p1 one2one=m/o0,m/o1

Which decoding strategy is best: every strategy and width of each model on one file, at its real cost.

Models after one name are seeds of the same training; scores are their mean, and the spread between seeds
is given beside it. A One2One model decoded by the same beam is the control: the first slot of a PUSL
model is a One2One model too. Columns: B@mu, B@2mu, F1@O, K@2mu (docs/reference/metrics.md) in percent, unique phrases
as they are, and processor milliseconds per item.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from pusl.decoding.generator import KeyphraseGenerator
from pusl.examples import read_examples
from pusl.process import prepare_process
from pusl_eval.budgets import budgets
from pusl_eval.flags import named_files
from pusl_eval.metrics import budget_accuracy, f1, unique_count

WAYS: dict[str, dict[str, Any]] = {
    "algorithm 1": {"allow_repeats": True},
    "sequence 2": {"strategy": "sequence", "num_beams": 2},
    "sequence 4": {"strategy": "sequence", "num_beams": 4},
    "sequence 8": {"strategy": "sequence", "num_beams": 8},
    "sequence 16": {"strategy": "sequence", "num_beams": 16},
    "beam": {"strategy": "beam"},
    "beam 2k": {"strategy": "beam", "num_beams": -2},
}
ONLY_ENDLESS = {name for name in WAYS if not name.startswith("beam")}


def measure(folder: str, texts: list[str], truth: list[list[str]], ways: list[str], args: Any) -> dict[str, Any]:
    """Scores and cost of each way for one model."""
    generator = KeyphraseGenerator.from_pretrained(folder, precision=args.precision)
    mu = generator.checkpoint.meta.get("defaults", {}).get("mu") or statistics.mean(map(len, truth))
    small, large = budgets(mu)
    paradigm = generator.paradigm
    chosen = [way for way in ways if paradigm.endless or way not in ONLY_ENDLESS]
    chosen = ["own sequence"] if paradigm.ends_itself else chosen
    rows: dict[str, Any] = {}
    for way in chosen:
        options = dict(WAYS.get(way, {}))
        if options.get("num_beams", 0) < 0:
            options["num_beams"] = -options["num_beams"] * large
        depth = max(large, min(100, max(map(len, truth)))) if args.full else large
        before = time.process_time()
        found = [one.keyphrases for one in generator.generate(texts, depth, batch_size=args.batch_size, **options)]
        cost = (time.process_time() - before) / len(texts) * 1000
        rows[way] = {
            "B@mu": 100 * mean(budget_accuracy(truth, found, small)),
            "B@2mu": 100 * mean(budget_accuracy(truth, found, large)),
            "F1@O": 100 * mean(f1(truth, found)),
            "K@2mu": mean(unique_count(truth, found, large)),
            "ms": cost,
        }
        print(f"{folder} {way}: {json.dumps(rows[way])}", file=sys.stderr, flush=True)
    return rows


def mean(values: Any) -> float:
    """The mean of per-item scores; items without references have none."""
    known = [float(value) for value in values if value == value]
    return sum(known) / max(1, len(known))


def main() -> None:
    """Prints one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", required=True, help="examples with references")
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=DIR[,DIR...]")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--items", type=int, default=500, help="only the first items of the file")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "int8"), default="fp32")
    parser.add_argument("--full", action="store_true", help="ask for as many as the longest reference list (F1@O)")
    parser.add_argument("--json", type=Path, help="also write every model's rows here")
    args = parser.parse_args()
    prepare_process(args.threads, keep_memory=True)
    examples = [one for one in itertools.islice(read_examples(args.dev), args.items) if one.keyphrases]
    texts, truth = [one.text for one in examples], [one.keyphrases for one in examples]
    everything: dict[str, list[dict[str, Any]]] = {}
    for name, folders in named_files(args.models, "--models", "DIR").items():
        everything[name] = [measure(folder, texts, truth, args.ways, args) for folder in folders.split(",")]
    print(f"{len(texts)} items of {args.dev}; mean over seeds ± half the range\n")
    print("| model | decoding | B@μ | B@2μ | F1@O | #K@2μ | ms/item |\n|---|---|---|---|---|---|---|")
    for name, seeds in everything.items():
        for way in seeds[0]:
            cells = []
            for column in ("B@mu", "B@2mu", "F1@O", "K@2mu", "ms"):
                values = [seed[way][column] for seed in seeds]
                cells.append(f"{statistics.mean(values):.1f} ± {(max(values) - min(values)) / 2:.1f}")
            print(f"| {name} | {way} | {' | '.join(cells)} |")
    if args.json:
        args.json.write_text(json.dumps(everything, indent=2))


if __name__ == "__main__":
    main()
