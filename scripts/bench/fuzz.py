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
import dataclasses
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
os.environ.update(MPLCONFIGDIR=tempfile.gettempdir(), FUZZ_KEY="secret-key-of-the-fuzzer")

import hostile

MEMORY = 1 << 30  # bytes that a command may need above the loaded process
ADDRESSES = 6 << 30  # bytes of address space above the loaded process, so that the machine survives
SECONDS = 40.0  # processor time
EVERY = 20  # cases between two looks at the inputs
WALL = 150.0  # a case that waits for something forever
PROGRESS = re.compile(r"(^\s*$)|(\d+%\|)|(\d+ ?items? \[)|(it/s|s/it|\?it)")
OUTPUT_NAMES = ("out", "output", "to", "plot", "save", "summary", "state", "cache")
LONG_WORK = (
    "items",
    "epochs",
    "max_steps",
    "samples",
    "trees",
    "iterations",
    "rounds",
    "train_items",
    "test_items",
    "dev_items",
)
ENVIRONMENTS = ("closed stdout", "broken pipe", "full stdout", "ascii", "full disk", "closed stderr", "few descriptors")


@dataclasses.dataclass
class Case:
    """One command line. `flags` maps a flag, or the name of a positional, to its values."""

    command: str
    flags: dict[str, list[str]]
    note: str = ""
    environment: str = ""
    ending: str | None = None  # of the hostile outputs to make in its folder

    def words(self) -> list[str]:
        named = [word for flag, values in self.flags.items() if flag.startswith("-") for word in (flag, *values)]
        placed = [word for flag, values in self.flags.items() if not flag.startswith("-") for word in values]
        return [*self.command.split(), *placed, *named]


@dataclasses.dataclass
class Outcome:
    """How a case ended; `problems` is empty after a clean answer."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    memory: int
    problems: list[str] = dataclasses.field(default_factory=list)


class Runner:
    """Runs commands in forks of this process."""

    def __init__(self) -> None:
        self.base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        self.addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def call(self, function: Callable[[], Any], folder: Path, environment: str = "", wall: float = WALL) -> Outcome:
        """The function's result as an exit code, from a fork whose working folder is `folder`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            sys.stdout.flush()
            sys.stderr.flush()
            began = time.monotonic()
            child = os.fork()
            if not child:
                self._child(function, folder, environment, out.fileno(), err.fileno())
            code, usage, late = self._wait(child, wall)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what the command may have started
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read(1 << 20).decode("utf-8", "replace"))
        found = Outcome(code, *texts, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)
        if late:
            found.problems.append(f"no answer after {time.monotonic() - began:.0f} s")
        elif code < 0:
            found.problems.append(f"ended by signal {-code}")
        return found

    def _wait(self, child: int, wall: float) -> tuple[int, Any, bool]:
        end, pause = time.monotonic() + wall, 0.001
        while time.monotonic() < end:
            done, status, usage = os.wait4(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status), usage, False
            time.sleep(pause)
            pause = min(0.02, pause * 1.3)
        os.killpg(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        return os.waitstatus_to_exitcode(status), usage, True

    def _child(self, function: Callable[[], Any], folder: Path, environment: str, out: int, err: int) -> None:
        code: Any = 70
        try:
            os.setsid()
            os.chdir(folder)
            os.dup2(out, 1)
            os.dup2(err, 2)
            sys.stdin = open(os.devnull)  # noqa: SIM115
            resource.setrlimit(resource.RLIMIT_AS, (self.addresses + ADDRESSES,) * 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS), int(SECONDS) + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _arrange(environment)
            encoding = "ascii" if environment == "ascii" else "utf-8"
            sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
            kind = {"encoding": encoding, "errors": "backslashreplace", "buffering": 1}
            sys.stderr = open(2, "w", closefd=False, **kind)  # noqa: SIM115
            if environment.startswith("closed"):
                _close(environment)
            try:
                code = function()
            except SystemExit as ended:
                code = ended.code
            if sys.stdout is not None:
                sys.stdout.flush()  # as Python does at its end
        except BaseException:
            code = 70
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)

    def run(self, case: Case, folder: Path) -> Outcome:
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

            found = self.call(command, work, case.environment)
            after = snapshot(work)
            judge(case, found, before, after, self.base)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return found


