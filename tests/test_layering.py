"""The arrows of imports, the size of modules and the shape of the tree, read from the source."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path for folder in ("eval/pusl_eval", "pusl", "scripts", "tests") for path in (ROOT / folder).rglob("*.py")
)
LONGEST = 450  # lines; about 400 is the aim
HEAVY = {"torch", "transformers", "accelerate", "datasets", "pyarrow", "sklearn", "napkinxc", "openai"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """Full names of the modules that a file imports; only those run on import unless `everywhere`."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.add(child.module if not child.level else f"{path.parent.name}.{child.module or ''}".rstrip("."))
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test) and not everywhere:
                continue
            elif everywhere or not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                visit(child)

    visit(tree_of(path))
    return found


def packages(path: Path, everywhere: bool = True) -> set[str]:
    return {name.split(".")[0] for name in imports(path, everywhere)}


def under(folder: str) -> list[Path]:
    return [path for path in FILES if path.is_relative_to(ROOT / folder)]


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("name", relative(under("eval")))
def test_eval_stands_alone(name):
    path = ROOT / name
    assert not packages(path) & {"torch", "transformers", "pusl", "scripts", "tests"}
    outside = packages(path, everywhere=False) - set(sys.stdlib_module_names) - {"pusl_eval"}
    assert outside <= {"numpy", "scipy"}, "other packages are imported inside the function that needs them"


@pytest.mark.parametrize("name", relative(under("pusl")))
def test_pusl_never_looks_back(name):
    assert not packages(ROOT / name) & {"scripts", "tests"}


@pytest.mark.parametrize("name", relative([*under("pusl/commands"), ROOT / "pusl" / "cli.py"]))
def test_commands_are_light_to_import(name):
    assert not packages(ROOT / name, everywhere=False) & (HEAVY | {"numpy", "scipy", "yaml", "tqdm"})


@pytest.mark.parametrize("name", relative([*under("eval"), *under("pusl"), *under("scripts")]))
def test_modules_are_small_and_say_what_they_do(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert Path(name).name not in ("utils.py", "util.py", "helpers.py", "misc.py", "common.py")
    assert ast.get_docstring(tree_of(ROOT / name)), "a module starts with what goes in and what comes out"


@pytest.mark.parametrize("name", relative([*under("eval"), *under("pusl")]))
def test_public_functions_are_explained_and_typed(name):
    for node in tree_of(ROOT / name).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"
            assert node.returns is not None, f"{node.name} has no return type"


def test_tests_are_flat():
    assert not [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent != ROOT / "tests"]


PARADIGM_NAMES = {"one2one", "one2seq", "groov", "pusl"}


def names_compared(source: str) -> list[int]:
    """Lines that compare with a paradigm's name, look one up or make it a key, in one way or another."""

    def constants(node: ast.AST) -> set[object]:
        parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
        return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}

    lines = []
    for node in ast.walk(ast.parse(source)):
        looked: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            looked = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            # {"pusl": __version__} is about the package.
            pairs = zip(node.keys, node.values, strict=True)
            looked = [key for key, value in pairs if key is not None and ast.unparse(value) != "__version__"]
        elif isinstance(node, ast.Subscript):
            looked = [node.slice]
        elif isinstance(node, ast.MatchValue):
            looked = [node.value]
        if any(constants(part) & PARADIGM_NAMES for part in looked):
            lines.append(node.lineno)
    return lines


def test_the_search_for_compared_names_finds_them():
    for line in (
        'x = paradigm == "pusl"', 'x = paradigm in ("one2seq", "groov")', 'x = "one2one" != paradigm',
        'x = {"pusl": 1}', 'x = TABLE["groov"]', 'match paradigm:\n    case "pusl":\n        pass',
    ):  # fmt: skip
        assert names_compared(line), line
    for line in ('x = paradigms.get("pusl")', 'x = {"pusl": __version__}', 'x = name == "t5"'):
        assert not names_compared(line), line


@pytest.mark.parametrize("name", relative([*under("pusl"), *under("scripts")]))
def test_only_paradigms_know_their_names(name):
    if (ROOT / name).is_relative_to(ROOT / "pusl" / "paradigms"):
        return
    found = names_compared((ROOT / name).read_text(encoding="utf-8"))
    assert not found, f"lines {found} depend on a paradigm's name: ask the object (pusl/paradigms)"


def test_the_walk_names_ten_files_that_exist():
    text = (ROOT / "docs" / "reference" / "walk.md").read_text(encoding="utf-8")
    steps = re.split(r"\n(?=\d+\. )", text)[1:]  # a step may take two lines
    assert len(steps) == 10
    for step in steps:
        ((shown, linked),) = re.findall(r"\[(.*?)\]\((.*?)\)", step)
        assert (ROOT / shown).is_file() and linked.endswith(f"/blob/main/{shown}"), step


def test_no_two_modules_share_a_name():
    """Except a command and the module that it runs: `pusl/commands/judge.py` and `pusl_eval/judge.py`."""
    places: dict[str, list[str]] = {}
    for path in [*under("pusl"), *under("eval")]:
        if not path.stem.startswith("__") and path.parent != ROOT / "pusl" / "commands":
            places.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
    assert [found for found in places.values() if len(found) > 1] == []


def test_no_two_classes_share_a_name():
    places: dict[str, list[str]] = {}
    for path in [*under("pusl"), *under("eval")]:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
