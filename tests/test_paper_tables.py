"""Every table and figure of the sources by one command: all run small, nothing is computed twice, errors are short."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pusl_eval.errors import exit_code

STUDIES = Path(__file__).parent.parent / "scripts" / "studies"


def _load() -> ModuleType:
    sys.path.insert(0, str(STUDIES))  # as `python scripts/studies/paper.py` has it
    try:
        module = importlib.import_module("paper")
        module.load_items()
    finally:
        sys.path.remove(str(STUDIES))
    return module


paper = _load()
ITEMS = paper.load_items()


def run(*words: str) -> tuple[int, str]:
    """Exit code, and what was printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = exit_code(lambda: paper.main(list(words)), "paper")
    return code, said.getvalue()


@pytest.fixture(autouse=True)
def studies_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all items, which share models in it."""
    yield tmp_path_factory.mktemp("paper")


@pytest.mark.slow
@pytest.mark.parametrize("name", ITEMS)
def test_a_smoke_run_gives_a_table(name: str, out: Path) -> None:
    code, said = run(name, "--out", str(out), "--smoke")
    assert code == 0, said
    found = json.loads((out / f"{name}.json").read_text())
    assert found["rows"] and found["smoke"]
    text = (out / f"{name}.md").read_text()
    for row in found["rows"]:
        for column, value in row.items():
            assert column in text
            assert not isinstance(value, float) or math.isfinite(value)
    assert (out / f"{name}.svg").exists() == (ITEMS[name].picture is not None)
    cells = {path: path.stat().st_mtime_ns for path in out.rglob("cells/*.json")}
    code, said = run(name, "--out", str(out), "--smoke")
    assert code == 0 and (out / f"{name}.md").read_text() == text
    assert cells == {path: path.stat().st_mtime_ns for path in out.rglob("cells/*.json")}, "computed twice"


def test_the_list_names_every_item() -> None:
    code, said = run("--list")
    assert code == 0 and all(f"  {name} " in said for name in ITEMS)


def test_cells_are_stored_and_not_mixed_up(tmp_path: Path) -> None:
    work = paper.Work("table", tmp_path, None)
    assert work.cell("a b", lambda: (1, 2)) == [1, 2] == work.cell("a b", lambda: [3])
    with pytest.raises(ValueError, match="names that differ"):
        work.cell("a/b", lambda: 0)
    with pytest.raises(KeyError):
        work.cell("fails", lambda: {}["x"])
    assert work.cell("fails", lambda: 5) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--list"),
        (["pusl-table0", "--out", "out"], "pusl-table0: no such table"),
        (["pusl-table5", "--smoke"], "--out DIR is missing"),
        (["pusl-table5", "--out", "out"], "--data DIR is missing"),
        (["pusl-table5", "--out", "out", "--data", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_errors_are_one_line(words: list[str], said: str) -> None:
    code, found = run(*words)
    assert code == 2 and said in found and found.count("\n") == 1


def test_a_picture_without_matplotlib_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    name = next(name for name, item in ITEMS.items() if item.picture is not None)
    code, said = run(name, "--out", str(tmp_path / "out"), "--smoke")
    assert code == 2 and said.endswith("need matplotlib: pip install matplotlib\n") and said.count("\n") == 1
    assert not list(tmp_path.rglob("cells/*")) and not list(tmp_path.rglob("*.md"))


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text('{"id": "a", "text": "t", "keyphrases": ["x"]}\n')
    words = ["pusl-table5", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data")]
    assert run(*words)[0] == 0
    code, said = run(*words, "--steps", "7")
    assert code == 2 and "another --steps" in said
    with open(tmp_path / "data" / "train.jsonl", "a") as stream:
        stream.write('{"id": "b", "text": "u", "keyphrases": ["y"]}\n')
    code, said = run(*words)
    assert code == 2 and "another --data" in said


def test_data_without_counts_or_times(tmp_path: Path) -> None:
    """What can be shown is shown; what a table needs and the data lack is one line."""
    (tmp_path / "data").mkdir()
    rows = [{"id": f"i{n}", "text": f"text {n}", "keyphrases": [f"x{m}" for m in range(n % 3 + 1)]} for n in range(9)]
    for name, part in (("train", rows[:6]), ("dev", rows[6:7]), ("test", rows[7:])):
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    words = ["--out", str(tmp_path / "out"), "--data", str(tmp_path / "data")]
    assert run("pusl-figure2b", *words)[0] == 0
    found = json.loads((tmp_path / "out" / "pusl-figure2b.json").read_text())["rows"]
    assert found == [{"keyphrases": n, "all": pytest.approx(100 / 3)} for n in (1, 2, 3)]
    for name, said in (("pusl-figure2c", "has no counts"), ("pusl-table9", "has no timestamp")):
        code, text = run(name, *words)
        assert code == 2 and said in text and text.count("\n") == 1, text
