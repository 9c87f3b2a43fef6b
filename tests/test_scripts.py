"""Benchmarks and studies: each opens with its exact command, and every path that the docs name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = [  # the others are parts of a script
    path for path in sorted(ROOT.glob("scripts/*/*.py")) if "__main__" in path.read_text(encoding="utf-8")
]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_opens_with_its_command(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    first = (ast.get_docstring(tree) or "").splitlines()[0]
    assert first.startswith(f"python {path.relative_to(ROOT).as_posix()} ")
    source = path.read_text(encoding="utf-8")
    for flag in re.findall(r"(?<=[ \[])--?[a-z][a-z-]*", first):
        added = f'"{flag}"' in source or f"add_{flag.strip('-')}(" in source or source.count(flag) > 1
        assert added, f"{flag} is in the command but not in the script"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_scripts_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"scripts/[a-z_/]+\.py", page.read_text(encoding="utf-8")))
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]
