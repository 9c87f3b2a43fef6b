"""python scripts/bench/evaluation.py [--items 1000000] [--k 5 10] [--json FILE]

Files of references, predictions and training labels -> seconds and peak memory of four ways to score them, each
in a process of its own, and their ratios:

  eval          every metric, from lists in memory (and again with narrow/diverse/all bootstrap intervals)
  eval, files   the same from the files: reading, checking, scoring, intervals
  plain Python  the same metrics by tests/naive_metrics.py (phrases normalized once each)
  napkinXC      precision, recall, nDCG, coverage, abandonment and PSP at k, the part that it can do

All get the same strings; reading is left out of the comparison. The values are checked to be the same. Ratios are of
processor seconds, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTESTANTS = ("eval", "eval with intervals", "eval from files", "plain Python", "napkinXC")


def make_files(folder: Path, items: int, predicted: int, right: int, labels: int, seed: int) -> None:
    """Simulated files: Zipf-like labels of one to four words, about two hits per item."""
    rng = random.Random(seed)
    words = [f"word{i}" for i in range(20_000)]
    phrases = list({" ".join(rng.choices(words[: 200 + 99 * (i % 200)], k=1 + i % 4)) for i in range(labels)})
    weights = [1 / (rank + 10) for rank in range(len(phrases))]
    pool = rng.choices(phrases, weights, k=4_000_000)

    def draw(k: int) -> list[str]:
        start = rng.randrange(len(pool) - k)
        return pool[start : start + k]

    with open(folder / "references.jsonl", "w") as references, open(folder / "predictions.jsonl", "w") as predictions:
        for i in range(items):
            truth = list(dict.fromkeys(draw(right)))
            guess = list(dict.fromkeys(rng.sample(truth, min(2, len(truth))) + draw(predicted)))[:predicted]
            rng.shuffle(guess)
            references.write(json.dumps({"id": f"item{i}", "keyphrases": truth}) + "\n")
            predictions.write(json.dumps({"id": f"item{i}", "keyphrases": guess}) + "\n")
    with open(folder / "train.jsonl", "w") as train:
        for i in range(items // 5):
            train.write(json.dumps({"id": f"t{i}", "keyphrases": draw(right)}) + "\n")
    (folder / "universe.txt").write_text("\n".join(phrases[::2]) + "\n")


def load(path: Path) -> dict[str, list[str]]:
    """A JSONL file as {id: keyphrases}."""
    with open(path) as stream:
        rows = map(json.loads, stream)
        return {row["id"]: row["keyphrases"] for row in rows}


def run_contestant(name: str, folder: Path, ks: list[int]) -> dict[str, object]:
    """One contestant, in this process."""
    paths = {role: folder / f"{role}.jsonl" for role in ("references", "predictions", "train")}
    if name == "eval from files":
        from pusl_eval.evaluation import evaluate

        started = clock()
        result = evaluate(
            paths["references"], paths["predictions"], ks, train=paths["train"], universe=folder / "universe.txt"
        )
        return report(started, result["scores"]["all"])
    references, predictions, train = (load(path) for path in paths.values())
    universe = (folder / "universe.txt").read_text().splitlines()
    before = peak()
    if name.startswith("eval"):
        from pusl_eval.evaluation import evaluate

        draws = 1000 if "intervals" in name else 0
        started = clock()
        result = evaluate(references, predictions, ks, train=train, universe=universe, bootstrap=draws)
        return report(started, result["scores"]["all"]) | {"loaded": before}
    truth, guess = list(references.values()), list(predictions.values())
    if name == "plain Python":
        import naive_metrics

        normalize = functools.lru_cache(maxsize=None)(naive_metrics.basic)
        started = clock()
        scores = naive_metrics.scores(truth, guess, ks, list(train.values()), universe, normalize)
        return report(started, scores) | {"loaded": before}
    return run_napkinxc(truth, guess, train, ks) | {"loaded": before}


def run_napkinxc(
    truth: list[list[str]], guess: list[list[str]], train: dict[str, list[str]], ks: list[int]
) -> dict[str, object]:
    """napkinXC gives a metric at 1..k in one call, so that one call serves all k."""
    from collections import Counter

    import napkinxc.metrics as napkinxc
    from naive_metrics import jpv

    k = max(ks)
    counts = Counter(label for labels in train.values() for label in set(labels))
    inverse = {label: 1 / jpv(counts[label], len(train)) for labels in truth for label in labels}
    started = clock()
    found = {
        "B": napkinxc.precision_at_k(truth, guess, k=k),
        "R": napkinxc.recall_at_k(truth, guess, k=k),
        "nDCG": napkinxc.ndcg_at_k(truth, guess, k=k),
        "Cov": napkinxc.coverage_at_k(truth, guess, k=k),
        "Success": napkinxc.abandonment_at_k(truth, guess, k=k),
        "PSP": napkinxc.psprecision_at_k(truth, guess, inverse, k=k, normalize=False),
    }
    # Its nDCG divides by the ideal of the largest k only where that is reached, so it is compared there alone.
    scores = {f"{name}@{cut}": float(values[cut - 1]) for name, values in found.items() for cut in ks}
    return report(started, {m: v for m, v in scores.items() if not m.startswith("nDCG") or m == f"nDCG@{k}"})


def peak() -> float:
    """Peak memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def clock() -> tuple[float, float]:
    """Wall and processor seconds."""
    return time.perf_counter(), time.process_time()


def report(started: tuple[float, float], scores: object) -> dict[str, object]:
    """What a contestant tells."""
    wall, processor = clock()
    return {"wall": wall - started[0], "processor": processor - started[1], "peak": peak(), "scores": scores}


def main() -> None:
    """Makes the files, runs every contestant in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--predicted", type=int, default=10, help="predictions per item")
    parser.add_argument("--right", type=int, default=5, help="references per item")
    parser.add_argument("--labels", type=int, default=300_000, help="different phrases")
    parser.add_argument("-k", "--k", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--json", help="write seconds, memory and scores here")
    parser.add_argument("--data", help="make the files in this folder and keep them, or use those that are there")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # naive_metrics
        json.dump(run_contestant(args.contestant, Path(args.data), args.k), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.data or temporary)
        if not (folder / "universe.txt").exists():  # written last
            folder.mkdir(parents=True, exist_ok=True)
            make_files(folder, args.items, args.predicted, args.right, args.labels, args.seed)
        found = {name: measure(name, folder, args.k) for name in args.only}
    compare(found)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


def measure(name: str, folder: Path, ks: list[int]) -> dict:
    """One contestant in a process of its own."""
    command = [sys.executable, __file__, "--contestant", name, "--data", str(folder), "--k", *map(str, ks)]
    row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    times = f"{row['wall']:7.1f} s wall {row['processor']:7.1f} s processor"
    print(f"{name:<22} {times}   peak {row['peak']:.2f} GiB", flush=True)
    return row


def compare(found: dict[str, dict]) -> None:
    """Ratios to `eval`, and a check that all scores are the same."""
    if "eval" not in found:
        return
    ours = found["eval"]
    for name, other in found.items():
        if name in ("plain Python", "napkinXC"):
            worst = max(abs(ours["scores"][metric] - value) for metric, value in other["scores"].items())
            ratio = other["processor"] / ours["processor"]
            print(f"{name}: {ratio:.1f}x the time of eval; {len(other['scores'])} scores, largest gap {worst:.1e}")


if __name__ == "__main__":
    main()
