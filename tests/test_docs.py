"""The documentation keeps its promises: generated parts are up to date, links lead somewhere, commands exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pusl.cli import COMMANDS, Parser

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
HAND = [page for page in PAGES if "do not edit" not in page.read_text(encoding="utf-8")[:80]]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page in one of the languages."""
    text = page.read_text(encoding="utf-8")
    return [code for language, code in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S) if language in languages]


def commands(page: Path) -> list[str]:
    """The `pusl ...` lines of a page, continued lines joined, comments and prompts removed."""
    found = []
    for block in blocks(page, "sh", "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^(\$ |[A-Z_]+=\S+ )+", "", line.strip()).split("  #")[0]
            found += [part.strip() for part in line.split(" && ") if part.strip().startswith("pusl ")]
    return found


EXAMPLES = [(page.relative_to(ROOT).as_posix(), line) for page in HAND for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), EXAMPLES)
def test_a_command_on_a_page_is_one_that_the_parser_takes(page: str, line: str) -> None:
    words = shlex.split(re.sub(r" [<>|&].*", "", line).replace(" ...", "").replace(" …", ""))[1:]
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
    assert name or words[0].startswith("-") or words[0] == "COMMAND", line
    if name and "..." not in line and "…" not in line:
        module = import_module(COMMANDS[name][0])
        parser = Parser(prog=f"pusl {name}")
        module.add_arguments(parser)
        parser.parse_args(words[len(name.split()) :])  # exits on a flag that does not exist


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", HAND, ids=[page.relative_to(ROOT).as_posix() for page in HAND])
def test_no_line_is_too_long_to_read(page: Path) -> None:
    long = [line for line in page.read_text(encoding="utf-8").splitlines() if len(line) > 500]
    assert not long, f"a line of {len(long[0])} characters"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")]
    assert [page for page in pages if page not in navigation] == []


def test_generated_parts_are_up_to_date() -> None:
    """After a change of a flag, a metric, a config or a result: python scripts/docs/pages.py"""
    script = ROOT / "scripts/docs/pages.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_result_names_its_command() -> None:
    for path in (ROOT / "docs/results/data").glob("*.json"):
        command = json.loads(path.read_text(encoding="utf-8"))["command"]
        for name in re.findall(r"scripts/[a-z_/]+\.py", command):
            assert (ROOT / name).is_file(), f"{path.name}: {name}"
