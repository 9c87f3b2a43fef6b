"""python scripts/bench/universe.py --phrases 1000000 10000000

The index of a universe at catalog scale: a file of random phrases of 2 to 5 words is written, indexed,
mapped again and asked. Reports processor seconds, peak memory of the building process above its start,
size on disk, and what opening and one lookup cost.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 50_000


def words() -> list[str]:
    """Pronounceable words of two to four syllables, all different."""
    chance = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "os")]
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(chance.choice(syllables, chance.integers(2, 5)))] = None
    return list(found)


def write(path: Path, count: int) -> None:
    """`count` phrases, words drawn by Zipf's law as in real queries."""
    chance, known = np.random.default_rng(1), np.array(words(), dtype=object)
    with open(path, "w", encoding="utf-8") as stream:
        for start in range(0, count, 100_000):
            size = min(100_000, count - start)
            drawn = known[chance.zipf(1.2, (size, 5)) % WORDS]
            lengths = chance.integers(2, 6, size)
            stream.writelines(
                " ".join(row[:length]) + "\n" for row, length in zip(drawn.tolist(), lengths.tolist(), strict=True)
            )


def build(path: Path, pipe: Any) -> None:
    """In a process of its own, so that its peak memory is its own."""
    from pusl.decoding.universe import Universe
    from pusl.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(words(), 8000)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    universe = Universe.open(path, tokenizer)
    seconds = time.process_time() - began
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    began = time.perf_counter()
    universe = Universe.open(path, tokenizer)
    opened = time.perf_counter() - began
    with open(path, encoding="utf-8") as stream:
        asked = [next(stream).strip() for _ in range(10_000)]
    began = time.process_time()
    assert all(universe.contains(phrase) for phrase in asked) and not universe.contains("no such phrase here")
    lookup = (time.process_time() - began) / len(asked)
    index = path.with_name(path.name + ".index")
    disk = sum(file.stat().st_size for file in index.iterdir()) / 2**20
    pipe.send((len(universe), len(universe.tokens), seconds, peak, disk, opened, lookup))


def main() -> None:
    """Prints one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phrases", type=int, nargs="+", default=[1_000_000])
    args = parser.parse_args()
    print("| phrases | different | nodes | built, CPU s | peak MiB | on disk MiB | opened ms | lookup µs |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for count in args.phrases:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "universe.txt"
            write(path, count)
            mine, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=build, args=(path, theirs))
            process.start()
            different, nodes, seconds, peak, disk, opened, lookup = mine.recv()
            process.join()
        print(
            f"| {count:,} | {different:,} | {nodes:,} | {seconds:.0f} | {peak:,.0f} | {disk:,.0f} | {1e3 * opened:.1f} "
            f"| {1e6 * lookup:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
