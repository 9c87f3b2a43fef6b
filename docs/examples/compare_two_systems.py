"""Compare two systems honestly: item by item, with intervals, on labels that are incomplete.

python docs/examples/compare_two_systems.py WORK

Takes seconds: both systems are baselines. Any two files of predictions can be compared the same way.
"""

import subprocess
import sys
from pathlib import Path

from pusl_eval import compare

work = Path(sys.argv[1])


def pusl(*words: str) -> None:
    """Runs one command of PUSL in the work folder."""
    subprocess.run([sys.executable, "-m", "pusl", *words], cwd=work, check=True)


pusl("data", "simulate", "--out", "shop", "--items", "2000", "--seed", "3")
for name in ("knn", "frequency"):
    files = ["--train", "shop/train.jsonl", "--input", "shop/test.jsonl", "--output", f"{name}.jsonl"]
    pusl("baseline", name, *files, "-k", "5")

# What the labels say: labels that buyers left.
observed = compare(
    work / "shop/test.jsonl",
    {"kNN": work / "knn.jsonl", "frequency": work / "frequency.jsonl"},
    k=[5],
    train=work / "shop/train.jsonl",
)
# What is true: all right keyphrases, which only a simulation knows.
complete = compare(
    work / "shop/complete.jsonl",
    {"kNN": work / "knn.jsonl", "frequency": work / "frequency.jsonl"},
    k=[5],
    train=work / "shop/train.jsonl",
)
for title, result in (("observed labels", observed), ("complete labels", complete)):
    gap = result["comparisons"][0]["scores"]["all"]["B@5"]
    low, high = gap["interval"]
    print(f"{title}: kNN - frequency in B@5: {100 * gap['difference']:+.1f} points [{100 * low:.1f}, {100 * high:.1f}]")
