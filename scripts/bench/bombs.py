"""python scripts/bench/bombs.py [--megabytes 1024] [--bombs NAME...] [--output FILE]

Gzip bombs x every command that reads items: how much memory does each need above its start? A bomb is a file of about
1 MB that unpacks to a single line of 1 GB. Every line has to end with exit code 0 or 2. One process loads torch and
forks for each line, and the line's memory is counted from there, so torch is not in the numbers. Exit code 1 if a line
needs more than 300 MB or has no clean answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hostile
from forked import Runner
from fuzz import preload

LIMIT = 300 << 20
STARTS = {
    "item.jsonl.gz": b'{"id": "b", "text": "',
    "cell.csv.gz": b'id,text,keyphrases\n1,"',
    "line.txt.gz": b"",
}
# {bomb} is one of the files above; the others are sound.
LINES = {
    "stats": "data stats {bomb}",
    "split": "data split {bomb} --out out",
    "thin": "data thin {bomb} --keep 0.5 --out out.jsonl",
    "group": "data group {bomb} --out out.jsonl",
    "convert": "data convert {bomb} --to out.jsonl",
    "convert table": "data convert {bomb} --format table --to out.jsonl",
    "train": "train --model scratch:tiny --train {bomb} --out out --max-steps 1",
    "train --dev": "train --model scratch:tiny --train {train} --dev {bomb} --out out --max-steps 1",
    "post-train": "post-train --model {model} --train {bomb} --out out --max-steps 1",
    "generate": "generate --model {model} --input {bomb} --output out.jsonl -k 2 --workers 1 --quiet",
    "generate --universe": "generate --model {model} --input {small} --universe {bomb} --output out.jsonl -k 2 --quiet",
    "score": "score --model {model} --input {bomb} --candidates {universe} --output out.jsonl --quiet",
    "score --candidates": "score --model {model} --input {small} --candidates {bomb} --output out.jsonl --quiet",
    "fuse": "fuse --train {bomb} --dev {dev} --sources knn text --out out",
    "fuse --dev": "fuse --train {train} --dev {bomb} --sources knn text --out out",
    "baseline": "baseline knn --train {bomb} --save out",
    "baseline --input": "baseline knn --train {train} --input {bomb} --output out.jsonl",
    "evaluate": "evaluate --references {bomb} --predictions {predictions} -k 2",
    "evaluate --predictions": "evaluate --references {test} --predictions {bomb} -k 2",
    "report": "report --references {bomb} --predictions {predictions} --output out.html",
    "rerank": "rerank --predictions {bomb} --objective brs -k 2 --output out.jsonl",
    "judge": "judge --references {bomb} --predictions {predictions} --dry-run --output out.jsonl",
    "judge --predictions": "judge --references {test} --predictions {bomb} --dry-run --output out.jsonl",
    "judge --universe": "judge --references {test} --predictions {predictions} --universe {bomb} --dry-run "
    "--output out.jsonl",
    "judge --gold": "judge --references {test} --predictions {predictions} --gold {bomb} --dry-run --output out.jsonl",
}


def make_bomb(path: Path, megabytes: int) -> None:
    """One line, `megabytes` long after unpacking; packed it is a thousand times smaller."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with open(path, "wb") as stream:
        stream.write(packer.compress(STARTS[path.name]))
        block = b"a" * (1 << 20)
        for _ in range(megabytes):
            stream.write(packer.compress(block))
        stream.write(packer.flush())


def measure(megabytes: int, bombs: Sequence[str] = tuple(STARTS)) -> list[dict[str, Any]]:
    """{line, bomb, code, megabytes above the start, clean} of every command with every bomb."""
    preload()
    runner = Runner()
    found = []
    folder = Path(tempfile.mkdtemp(prefix="pusl-bombs-"))
    try:
        sound = folder / "sound"
        sound.mkdir()
        made = runner.call(lambda: hostile.make_sound(sound), folder, wall=600)
        if made.code:
            raise SystemExit(f"the material could not be made:\n{made.stderr}")
        for name in bombs:
            make_bomb(folder / name, megabytes)
        files = {path.name.partition(".")[0]: path for path in sorted(sound.iterdir()) if path.suffix != ".csv"}
        for name, line in LINES.items():
            for bomb in bombs:
                if bomb == "line.txt.gz" and not re.search("universe {bomb}|candidates {bomb}", line):
                    continue  # refused by its ending
                work = Path(tempfile.mkdtemp(dir=folder))
                words = line.format(**files, bomb=folder / bomb).split()
                outcome = runner.call(lambda words=words, note=folder / "peak": _measured(words, note), work)
                clean = outcome.code in (0, 2) and "Traceback" not in outcome.stderr and not outcome.problems
                above = int((folder / "peak").read_text())
                row = {"line": name, "bomb": bomb, "code": outcome.code, "megabytes": above, "clean": clean}
                found.append({**row, "said": outcome.stderr.strip().rpartition("\n")[2][-200:]})
                shutil.rmtree(work)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _measured(words: list[str], note: Path) -> Any:
    """Runs a command in this process; notes how many MB it needed above its start."""
    from pusl.cli import main

    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _status("VmRSS")
    try:
        return main(words)
    finally:
        note.write_text(str((_status("VmHWM") - before) >> 10))


def _status(name: str) -> int:
    """A line of /proc/self/status, in KB."""
    found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def main() -> int:
    """Measures, and prints a line for each command and bomb."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of a bomb's line (default: 1024)")
    parser.add_argument("--bombs", nargs="+", choices=STARTS, default=list(STARTS), help="default: all")
    parser.add_argument("--output", help="write the numbers here as JSON")
    args = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    found = measure(args.megabytes, args.bombs)
    for row in found:
        print(f"{row['megabytes']:6} MB  exit {row['code']}  {row['line']:24} {row['bomb']:15} {row['said'][:120]}")
    if args.output:
        Path(args.output).write_text(json.dumps(found, indent=1))
    bad = [row for row in found if not row["clean"] or row["megabytes"] << 20 > LIMIT]
    print(f"{len(found)} lines, at most {max(row['megabytes'] for row in found)} MB above the start, {len(bad)} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
