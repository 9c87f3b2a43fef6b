"""python scripts/studies/related.py DATA --out RELATED [--labels 10] [--neighbors 30]

Writes DATA's train, dev and test files once more with the labels of similar training items behind each text
("text related: a; b; c"), best first by the neighbors' votes. A training item does not vote for itself. Train on both
folders alike to see whether a model profits from being shown what neighbors have:

    pusl train --paradigm pusl --model MODEL --train RELATED/train.jsonl --out WITH --max-source-length 96 ...
    pusl generate --model WITH --input RELATED/test.jsonl --output with.jsonl -k 15
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tables.registry import find_file

from pusl.fusion.learn import read_labeled
from pusl.fusion.memory import NEIGHBORS, Memory
from pusl_eval.errors import exit_code
from pusl_eval.files import open_atomic
from pusl_eval.flags import integer


def related(memory: Memory, texts: list[str], count: int, *, own: bool) -> list[list[str]]:
    """The labels that neighbors vote for, best first.

    `own`: the texts are the memory's own items, in its order; none votes for itself.
    """
    rows, similar = memory.index.nearest(memory.tfidf.transform(texts), memory.count + own)
    found = []
    for number, (nearest, weights) in enumerate(zip(rows.tolist(), similar.tolist(), strict=True)):
        votes: dict[int, float] = {}
        voters = [
            pair for pair in zip(nearest, weights, strict=True) if pair[0] >= 0 and not (own and pair[0] == number)
        ]
        for row, weight in voters[: memory.count]:
            for label in memory.matrix.indices[memory.matrix.indptr[row] : memory.matrix.indptr[row + 1]].tolist():
                votes[label] = votes.get(label, 0.0) + weight
        best = sorted(votes, key=lambda label: (-votes[label], label))[:count]
        found.append([memory.labels[label] for label in best])
    return found


def write_related(data: Path, out: Path, count: int, neighbors: int) -> None:
    """The three files of `data` with related labels behind the texts."""
    memory = Memory(read_labeled(find_file(data, "train")), neighbors)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev", "test"):
        items = read_labeled(find_file(data, name))
        labels = related(memory, [text for _, text, _ in items], count, own=name == "train")
        with open_atomic(out / f"{name}.jsonl", force=True) as stream:
            for (item, text, phrases), near in zip(items, labels, strict=True):
                shown = f"{text} related: {'; '.join(near)}" if near else text
                stream.write(json.dumps({"id": item, "text": shown, "keyphrases": phrases}, ensure_ascii=False) + "\n")
        print(f"{out / name}.jsonl: {len(items):,} items")


def main() -> None:
    """Reads the flags and writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels", type=integer(1), default=10, help="labels behind a text (default: 10)")
    parser.add_argument("--neighbors", type=integer(1), default=NEIGHBORS, help=f"voters (default: {NEIGHBORS})")
    args = parser.parse_args()
    write_related(args.data, args.out, args.labels, args.neighbors)


if __name__ == "__main__":
    raise SystemExit(exit_code(main, "related.py"))
