"""Hostile inputs x every command: each line ends with a clean answer. And the fuzzer itself sees what is not clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "bench" / "fuzz.py"
CASES = 600  # about two minutes of one core


@pytest.fixture
def fuzzer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return __import__("fuzz")


@pytest.mark.slow
def test_every_command_line_gets_a_clean_answer(tmp_path: Path) -> None:
    """In a process of its own, because it forks: pytest has threads."""
    out = tmp_path / "result.json"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "eval"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--minutes", "20", "--cases", str(CASES), "--seed", "0", "--output", str(out)],
        capture_output=True, text=True, timeout=1500, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert out.exists(), done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert not result["failures"], json.dumps(result["failures"], indent=1)[:6000]
    assert done.returncode == 0 and result["cases"] == CASES


@pytest.mark.slow
def test_gzip_bombs_need_little_memory(tmp_path: Path) -> None:
    """A line of 400 MB in a small file, for every command that reads items: at most 300 MB above its start."""
    out = tmp_path / "result.json"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "eval"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("bombs.py")), "--megabytes", "400", "--bombs", "item.jsonl.gz",
         "--output", str(out)],
        capture_output=True, text=True, timeout=1500, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    found = json.loads(out.read_text())
    assert {row["line"].split()[0] for row in found} >= {"score", "fuse", "judge", "generate", "train", "evaluate"}
    assert all(row["code"] == 2 and "16 MiB" in row["said"] for row in found), "a line was refused for another reason"


def test_every_command_and_flag_is_in_the_table(fuzzer: Any, tmp_path: Path) -> None:
    from pusl.cli import COMMANDS

    for name in ("broken", "damaged"):
        (tmp_path / name).mkdir()
    cases = fuzzer.Cases(tmp_path, tmp_path / "broken", tmp_path / "damaged", seed=0)
    singles = cases.singles()
    assert {" ".join(name.split()) for name in COMMANDS} <= {
        name for case in singles for name in (case.command, case.command.split()[0])
    }
    for name, parser in fuzzer.parsers().items():
        notes = {case.note for case in singles if case.command == name}
        for action in parser._actions:
            if "--help" not in action.option_strings:
                assert notes & {*action.option_strings, action.dest}, f"{name}: {action.dest} is never fuzzed"


BAD = {
    "traceback": ("raise KeyError('x')", "traceback"),
    "exit code": ("sys.exit(3)", "exit code 3"),
    "silence": ("sys.exit(2)", "0 lines on stderr"),
    "many lines": ("print('a\\nb\\nc', file=sys.stderr); sys.exit(2)", "3 lines on stderr"),
    "a file left": ("open('x', 'w').close(); print('no', file=sys.stderr); sys.exit(2)", "left x"),
    "a temporary left": ("open('.x.0123456789ab.tmp', 'w').close()", "left .x"),
    "another's file changed": ("open('existing', 'a').write('more')", "changed existing"),
    "a signal": ("os.kill(os.getpid(), 9)", "ended by signal 9"),
    "no end": ("import time; time.sleep(60)", "no answer after"),
    "an escape sequence": ("print('\\x1b[31mno', file=sys.stderr); sys.exit(2)", "control characters"),
    "a key": ("print('secret-key-of-the-fuzzer')", "prints a key"),
}


@pytest.mark.parametrize("code, seen", BAD.values(), ids=list(BAD))
def test_the_fuzzer_sees_it(fuzzer: Any, tmp_path: Path, code: str, seen: str) -> None:
    (tmp_path / "existing").write_text("mine")
    before = fuzzer.snapshot(tmp_path)
    runner = fuzzer.Runner()
    found = runner.call(
        lambda: exec(code, {"sys": sys, "os": os}), tmp_path, wall=2 if seen == "no answer after" else 60
    )
    fuzzer.judge(fuzzer.Case("env", {}), found, before, fuzzer.snapshot(tmp_path), runner.base)
    assert any(seen in problem for problem in found.problems), found


def test_a_service_that_is_ready_gets_a_sigterm_and_has_to_end(fuzzer: Any, tmp_path: Path) -> None:
    runner = fuzzer.Runner()
    begin = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: {}); print('ready', file=sys.stderr)"
    for end, problems in (("sys.exit(0)", []), ("None", ["no answer after"])):
        code = begin.format(end) + "; time.sleep(60)"
        found = runner.call(lambda code=code: exec(code, {"sys": sys}), tmp_path, wall=3, ready="ready")
        assert [problem[:15] for problem in found.problems] == problems, found


def test_a_clean_answer_is_clean(fuzzer: Any, tmp_path: Path) -> None:
    runner = fuzzer.Runner()
    for code in ("print('fine')", "print('pusl: a.jsonl: no such file', file=sys.stderr); sys.exit(2)"):
        found = runner.call(lambda code=code: exec(code, {"sys": sys}), tmp_path)
        fuzzer.judge(fuzzer.Case("env", {}), found, {}, fuzzer.snapshot(tmp_path), runner.base)
        assert not found.problems
