"""python scripts/bench/catalog.py memory --items 1000000

What the catalog path costs, apart from the model.

memory      peak memory of a run against the size of the file, with a generator that costs nothing: the
            reading, sharding, writing and assembling are measured, for JSONL and Parquet
kills       runs a real model over a catalog once in peace and once under kill -9 every few seconds, and
            compares the two outputs byte by byte
throughput  items/s of `pusl generate` on one and on several processes
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pusl_eval.files import write_rows


class Words(NamedTuple):
    """A prediction."""

    keyphrases: list[str]
    scores: list[float]
    exhausted: bool


@dataclass(frozen=True)
class FirstWords:
    """A generator that costs nothing: a text's first words."""

    def load(self) -> FirstWords:
        return self

    def fingerprint(self) -> dict[str, Any]:
        return {"generator": "first words"}

    def generate(self, texts: Sequence[str], k: int, **options: Any) -> list[Words]:
        found = (text.split()[:k] for text in texts)
        return [Words(words, [-1.0] * len(words), len(words) < k) for words in found]


def catalog_rows(count: int) -> Iterator[dict[str, str]]:
    """Texts of 25 words on average."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(3, 9))) for _ in range(5000)]
    for i in range(count):
        yield {"id": f"item-{i:09d}", "text": " ".join(draw.choices(words, k=draw.randint(5, 45)))}


def one_run(source: str, output: str) -> None:
    """Generates and prints seconds and peak memory; a process of its own, so that the peak is this run's."""
    from pusl.catalog.run import generate_catalog

    summary = generate_catalog(FirstWords(), source, output, 10, shard_size=2048, workers=1, progress=False, force=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"items": summary.items, "seconds": round(summary.seconds, 1), "peak_mib": round(peak, 1)}))


def measure_memory(folder: Path, items: int) -> None:
    """A table: file size against peak memory."""
    print("| file | items | size, MB | items/s | peak, MiB |\n|---|---|---|---|---|")
    for ending in ("jsonl", "parquet"):
        for count in (items // 100, items // 10, items):
            source, output = folder / f"in-{count}.{ending}", folder / f"out-{count}.{ending}"
            write_rows(source, catalog_rows(count), force=True)
            command = [sys.executable, __file__, "one-run", str(source), str(output)]
            done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            size = source.stat().st_size / 1e6
            rate = done["items"] / done["seconds"] if done["seconds"] else 0
            print(f"| {ending} | {count:,} | {size:,.1f} | {rate:,.0f} | {done['peak_mib']:,.0f} |", flush=True)


def generate_command(args: argparse.Namespace, output: Path, *more: str) -> list[str]:
    """The command line of a run."""
    return [
        sys.executable, "-m", "pusl", "generate", "--model", args.model, "--input", args.input, "--output", str(output),
        "-k", str(args.k), "--quiet", *args.flags, *more,
    ]  # fmt: skip


def measure_kills(args: argparse.Namespace, folder: Path) -> None:
    """Runs until done, killing every `--every` seconds; then compares with the peaceful output."""
    calm, rough = folder / "calm.jsonl", folder / "rough.jsonl"
    if not calm.exists():
        began = time.monotonic()
        subprocess.run(generate_command(args, calm), check=True)
        print(f"uninterrupted: {time.monotonic() - began:.0f} s", flush=True)
    kills, began = 0, time.monotonic()
    while True:
        process = subprocess.Popen(generate_command(args, rough), start_new_session=True)
        try:
            process.wait(timeout=args.every if kills < args.kills else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            done = len(list(folder.glob("rough.jsonl.parts/part-*")))
            print(f"kill -9 number {kills}: {done} shards are done", flush=True)
            continue
        break
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    same = calm.read_bytes() == rough.read_bytes()
    print(f"{kills} kills, {time.monotonic() - began:.0f} s, outputs {'are the same' if same else 'DIFFER'}")
    raise SystemExit(0 if same else 1)


def measure_throughput(args: argparse.Namespace, folder: Path) -> None:
    """items/s by number of processes, loading included and not."""
    print("| processes | items/s with loading | seconds |\n|---|---|---|")
    with open(args.input, "rb") as stream:
        count = sum(1 for _ in stream)
    for workers in args.workers:
        began = time.monotonic()
        output = folder / f"speed-{workers}.jsonl"
        subprocess.run(
            generate_command(args, output, "--workers", str(workers), "--force"), check=True, stdout=subprocess.DEVNULL
        )
        seconds = time.monotonic() - began
        print(f"| {workers} | {count / seconds:,.1f} | {seconds:,.1f} |", flush=True)


def main() -> None:
    """Reads the flags and measures."""
    if sys.argv[1:2] == ["one-run"]:
        return one_run(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "kills", "throughput"))
    parser.add_argument("--folder", default="bench_catalog", help="where files go (default: bench_catalog)")
    parser.add_argument("--items", type=int, default=1_000_000, help="of the largest file (memory)")
    parser.add_argument("--model", help="a model folder (kills, throughput)")
    parser.add_argument("--input", help="a catalog file (kills, throughput)")
    parser.add_argument("-k", "--k", type=int, default=10, help="keyphrases per item (default: 10)")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between kills (default: 20)")
    parser.add_argument("--kills", type=int, default=5, help="how many kills (default: 5)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="processes (throughput)")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="more flags of `pusl generate`, last")
    args = parser.parse_args()
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if args.what == "memory":
        try:
            measure_memory(folder, args.items)
        finally:
            shutil.rmtree(folder)
    elif args.what == "kills":
        measure_kills(args, folder)
    else:
        measure_throughput(args, folder)


if __name__ == "__main__":
    main()
