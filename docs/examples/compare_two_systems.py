"""Compare two systems item by item, with intervals, on incomplete labels.

python docs/examples/compare_two_systems.py WORK

Takes seconds: both systems are baselines.
Any two files of predictions can be compared the same way.
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
files = ["--train", "shop/train.jsonl", "--input", "shop/test.jsonl"]
for name in ("knn", "frequency"):
    pusl("baseline", name, *files, "--output", f"{name}.jsonl", "-k", "5")

# test.jsonl has the labels that buyers left.
# complete.jsonl has all right keyphrases, which only a simulation knows.
systems = {"kNN": work / "knn.jsonl", "frequency": work / "frequency.jsonl"}
for title, file in (("observed", "test"), ("complete", "complete")):
    references = work / f"shop/{file}.jsonl"
    result = compare(references, systems, k=[5], train=work / "shop/train.jsonl")
    gap = result["comparisons"][0]["scores"]["all"]["B@5"]
    low, high = (f"{100 * end:.1f}" for end in gap["interval"])
    points = f"{100 * gap['difference']:+.1f} points [{low}, {high}]"
    print(f"{title} labels: kNN - frequency in B@5: {points}")
