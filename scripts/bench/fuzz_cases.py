"""The parsers of all commands -> command lines with hostile flags and files. Part of scripts/bench/fuzz.py."""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile

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
REFUSED = ("demo", "serve", "push")  # their sound lines end with a refusal, after all checks
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
        "data stats": [{"files": at("train.jsonl")}, {"files": at("train.jsonl"), "--plot": ["out.svg"]}],
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
