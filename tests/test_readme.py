"""The README keeps its promises: every command stands there, and every example is one the parser takes."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from pusl.cli import COMMANDS, Parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\| `pusl [a-z -]+` \| `(pusl [^`]+)` \|", README, re.M)
EXAMPLES += [line.split("  #")[0].strip() for line in re.findall(r"^(pusl .+)$", README, re.M)]


def test_every_command_has_a_row() -> None:
    rows = set(re.findall(r"^\| `pusl ([a-z -]+)` \|", README, re.M))
    assert rows == set(COMMANDS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_parse(example: str) -> None:
    words = shlex.split(example)[1:]
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS)
    module = import_module(COMMANDS[name][0])
    parser = Parser(prog=f"pusl {name}")
    module.add_arguments(parser)
    parser.parse_args(words[len(name.split()) :])  # exits on a flag that does not exist


def test_the_two_commands_stand_there() -> None:
    assert "\npip install -e . && pusl demo\n" in README
    assert "\npip install -e '.[test]' && pytest\n" in README


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_no_placeholder_is_left() -> None:
    assert "@@" not in README


def test_the_tree_is_true() -> None:
    block = README.split("## The tree")[1].split("```")[1]
    named, folder = set(), ROOT
    for line in filter(None, block.splitlines()):
        names = line.strip().split("  ")[0].split()
        folder = ROOT if not line.startswith(" ") else folder
        for name in names:
            assert (folder / name).exists(), line
            named.add((folder / name).resolve())
        folder = ROOT / names[0] if not line.startswith(" ") else folder
    parts = [path for path in (ROOT / "pusl").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert [path.name for path in parts if path not in named and not path.name.startswith("__")] == []
