"""Every command, stopped at its n-th write and run again, ends with the bytes of an undisturbed run."""

from __future__ import annotations

import builtins
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint
from fake_hub import FakeHub

from pusl.demo import DemoConfig
from pusl_eval.errors import exit_code

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parents[1] / "scripts" / "bench"
STOPPED = 99
FRESH = "PUSL_FRESH_PROCESS"
VOLATILE = {"timings", "started", "updated", "seconds", "usage", "hardware", "created"}  # differ between any two runs
WRITES = ("replace", "rename", "link", "unlink", "mkdir", "fsync", "rmdir")


def stop_at(number: int, log: Path) -> None:
    """Ends this process, as kill -9 does, before its `number`-th write; counts them all in `log` (0: never stops)."""
    count = 0

    def counted(
        function: Callable[..., Any], matters: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            if matters(*args, **options):
                count += 1
                if count == number:
                    os._exit(STOPPED)
                if not number:
                    plain_open(log, "w").write(str(count))
            return function(*args, **options)

        return call

    plain_open = builtins.open
    for name in WRITES:
        setattr(os, name, counted(getattr(os, name)))
    os.open = counted(os.open, lambda path, flags, *_, **__: bool(flags & (os.O_WRONLY | os.O_RDWR)))
    builtins.open = counted(
        open, lambda file, mode="r", *_, **__: not isinstance(file, int) and bool(set(mode) & set("wax+"))
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Small sound files and models, and a runner that forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        fuzz, hostile = __import__("fuzz"), __import__("hostile")
    fuzz.preload()
    folder = tmp_path_factory.mktemp("sound")
    runner = fuzz.Runner()
    made = runner.call(lambda: hostile.make_sound(folder), folder)
    assert made.code == 0, made.stderr
    return fuzz, runner, folder


def content(folder: Path) -> dict[str, Any]:
    """What a command has written, without what differs between any two runs."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or "sqlite" in name:
            found[name] = None
        elif path.suffix == ".json":
            found[name] = without_volatile(json.loads(path.read_text()))
        else:
            found[name] = re.sub(rb"[\d.]+ min training", b"", path.read_bytes())  # of a model card
    return {name: value for name, value in found.items() if "sqlite" not in name}


def without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_volatile(inner) for key, inner in value.items() if key not in VOLATILE}
    return [without_volatile(inner) for inner in value] if isinstance(value, list) else value


def spread(total: int, most: int, tail: int = 0) -> list[int]:
    """At most `most` of the numbers from 1 to `total`, evenly spread, and the last `tail`."""
    found = {1 + i * (total - 1) // max(1, most - 1) for i in range(min(most, total))}
    return sorted(found | set(range(max(1, total - tail + 1), total + 1)))


def stop_everywhere(
    bench: Any,
    work: Path,
    words: list[str],
    again: list[str] | None = None,
    most: int = 25,
    tail: int = 0,
    fill: Callable[[Path], None] = lambda _: None,
) -> int:
    """Stops at every write (at `most` of them, evenly spread, and the last `tail`); returns how many were tried.

    `fill` puts into the working folder what is there before.
    """
    _, runner, _ = bench
    log = work / "count"

    def run(folder: Path, argv: list[str], number: int | None) -> Any:
        def command() -> Any:
            from pusl.cli import main

            if number is not None:
                stop_at(number, log)
            return main(argv)

        return runner.call(command, folder)

    expected = work / "expected"
    expected.mkdir()
    fill(expected)
    done = run(expected, words, 0)
    assert done.code == 0, done.stderr
    total = int(log.read_text())
    whole = content(expected)
    points = spread(total, most, tail)
    for number in points:
        folder = work / f"stopped-{number}"
        folder.mkdir()
        fill(folder)
        stopped = run(folder, words, number)
        assert stopped.code == STOPPED, f"write {number} of {total}: {stopped.stderr[-500:]}"
        if {name: value for name, value in content(folder).items() if ".tmp" not in name} == whole:
            continue  # everything was written; only the clean-up was missing
        rerun = run(folder, again or words, None)
        if rerun.code == 2 and again and not (folder / "out" / "run.json").exists():  # nothing was begun yet
            rerun = run(folder, words, None)
        if rerun.code == 2 and "exists already" in rerun.stderr:  # the output was whole; what was left beside it goes
            assert content(folder) == whole, f"write {number} of {total}"
            continue
        assert rerun.code == 0, f"write {number} of {total}: {rerun.stderr[-1500:]}"
        assert content(folder) == whole, f"write {number} of {total}"
        shutil.rmtree(folder)
    return len(points)


LINES = {
    "split": "data split {train} --out out",
    "simulate": "data simulate --items 60 --dev-items 10 --test-items 10 --out out",
    "thin": "data thin {train} --keep 0.6 --out new/thin.jsonl.gz",
    "group": "data group {train} --out out.jsonl",
    "convert": "data convert {items} --to out.parquet",
    "stats": "data stats {train} --plot out.svg",
    "evaluate": "evaluate --references {test} --predictions {predictions} -k 2 --output out.json",
    "report": "report --references {test} --predictions {predictions} --output out.html",
    "rerank": "rerank --predictions {predictions} --objective coverage -k 2 --state state.json --output out.jsonl",
    "baseline": "baseline knn --train {train} --save out --input {small} --output out.jsonl",
    "generate": "generate --model {model} --input {test} --output out.jsonl -k 2 --shard-size 5 --workers 1 --quiet",
    "score": "score --model {model} --input {small} --candidates {universe} --output out.csv --quiet",
}


def filled(bench: Any, line: str) -> list[str]:
    names = {"items": "items.csv", "model": "model", "universe": "universe.txt"}
    files = ("train", "dev", "test", "small", "predictions")
    paths = {**{name: f"{name}.jsonl" for name in files}, **names}
    return line.format(**{name: bench[2] / file for name, file in paths.items()}).split()


@pytest.mark.parametrize("name", LINES)
def test_a_command_that_was_killed_is_run_again(bench: Any, tmp_path: Path, name: str) -> None:
    assert stop_everywhere(bench, tmp_path, filled(bench, LINES[name]), most=12, tail=8) >= 3


@pytest.mark.parametrize("name", ["split", "simulate"])
def test_a_folder_that_holds_other_files(bench: Any, tmp_path: Path, name: str) -> None:
    """Files are moved in one by one there; the rerun needs no --force."""

    def fill(folder: Path) -> None:
        (folder / "out").mkdir()
        (folder / "out" / "mine.txt").write_text("mine")

    stop_everywhere(bench, tmp_path, filled(bench, LINES[name]), most=8, tail=16, fill=fill)


@pytest.mark.parametrize("systems", ["{predictions}", "A={predictions} B={test}"], ids=["one", "several"])
def test_judge(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systems: str) -> None:
    monkeypatch.setenv("FAULT_KEY", "k")
    with FakeEndpoint() as endpoint:
        line = f"judge --references {{test}} --predictions {systems} --output out.jsonl --consistency 0 --model m"
        line += f" --base-url {endpoint.url} --key-variable FAULT_KEY --quiet"
        stop_everywhere(bench, tmp_path, filled(bench, line), most=8, tail=16)


def in_a_fresh_process(test: str) -> bool:
    """Whether this process is the one to test in; if not, one is started: autograd's threads do not survive a fork."""
    if FRESH in os.environ:
        return True
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"{Path(__file__)}::{test}"]
    done = subprocess.run(command, env={**os.environ, FRESH: "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return False


def test_train(bench: Any, tmp_path: Path) -> None:
    """The finishing phase at every write point."""
    if not in_a_fresh_process("test_train"):
        return
    line = "train --model scratch:tiny --vocab-size 300 --batch-size 8 --max-steps 2 --eval-every 1 --dev-items 2"
    line += " --max-source-length 16 --max-target-length 16 --max-phrase-tokens 4 --train {train} --dev {dev} --out out"
    words = filled(bench, line)
    stop_everywhere(bench, tmp_path, words, ["train", "--resume", "--out", "out"], most=6, tail=14)


def test_post_train(bench: Any, tmp_path: Path) -> None:
    """Its own writes come first: the items that it chose and completed. Then it trains as `train` does."""
    if not in_a_fresh_process("test_post_train"):
        return
    line = "post-train --model {model} --train {train} --out out --max-steps 1 --batch-size 4 -k 2 --samples 4"
    words = filled(bench, line + " --generate-workers 1")
    stop_everywhere(bench, tmp_path, words, [*words, "--resume"], most=9, tail=2)


@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # of the Hub's own client
def test_push(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before each message to the Hub: the repository holds the old model or the new one, and a rerun ends."""
    from huggingface_hub import constants

    _, runner, sound = bench
    log = tmp_path / "count"
    with FakeHub() as hub:
        hub.add_account("good", "ann")
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "good")

        def push(name: str, number: int | None) -> Any:
            def command() -> Any:
                from pusl.cli import main

                if number is not None:
                    stop_at_message(number, log)
                return main(["push", str(sound / "model"), f"ann/{name}", "--no-labels"])

            return runner.call(command, tmp_path)

        done = push("whole", 0)
        assert done.code == 0, done.stderr
        whole, total = hub.repositories["ann/whole"].files, int(log.read_text())
        assert "model.safetensors" in whole and total > 5
        for number in spread(total, 20):
            name = f"stopped-{number}"
            assert push(name, number).code == STOPPED
            there = hub.repositories.get(f"ann/{name}")
            assert there is None or not there.files or set(there.files) == set(whole)
            again = push(name, None)
            assert again.code == 0, f"message {number} of {total}: {again.stderr}"
            found = hub.repositories[f"ann/{name}"].files
            assert found == {**whole, "README.md": whole["README.md"].replace(b"ann/whole", f"ann/{name}".encode())}


def stop_at_message(number: int, log: Path) -> None:
    """Ends this process before its `number`-th message over a network; counts them all in `log` (0: never stops)."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os._exit(STOPPED)
            if not number:
                log.write_text(str(count))
            return function(*args)

        return call

    for name in ("send", "sendall"):
        setattr(socket.socket, name, counted(getattr(socket.socket, name)))


def test_demo_force(bench: Any, tmp_path: Path) -> None:
    """A demo is made of commands that are tested above. What it removes for --force is its own."""
    _, runner, _ = bench
    log = tmp_path / "count"
    config = DemoConfig(items=400)

    def prepare(folder: Path, number: int | None, force: bool) -> Any:
        def command() -> Any:
            import pusl.demo

            pusl.demo._all_steps = lambda *_: {}  # type: ignore[assignment]
            if number is not None:
                stop_at(number, log)
            return exit_code(lambda: pusl.demo.demo("out", config, force=force) and None, "pusl")

        return runner.call(command, folder)

    def earlier(name: str) -> Path:
        folder = tmp_path / name
        for file in ("data/train.jsonl", "data/dev.jsonl", "models/pusl/pusl.json", "report.html", "mine.txt"):
            (folder / "out" / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / "out" / file).write_text("old")
        (folder / "out" / "demo.json").write_text(json.dumps(dataclasses.asdict(config)))
        return folder

    assert prepare(earlier("whole"), 0, True).code == 0
    whole, total = content(tmp_path / "whole"), int(log.read_text())
    assert set(whole) == {"out", "out/demo.json", "out/mine.txt"} and total > 5
    for number in range(1, total + 1):
        folder = earlier(f"stopped-{number}")
        assert prepare(folder, number, True).code == STOPPED
        goes_on = prepare(folder, None, False)
        assert content(folder) == whole if goes_on.code == 0 else "--force" in goes_on.stderr
        assert prepare(folder, None, True).code == 0 and content(folder) == whole


def test_fuse(bench: Any, tmp_path: Path) -> None:
    line = "fuse --train {train} --dev {dev} --sources knn text --out out --no-ablation"
    stop_everywhere(bench, tmp_path, filled(bench, line), most=5)


def test_one_run_folder_has_one_run(bench: Any, tmp_path: Path) -> None:
    from pusl_eval.files import locked_folder

    _, runner, _ = bench
    (tmp_path / "out").mkdir()

    def command() -> Any:
        from pusl.cli import main

        line = "train --model scratch:tiny --vocab-size 300 --max-steps 1 --train {train} --out out"
        return main(filled(bench, line))

    with locked_folder(tmp_path / "out", "ours"):
        found = runner.call(command, tmp_path)
    assert found.code == 2 and "another run is training there" in found.stderr
    assert not os.listdir(tmp_path / "out")