def _arrange(environment: str) -> None:
    """Makes the process as bad a place as the case asks for."""
    if environment == "broken pipe":
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
    elif environment == "full stdout":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif environment == "full disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
    elif environment == "few descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))


def _close(environment: str) -> None:
    """What Python does when it finds a standard stream closed at its start."""
    os.close(1 if environment == "closed stdout" else 2)
    setattr(sys, environment.split()[1], None)


def snapshot(folder: Path) -> dict[str, Any]:
    """What is in a folder: names, and what tells a changed file from an unchanged one."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        found[str(path.relative_to(folder))] = (
            (about.st_mode, about.st_size, about.st_mtime_ns) if not path.is_dir() else 0
        )
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
    if found.code == 2 and case.environment in ("full stdout", "full disk"):
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
    if left:
        add(f"left {left[0]}")
    if changed and (found.code != 0 or "--force" not in case.flags):
        add(f"changed {changed[0]}")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command; of sub-commands too."""
    from importlib import import_module

    from pusl.cli import COMMANDS, Parser

    found: dict[str, argparse.ArgumentParser] = {}
    for name, entry in COMMANDS.items():
        parser = Parser(prog=f"pusl {name}")
        import_module(entry[0]).add_arguments(parser)
        children = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if children:
            found |= {f"{name} {word}": child for word, child in children[0].choices.items()}
        else:
            found[name] = parser
    return found


def bases(sound: Path) -> dict[str, list[dict[str, list[str]]]]:
    """Sound command lines, short ones; the fuzzer breaks one or more of their flags."""

    def at(name: str) -> list[str]:
        return [str(sound / name)]

    train: dict[str, list[str]] = {
        "--model": ["scratch:tiny"], "--train": at("train.jsonl"), "--dev": at("dev.jsonl"), "--out": ["out"],
        "--max-steps": ["1"], "--vocab-size": ["300"], "--batch-size": ["4"], "--dev-items": ["2"],
        "--eval-every": ["1"], "--max-source-length": ["16"], "--max-target-length": ["16"],
        "--max-phrase-tokens": ["4"],
    }  # fmt: skip
    quiet: dict[str, list[str]] = {"--quiet": []}
    generate = {"--input": at("small.jsonl"), "--output": ["out.jsonl"], "-k": ["2"], **quiet}
    scored = {"--references": at("test.jsonl"), "--predictions": at("predictions.jsonl")}
    judged: dict[str, list[str]] = {
        **scored, "--output": ["out.jsonl"], "--model": ["m"], "--base-url": ["http://127.0.0.1:1/v1"],
        "--key-variable": ["FUZZ_KEY"], "--retries": ["0"], "--timeout": ["2"], **quiet,
    }  # fmt: skip
    baseline: dict[str, list[str]] = {
        "--train": at("train.jsonl"),
        "--input": at("small.jsonl"),
        "--output": ["out.jsonl"],
    }
    fused = {"--train": at("train.jsonl"), "--dev": at("dev.jsonl"), "--out": ["out"]}
    reranked = {"--predictions": at("predictions.jsonl"), "--output": ["out.jsonl"], "-k": ["2"]}
    return {
        "demo": [{"--out": at("train.jsonl")}],  # refused at the end of all checks: a whole demo takes minutes
        "data stats": [{"files": at("train.jsonl")}, {"files": at("train.jsonl"), "--plot": ["out.png"]}],
        "data split": [{"files": at("train.jsonl"), "--out": ["out"]}],
        "data simulate": [{"--out": ["out"], "--items": ["60"], "--dev-items": ["10"], "--test-items": ["10"]}],
        "data thin": [
            {"file": at("train.jsonl"), "--out": ["out.jsonl"], "--keep": ["0.6"]},
            {"file": at("train.jsonl"), "--out": ["out.jsonl"], "--by": ["jpv"]},
        ],
        "data convert": [
            {"source": at("items.csv"), "--to": ["out.jsonl"]},
            {"source": at("log.csv"), "--to": ["out.jsonl"], "--format": ["log"]},
            {"source": at("train.jsonl"), "--to": ["out.csv"], "--format": ["table"]},
        ],
        "train": [train],
        "post-train": [{
            "--model": at("model"), "--train": at("train.jsonl"), "--out": ["out"], "--max-steps": ["1"],
            "--batch-size": ["4"], "-k": ["2"], "--samples": ["2"],
        }],
        "generate": [
            {"--model": at("model"), **generate},
            {"--model": at("fused"), **generate},
            {"--llm": ["m"], **generate, "--base-url": ["http://127.0.0.1:1/v1"], "--key-variable": ["FUZZ_KEY"],
             "--retries": ["0"], "--timeout": ["2"]},
        ],
        "score": [{
            "--model": at("model"), "--input": at("small.jsonl"), "--candidates": at("universe.txt"),
            "--output": ["out.jsonl"], **quiet,
        }],
        "evaluate": [{**scored, "-k": ["2"], "--output": ["out.json"]}],
        "fuse": [
            {**fused, "--sources": ["knn", "text"]},
            {**fused, "--sources": [f"m={sound}/model"]},
        ],
        "baseline": [baseline, {"--train": at("train.jsonl"), "--save": ["out"]}],
        "rerank": [
            {**reranked, "--objective": ["coverage"], "--state": ["out.state"]},
            {**reranked, "--objective": ["propensity"], "--train": at("train.jsonl")},
            {**reranked, "--objective": ["brs"]},
        ],
        "judge": [judged, {**judged, "--dry-run": []}],
        "report": [{**scored, "--output": ["out.html"]}],
        "serve": [{"--model": at("train.jsonl")}],  # refused at the end of all checks: a service would not end
        "env": [{}],
    }  # fmt: skip


