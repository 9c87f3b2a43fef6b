"""The programs of docs/examples run as they stand, in an empty folder, and print what their page promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"


def run(program: list[str], folder: Path) -> str:
    """Runs a program with this tree's `pusl` and `python` first on the path; its output."""
    tools = folder / "bin"
    tools.mkdir()
    for name, words in {"python": "", "pusl": "-m pusl"}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tools / name).chmod(0o755)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "eval")])
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_tag_a_csv(tmp_path: Path) -> None:
    out = run(["bash", str(EXAMPLES / "tag_a_csv.sh"), str(tmp_path)], tmp_path)
    assert "id,keyphrases,scores" in out
    assert len((tmp_path / "keyphrases.csv").read_text().splitlines()) > 50


@pytest.mark.slow
def test_complete_a_catalog(tmp_path: Path) -> None:
    out = run(["bash", str(EXAMPLES / "complete_a_catalog.sh"), str(tmp_path)], tmp_path)
    assert "B@k" in out
    items, further = ((tmp_path / name).read_text().splitlines() for name in ("shop/test.jsonl", "more.jsonl"))
    had = {item["id"]: item["keyphrases"] for item in map(json.loads, items)}
    for prediction in map(json.loads, further):
        assert not set(prediction["keyphrases"]) & set(had[prediction["id"]])


@pytest.mark.slow
def test_compare_two_systems(tmp_path: Path) -> None:
    out = run([sys.executable, str(EXAMPLES / "compare_two_systems.py"), str(tmp_path)], tmp_path)
    assert "observed labels: kNN - frequency in B@5: +" in out and "complete labels:" in out


@pytest.mark.slow
def test_fuse_your_classifier(tmp_path: Path) -> None:
    out = run([sys.executable, str(EXAMPLES / "fuse_your_classifier.py"), str(tmp_path)], tmp_path)
    assert "fused is ahead of mine" in out


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")
def test_serve_and_call(tmp_path: Path) -> None:
    out = run(["bash", str(EXAMPLES / "serve_and_call.sh"), str(tmp_path)], tmp_path)
    assert len([line for line in out.splitlines() if "(0." in line]) == 2


@pytest.mark.slow
def test_the_notebook(tmp_path: Path) -> None:
    """Its cells run in order as one program."""
    cells = json.loads((EXAMPLES / "keyphrases.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text(f"import os\nos.chdir({str(tmp_path)!r})\n" + code)
    run([sys.executable, str(tmp_path / "notebook.py")], tmp_path)


def test_the_notebook_shows_results_and_nothing_of_a_machine() -> None:
    text = (EXAMPLES / "keyphrases.ipynb").read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells)
    assert [one for cell in cells for one in cell["outputs"] if "text/html" in one.get("data", {})]
    assert "stderr" not in text and "site-packages" not in text and "/home/" not in text and "/root/" not in text


def test_the_page_includes_every_program() -> None:
    """`--8<-- "name.py"` in a block of Python is valid Python to a formatter, which once took it apart."""
    page = (EXAMPLES / "index.md").read_text(encoding="utf-8")
    for program in ("tag_a_csv.sh", "complete_a_catalog.sh", "call.mjs"):
        assert f'--8<-- "{program}"\n' in page
    for program in ("compare_two_systems.py", "fuse_your_classifier.py", "optuna_search.py"):
        assert f"--8<--\n{program}\n--8<--\n" in page
