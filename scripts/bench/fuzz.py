"""python scripts/bench/fuzz.py --minutes 30 [--cases N] [--seed N] [--only COMMAND] [--show]

Hostile inputs x every command and flag. Every command line has to end with a clean answer: exit code 0, or 2 (1 where
the machine is at fault) with one or two lines on stderr; no traceback, no file left behind, bounded time and memory.
Commands and flags are read from the parsers, so new ones are covered by themselves. One process loads torch and forks
for each case. The first cases are always the same for a seed, so a short run is a part of a long one. Exit code 1 if
any case failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hostile
from forked import Outcome, Runner, snapshot
from fuzz_cases import REFUSED, Case, Cases, parsers

__all__ = ["Case", "Cases", "Outcome", "Runner", "fuzz", "judge", "parsers", "preload", "snapshot"]

MEMORY = 1 << 30  # bytes that a command may need above the loaded process
EVERY = 20  # cases between two looks at the inputs
PROGRESS = re.compile(r"(^\s*$)|(\d+%\|)|(\d+ ?items? \[)|(it/s|s/it|\?it)")


def run(runner: Runner, case: Case, folder: Path) -> Outcome:
    """Runs a case in an own folder below `folder` and judges its answer."""
    work = Path(tempfile.mkdtemp(dir=folder))
    try:
        if case.ending is not None:
            hostile.make_clutter(work, case.ending)
        before = snapshot(work)
        words = case.words()

        def command() -> Any:
            from pusl.cli import main

            sys.argv = ["pusl", *words]
            return main(words)

        ready = "PUSL is at" if case.environment == "closed stderr" else '"event": "ready"'
        found = runner.call(command, work, case.environment, ready=ready if case.command == "serve" else "")
        after = snapshot(work)
        judge(case, found, before, after, runner.base)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found


def judge(case: Case, found: Outcome, before: dict[str, Any], after: dict[str, Any], base: int) -> None:
    """Adds what is wrong with an outcome to its problems."""
    add = found.problems.append
    lines = [line.rpartition("\r")[2] for line in found.stderr.splitlines()]
    lines = [line for line in lines if not PROGRESS.search(line)]
    if "Traceback (most recent call last)" in found.stderr:
        add("traceback")
    if "secret-key-of-the-fuzzer" in found.stderr + found.stdout:
        add("prints a key")
    if "Warning: " in found.stderr or "Exception ignored" in found.stderr:
        add("a warning of Python's")
    if found.code not in (0, 1, 2) and not found.problems:
        add(f"exit code {found.code}")
    said = not case.environment.startswith("closed stderr")
    if found.code in (1, 2) and not found.problems and said and not 1 <= len(lines) <= 3 - (found.code == 2):
        add(f"{len(lines)} lines on stderr")
    sound = case.note == case.environment and case.command not in REFUSED
    if found.code == 2 and sound and case.environment in ("full stdout", "full disk"):
        add("exit code 2 where the machine is at fault")
    if any(len(line) > 3000 for line in lines):
        add("an endless line on stderr")
    if any(re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line) for line in lines):
        add("control characters on stderr")
    if found.memory > base + MEMORY:
        add(f"{(found.memory - base) >> 20} MB of memory")
    changed = sorted(name for name in before if after.get(name) != before[name])
    new = sorted(set(after) - set(before))
    temporary = [name for name in new if re.search(r"(^|/)\.[^/]*\.tmp($|/)", name)]
    # After a fault of the machine what can be resumed stays, and so does what a model has generated for post-training.
    kept = {0: r".*", 1: r"(.*\.parts|out)(/|$)|.*llm_answers" if case.environment else r".*"}.get(found.code, r"$")
    if found.code == 2 and case.command == "post-train":
        kept = r"out(/selection|$)"
    left = temporary or [name for name in new if not re.match(kept, name)]
    if case.environment == "full stdout":  # the output was whole before its summary could not be shown
        left = temporary
    if left:
        add(f"left {left[0]}")
    if changed and (found.code != 0 or "--force" not in case.flags):
        add(f"changed {changed[0]}")


def preload(only: str = "") -> None:
    """Imports what commands import, so that a fork has it."""
    from importlib import import_module

    from pusl.process import prepare_process

    prepare_process()
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # its thread would not survive a fork
    for name in (
        "torch", "transformers", "transformers.models.t5.modeling_t5", "sklearn.feature_extraction.text", "openai",
        "pyarrow.parquet", "datasets", "numba", "pusl.training", "pusl.catalog.run",
        "pusl.training.posttraining", "pusl.catalog.candidates", "pusl.fusion.learn", "pusl.decoding.generator",
        "pusl.llm.judging", "pusl.data.splits", "pusl.data.convert", "pusl.data.simulate", "pusl.data.thin",
        "pusl.data.stats_plot", "pusl_eval.report", "pusl.demo", "pusl.serve.app", "pusl.baselines.predict",
        "transformers.integrations.integration_utils",
    ):  # fmt: skip
        if only in ("data", "evaluate", "rerank", "report", "judge") and not name.startswith(("pusl.data", "pyarrow")):
            continue  # these need no torch
        with contextlib.suppress(ImportError):
            import_module(name)
    if only and not "baseline fuse".startswith(only):
        return
    from pusl.baselines.model import BASELINES, baseline_class

    for name in BASELINES:
        with contextlib.suppress(ImportError):
            baseline_class(name)


def make_material(folder: Path, runner: Runner) -> tuple[Path, Path, Path]:
    """(sound, broken, damaged): all that the cases are made of, in forks, so that this process stays clean."""
    sound, broken, damaged = (folder / name for name in ("sound", "broken", "damaged"))
    if damaged.is_dir() and any(damaged.iterdir()):
        return sound, broken, damaged  # kept from an earlier run
    for path in (sound, broken, damaged):
        path.mkdir(parents=True)

    def make() -> int:
        from pusl.cli import main

        hostile.make_sound(sound)
        hostile.make_hostile(broken)
        train, dev = str(sound / "train.jsonl"), str(sound / "dev.jsonl")
        code = main(["fuse", "--train", train, "--dev", dev, "--sources", "knn", "text", f"m={sound}/model",
                     "--out", str(sound / "fused"), "--no-ablation"])  # fmt: skip
        for name in ("knn", "svm", "frequency", "fastxml"):
            code |= main(["baseline", name, "--train", train, "--save", str(sound / f"baseline-{name}")])
        for name in ("model", "fused", "baseline-knn", "baseline-svm", "baseline-frequency", "baseline-fastxml"):
            hostile.damaged_folders(sound / name, damaged)
        return code

    outcome = runner.call(make, folder, wall=600)
    if outcome.code:
        raise SystemExit(f"the material could not be made:\n{outcome.stderr}")
    return sound, broken, damaged


def fuzz(
    seconds: float = 60.0,
    most: int | None = None,
    seed: int = 0,
    only: str = "",
    show: Callable[[str], None] = print,
    keep: str | None = None,
) -> dict[str, Any]:
    """Runs cases until time or number is up; returns counts and every case without a clean answer."""
    preload(only)
    runner = Runner()
    codes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest: list[tuple[float, str]] = []
    spent = 0.0
    folder = Path(tempfile.mkdtemp(prefix="pusl-fuzz-"))
    try:
        sound, broken, damaged = make_material(Path(keep).absolute() if keep else folder, runner)
        end = time.monotonic() + seconds
        before = {path: inputs_in(path) for path in (sound, broken, damaged)}
        for number, case in enumerate(Cases(sound, broken, damaged, seed, only)):
            if time.monotonic() > end or (most is not None and number >= most):
                break
            found = run(runner, case, folder)
            for path, old in before.items() if number % EVERY == 0 else ():
                kept = inputs_in(path)
                if kept != old:
                    different = sorted(name for name in {*kept, *old} if kept.get(name) != old.get(name))
                    found.problems.append(
                        f"an input was changed by this case or one of {EVERY} before it: {different[0]}"
                    )
                    before[path] = kept
            spent += found.seconds
            codes[case.command + f" -> {found.code}"] += 1
            line = " ".join(words_shown(case.words(), folder))
            slowest = sorted([*slowest, (found.seconds, line)], reverse=True)[:10]
            if found.problems:
                tail = found.stderr.strip().splitlines()[-12:]
                failures.append({
                    "problems": found.problems, "line": line, "environment": case.environment, "code": found.code,
                    "stderr": [text[:300] for text in tail],
                })  # fmt: skip
                show(
                    f"{'; '.join(found.problems)} | {case.environment} | pusl {line} | {tail[-1][:200] if tail else ''}"
                )
        count = sum(codes.values())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"cases": count, "failures": failures, "seconds": spent, "codes": dict(codes), "slowest": slowest}


def inputs_in(folder: Path) -> dict[str, Any]:
    """What must not change: everything but the indexes that universes get."""
    return {
        name: about for name, about in snapshot(folder).items() if ".index" not in name and not name.startswith(".")
    }


def words_shown(words: Sequence[str], folder: Path) -> list[str]:
    """A command line that fits a line."""
    short = [ascii(word.replace(str(folder), "")) for word in words]
    return [word if len(word) < 80 else f"{word[:60]}...({len(word)})" for word in short]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after this time (default: 30)")
    parser.add_argument("--cases", type=int, help="stop after this many command lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands that begin with this")
    parser.add_argument("--keep", metavar="DIR", help="keep the material here and use it again")
    parser.add_argument("--show", action="store_true", help="print the slowest lines and the exit codes too")
    parser.add_argument("--output", help="write the result here as JSON")
    args = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    os.environ.update(MPLCONFIGDIR=tempfile.gettempdir(), FUZZ_KEY="secret-key-of-the-fuzzer")
    result = fuzz(60 * args.minutes, args.cases, args.seed, args.only, lambda text: print(text, flush=True), args.keep)
    if args.output:
        Path(args.output).write_text(json.dumps(result, indent=1))
    if args.show:
        for name, count in sorted(result["codes"].items()):
            print(f"{count:6} {name}")
        for seconds, line in result["slowest"]:
            print(f"{seconds:6.1f} s  {line}")
    print(
        f"{result['cases']} command lines, {len(result['failures'])} without a clean answer, {result['seconds']:.0f} s"
    )
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
