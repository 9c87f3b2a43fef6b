"""The demo: its layout, its words, and that a stopped one goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pusl.demo import DemoConfig, _spread, demo, outcome
from pusl_eval.files import InputError, locked_folder

pytestmark = pytest.mark.slow

SMALL = DemoConfig(items=400, epochs=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    demo(out, SMALL)
    return out


def test_the_spread_over_seeds_is_that_of_the_default_settings() -> None:
    lines = _spread(DemoConfig(seed=3)).strip().splitlines()
    assert "several seeds on several processors" in lines[0]
    assert lines[1].split() == ["runs", "#K@2μ", "B@2μ", "true", "B@2μ"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert list(rows) == ["kNN", "One2Seq", "PUSL", "fused"]
    for runs, *cells in rows.values():
        assert len(cells) == 3 and all((cell == "–") is (runs == "0") for cell in cells)
        ranges = [tuple(map(float, cell.split("–"))) for cell in cells if cell != "–"]
        assert all(low <= high for low, high in ranges)
    assert _spread(SMALL) == ""


def test_layout(folder: Path) -> None:
    for name in ("train", "dev", "test", "complete"):
        assert (folder / "data" / f"{name}.jsonl").is_file()
    for name in ("one2seq", "pusl", "fused"):
        assert (folder / "models" / name / "pusl.json").is_file()
    for name in ("knn", "one2seq", "pusl", "fused"):
        assert len((folder / "predictions" / f"{name}.jsonl").read_text().splitlines()) == 100
    metrics = json.loads((folder / "metrics.json").read_text())
    for truth in ("observed", "complete"):
        assert set(metrics[truth]["systems"]) == {"kNN", "One2Seq", "PUSL", "fused"}
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_finished_demo_is_not_overwritten_but_an_unfinished_one_goes_on(
    folder: Path,
) -> None:
    with pytest.raises(InputError, match="finished demo"):
        demo(folder, SMALL)
    models = {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")}
    (folder / "report.html").unlink()
    (folder / "predictions" / "pusl.jsonl").unlink()
    shown = outcome(folder, SMALL, demo(folder, SMALL))
    assert "#K@" in shown and "One2Seq" in shown and "which only a simulation knows" in shown
    assert models == {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")}


def test_other_settings_and_foreign_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="is not a demo"):
        demo(tmp_path, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(InputError, match="finished demo"):
        demo(folder, DemoConfig(items=500, epochs=0.5))


@pytest.mark.parametrize(
    ("model", "message"),
    [("scratch:huge", r"unknown model 'scratch:huge'; known: scratch:tiny"), ("{}", "not a folder with a checkpoint")],
)
def test_a_wrong_model_is_found_before_anything_is_written_or_removed(
    tmp_path: Path, folder: Path, model: str, message: str
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    config = DemoConfig(model=model.format(empty))
    with pytest.raises(InputError, match=message):
        demo(tmp_path / "a\nb", config)
    assert not (tmp_path / "a\nb").exists()
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(InputError, match=message):
        demo(folder, config, force=True)
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]"])
def test_damaged_settings_are_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "demo.json").write_bytes(content)
    with pytest.raises(InputError, match=r"demo\.json.*pass --force to start again"):
        demo(tmp_path, SMALL)
    assert (tmp_path / "demo.json").read_bytes() == content


def test_one_folder_has_one_demo(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "ours"), pytest.raises(InputError, match="another run is training there"):
        demo(tmp_path, SMALL)
    assert not list(tmp_path.iterdir())
