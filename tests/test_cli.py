"""The command line itself: help, speed, exit codes."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pusl.cli import COMMANDS, main


def pusl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pusl", *words], capture_output=True, text=True)


def test_help_lists_every_command_and_is_quick() -> None:
    pusl("--help")  # compiles the modules once
    before = os.times()
    done = pusl("--help")
    after = os.times()  # processor time: a busy machine is no failure
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "example" in shown.lower() and f"pusl {name}" in shown
    documented = import_module(COMMANDS[name][0])
    assert documented.run.__doc__ and documented.add_arguments.__doc__


def test_help_loads_no_deep_learning() -> None:
    code = "import sys, pusl.cli\n" + "".join(f"import {module}\n" for module, _ in COMMANDS.values())
    done = subprocess.run([sys.executable, "-c", code + "print('torch' in sys.modules, 'transformers' in sys.modules)"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("words", [["nonsense"], ["data", "nonsense"], ["env", "--nonsense"], ["evaluate"]])
def test_wrong_words_exit_with_2_and_two_lines(words: list[str]) -> None:
    done = pusl(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert 1 <= len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-k", "100000"], "-k is 100000; it must be at most 1000"),
        (
            ["-k", "3", "--min-score", "0.3"],
            "--min-score 0.3: the scores of this model are log-probabilities, at most 0; "
            "give a negative number, or add --calibrate",
        ),
        (
            ["-k", "3", "--min-score", "1.5", "--calibrate", "dev.jsonl"],
            "--min-score 1.5: the scores of this model are probabilities, at most 1",
        ),
    ],
    ids=["k", "log-probability", "probability"],
)
def test_what_no_model_can_do_is_said_before_it_is_loaded(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pusl.json").write_text('{"paradigm": "pusl"}')
    files = ["--model", str(tmp_path), "--input", "items.jsonl", "--output", str(tmp_path / "out.jsonl")]
    assert main(["generate", *files, *flags]) == 2
    assert capsys.readouterr().err == f"pusl: {said}\n"
    (tmp_path / "pusl.json").write_text('{"paradigm": "fused"}')
    assert main(["generate", *files, "-k", "3", "--min-score", "1.5"]) == 2
    assert "--min-score 1.5: the scores of this model are probabilities" in capsys.readouterr().err


def test_version() -> None:
    done = pusl("--version")
    assert done.returncode == 0 and done.stdout.startswith("pusl 0.")


@pytest.mark.slow
def test_env_names_versions_and_hardware() -> None:
    done = pusl("env")
    assert done.returncode == 0
    names = {line.split(":")[0] for line in done.stdout.splitlines()}
    assert {"pusl", "python", "torch", "transformers", "cores", "gpus", "cpu"} <= names


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(f"{sys.executable} -m pusl --help | head -1", shell=True, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.startswith("usage")