def base_of(
    name: str, parser: argparse.ArgumentParser, known: dict[str, Any], sound: Path
) -> list[dict[str, list[str]]]:
    """The sound lines of a command; for one that this file does not know, its required arguments."""
    for key in (name, name.split()[0]):
        if key in known:
            own = known[key]
            if key == "baseline" and (sound / f"baseline-{name.split()[1]}").exists():
                own = [*own, {**own[0], "--model": [str(sound / f"baseline-{name.split()[1]}")]}]
                del own[-1]["--train"]
            return own
    filled: dict[str, list[str]] = {}
    for action in parser._actions:
        if action.required or (not action.option_strings and action.nargs not in ("?", "*")):
            key = action.option_strings[-1] if action.option_strings else action.dest
            filled[key] = [_plain_value(action, sound)]
    return [filled]


def _plain_value(action: argparse.Action, sound: Path) -> str:
    if action.choices:
        return str(next(iter(action.choices)))
    if action.dest in OUTPUT_NAMES:
        return "out" if action.metavar == "DIR" else "out.jsonl"
    if is_folder(action):
        return str(sound / "model")
    return str(sound / "train.jsonl") if is_file(action) else "1"


def is_file(action: argparse.Action) -> bool:
    """Whether the value is a file that is read."""
    shown = str(action.metavar or action.dest).lower()
    words = ("file", "src", "train", "dev", "universe", "labels", "texts", "popularity", "config", "references")
    return action.dest not in OUTPUT_NAMES and any(word in shown for word in words) and action.type in (None, str)


def is_folder(action: argparse.Action) -> bool:
    """Whether the value is a folder that is read."""
    return action.dest not in OUTPUT_NAMES and (action.metavar == "DIR" or action.dest == "model")


