"""The README is short, holds the two commands, and its tree is true; test_docs.py checks its commands and links."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_two_commands_stand_there() -> None:
    assert "\npip install -e . && pusl demo\n" in README
    assert "\npip install -e '.[test]' && pytest\n" in README


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
