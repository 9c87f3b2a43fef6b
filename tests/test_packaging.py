"""What is imported is declared, what is declared is imported, and both distributions say the same of themselves."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from test_layering import packages, relative, under

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parent.parent
OURS = {"pusl", "pusl_eval"}
NAMES = {"yaml": "pyyaml", "sklearn": "scikit-learn", "pydantic_core": "pydantic"}  # import name -> distribution
EXTRA_OF = {"pusl/serve": "serve", "pusl/catalog/engine_ray.py": "ray", "pusl/baselines/plt.py": "baselines"}
BESIDE = {path.stem for path in (ROOT / "tests").glob("*.py")}  # modules that tests import from one another
# For benchmarks and studies alone: a script says how to install it.
SCRIPTS_ONLY = {"bm25s", "ctranslate2"} | {path.stem for path in (ROOT / "scripts").rglob("*")}  # and one another


def project(folder: str) -> dict[str, Any]:
    with open(ROOT / folder / "pyproject.toml", "rb") as file:
        return dict(tomllib.load(file)["project"])


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", NAMES.get(name, name)).lower()


def bounds(requirements: list[str]) -> dict[str, str]:
    """Distribution -> its version bounds."""
    found = {}
    for requirement in requirements:
        name, rest = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?(.*)", requirement).groups()  # type: ignore[union-attr]
        if canonical(name) not in ("pusl", "pusl-eval"):
            found[canonical(name)] = rest
    return found


MAIN, EVAL = project("."), project("eval")
EXTRAS = {name: bounds(listed) for name, listed in MAIN["optional-dependencies"].items()}
CORE, RUN = bounds(MAIN["dependencies"]), ("baselines", "serve", "ray", "rdf")
ALL = CORE.keys() | {name for extra in RUN for name in EXTRAS[extra]}


def outside(name: str, everywhere: bool = True) -> set[str]:
    """Distributions that a file imports, at any time or on import."""
    found = packages(ROOT / name, everywhere) - set(sys.stdlib_module_names) - OURS - {Path(name).parent.name}
    return {canonical(package) for package in found}


@pytest.mark.parametrize("name", relative(under("pusl")))
def test_pusl_imports_what_it_declares(name):
    extra = next((EXTRAS[extra] for place, extra in EXTRA_OF.items() if name.startswith(place)), {})
    assert outside(name, everywhere=False) <= CORE.keys() | extra.keys(), "runs on import, so it is no optional package"
    assert outside(name) <= ALL


@pytest.mark.parametrize("name", relative(under("eval")))
def test_eval_imports_what_it_declares(name):
    assert outside(name, everywhere=False) <= bounds(EVAL["dependencies"]).keys()
    groups = (group for extra, group in EVAL["optional-dependencies"].items() if extra != "test")
    extras = {name for group in groups for name in bounds(group)}
    assert outside(name) <= bounds(EVAL["dependencies"]).keys() | extras


@pytest.mark.parametrize("name", relative([*under("tests"), *under("scripts")]))
def test_tests_and_scripts_import_what_is_declared(name):
    allowed = ALL | EXTRAS["test"].keys() | BESIDE | {"tomli", "tomllib"}
    if name.startswith("scripts"):
        allowed |= SCRIPTS_ONLY
    assert outside(name) <= {canonical(package) for package in allowed}


def test_nothing_is_declared_in_vain():
    imported = {package for path in relative([*under("pusl"), *under("eval")]) for package in outside(path)}
    assert ALL - imported == set()


def test_both_distributions_agree():
    for field in ("requires-python", "license"):
        assert MAIN[field] == EVAL[field]
    listed = [*EVAL["dependencies"], *(item for group in EVAL["optional-dependencies"].values() for item in group)]
    known = CORE | {name: bound for extra in (*RUN, "test") for name, bound in EXTRAS[extra].items()}
    assert bounds(listed).items() <= known.items()
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "eval" / "LICENSE").read_bytes()
    assert MAIN["dynamic"] == ["version", "readme"] and EVAL["dynamic"] == ["version"]


def test_the_lowest_versions_are_the_lower_bounds():
    lines = (ROOT / ".ci" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    expected = {}
    for name, bound in (CORE | {name: bound for extra in RUN for name, bound in EXTRAS[extra].items()}).items():
        expected[name] = bound.removeprefix(">=").split(",")[0]
    assert {canonical(name): version for name, version in pinned.items()} == expected


def test_one_version():
    tree = ast.parse((ROOT / "eval" / "pusl_eval" / "__init__.py").read_text(encoding="utf-8"))
    (version,) = (node.value.value for node in tree.body if "__version__ =" in ast.unparse(node)
                  and isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))  # fmt: skip
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert not re.findall(r'^__version__ = "', (ROOT / "pusl" / "__init__.py").read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("package", ["pusl", "eval/pusl_eval"])
def test_every_folder_with_modules_is_a_package(package):
    """Otherwise neither setuptools nor mypy sees it."""
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
    assert (ROOT / package / "py.typed").exists()


def test_the_workflow_covers_every_supported_python():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    named = {line.rsplit(" ", 1)[1] for line in MAIN["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(re.findall(r'"(3\.\d+)"', workflow)) == named
    assert MAIN["requires-python"] == f">={min(named, key=lambda version: int(version[2:]))}"