class Cases:
    """Case after case: every flag with every hostile value once, in an order that the seed decides; then mixtures."""

    def __init__(self, sound: Path, broken: Path, damaged: Path, seed: int, only: str = "") -> None:
        self.sound, self.chance = sound, random.Random(seed)
        self.files = sorted(os.fsdecode(path) for path in broken.iterdir())
        self.folders = sorted(str(path) for path in damaged.iterdir())
        known = bases(sound)
        self.lines = [
            (name, base, [action for action in parser._actions if not isinstance(action, argparse._HelpAction)])
            for name, parser in parsers().items()
            if name.startswith(only)
            for base in base_of(name, parser, known, sound)
        ]

    def values(self, action: argparse.Action, base: dict[str, list[str]]) -> list[list[str]]:
        """Hostile values of a flag, each a list of words."""
        if action.nargs == 0:
            return [[]]
        if action.dest in OUTPUT_NAMES:
            return [[f"output {number}"] for number in range(len(hostile.output_names("")))]
        if action.choices:
            return [["x"], [""], *([str(choice)] for choice in action.choices)]
        kind = getattr(action.type, "__name__", "")
        if kind == "int" or (kind == "convert" and action.metavar in ("N", "K")):
            least = 3 if action.dest in LONG_WORK else len(hostile.INTEGERS)
            return [[value] for value in (*hostile.INTEGERS[:least], *hostile.INTEGERS[6:])]
        if kind == "float":
            return [[value] for value in hostile.FLOATS if action.dest not in LONG_WORK or value not in ("1e308", "1")]
        values = [[word] for word in hostile.WORDS]
        if is_folder(action):
            values = [[name] for name in self.folders] + values[:8]
        elif is_file(action):
            values = [[name] for name in self.files] + [["missing.jsonl"], ["x" * 300], ["d/" * 2000]] + values[:8]
        if "NAME=" in str(action.metavar) or action.dest == "sources":
            values += [[f"a={name}"] for name in (self.files + self.folders)[::7]]
        if action.nargs == "+":
            values += [["a", "a"], [str(self.sound / "train.jsonl")] * 2, ["1", "1", "mu", "2mu", "0"]]
        return values

    def mutate(self, case: Case, action: argparse.Action, value: list[str]) -> None:
        """Puts the value into the case."""
        key = action.dest
        if action.option_strings:
            key = next((flag for flag in action.option_strings if flag in case.flags), action.option_strings[-1])
        case.note = f"{case.note} {key}".strip()
        if value and value[0].startswith("output "):
            default = case.flags.get(key, ["out"])[0] if action.metavar != "DIR" else "out"
            case.ending = "".join(Path(default).suffixes[-1:]) or ("" if action.metavar == "DIR" else ".jsonl")
            value = [hostile.output_names(case.ending)[int(value[0].split()[1])]]
        case.flags[key] = value
        if case.command == "demo" and key == "--out":
            case.flags["--model"] = ["nowhere"]  # a whole demo takes minutes
        if value and value[0].startswith("-") and len(value) == 1 and action.option_strings and len(value[0]) > 1:
            case.flags.pop(key)
            flag = max(action.option_strings, key=len)
            case.flags[f"{flag}={value[0]}"] = []

    def singles(self) -> list[Case]:
        """One flag with one hostile value, for every command, flag and value."""
        found = []
        for name, base, actions in self.lines:
            found.append(Case(name, dict(base), "as it is"))
            found += [Case(name, dict(base), where, where) for where in ENVIRONMENTS]
            for action in actions:
                for value in self.values(action, base):
                    case = Case(name, dict(base))
                    self.mutate(case, action, value)
                    found.append(case)
        return found

    def __iter__(self) -> Iterator[Case]:
        singles = self.singles()
        # Every command gets its turn: in a short run, long lists of flags must not crowd out short ones.
        by_command: dict[str, list[Case]] = {}
        for case in singles:
            by_command.setdefault(case.command, []).append(case)
        for cases in by_command.values():
            self.chance.shuffle(cases)
        while any(by_command.values()):
            for cases in by_command.values():
                if cases:
                    yield cases.pop()
        while True:
            name, base, actions = self.chance.choice(self.lines)
            case = Case(name, dict(base))
            for action in self.chance.sample(actions, min(len(actions), self.chance.randint(1, 3))):
                self.mutate(case, action, self.chance.choice(self.values(action, base)))
            if self.chance.random() < 0.1:
                case.environment = self.chance.choice(ENVIRONMENTS)
            if self.chance.random() < 0.2 and "--force" in {flag for a in actions for flag in a.option_strings}:
                case.flags["--force"] = []
            yield case


def preload(only: str = "") -> None:
    """Imports what commands import, so that a fork has it."""
    from importlib import import_module

    from pusl.process import prepare_process

    prepare_process()
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # its thread would not survive a fork
    for name in (
        "torch", "transformers", "transformers.models.t5.modeling_t5", "sklearn.feature_extraction.text", "openai",
        "pyarrow.parquet", "datasets", "numba", "matplotlib.backends.backend_agg", "pusl.training", "pusl.catalog.run",
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
        before = {path: snapshot(path) for path in (sound, broken, damaged)}
        for number, case in enumerate(Cases(sound, broken, damaged, seed, only)):
            if time.monotonic() > end or (most is not None and number >= most):
                break
            found = runner.run(case, folder)
            for path, old in before.items() if number % EVERY == 0 else ():
                new = snapshot(path)
                kept = {name: value for name, value in new.items() if ".index" not in name and not name.startswith(".")}
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
