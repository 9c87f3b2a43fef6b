"""The example in CONTRIBUTING.md as it stands, and how a paradigm becomes known to a process and to the commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pusl import paradigms
from pusl.checkpoint import read_meta
from pusl.paradigms import LOSSES, ORDERS, STRATEGIES, One2Seq, Paradigm, get, register
from pusl.tokenizer import TokenIds
from pusl.training import TrainConfig
from pusl.training.train_config import resolve
from pusl_eval.files import InputError, write_rows

ROOT = Path(__file__).resolve().parent.parent
IDS = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)


@pytest.fixture
def registry(monkeypatch):
    """Paradigms of a test are forgotten after it."""
    monkeypatch.setattr(paradigms, "_known", dict(paradigms._known))
    yield
    paradigms._installed.cache_clear()
    sys.modules.pop("short_first", None)


def example() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## A new paradigm\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return code


@pytest.mark.slow
def test_the_example_of_contributing_trains_and_generates(registry, tmp_path, monkeypatch, capsys):
    code = example()
    assert len(code.splitlines()) <= 35, "about thirty lines"
    words = ["drone", "toy drone", "camera", "small toy drone"]
    write_rows(
        tmp_path / "train.jsonl",
        [{"id": str(n), "text": f"a drone, no. {n}, with a camera", "keyphrases": words} for n in range(24)],
    )
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), space)
    short_first = get("short-first")
    assert short_first.target([[4, 5], [6]], IDS) == ([6, 9, 4, 5, 1], 2)
    assert read_meta("models/short-first")["paradigm"] == "short-first"
    record = json.loads(Path("models/short-first/run.json").read_text(encoding="utf-8"))
    assert record["steps"] == 20 and record["config"]["order"] == "given"
    assert record["history"][-1]["loss"] < record["history"][0]["loss"]
    assert short_first.summary in Path("models/short-first/README.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith("[")
    (prediction,) = space["generator"].generate(["a drone with a camera"], k=3)  # type: ignore[attr-defined]
    assert len(prediction.keyphrases) <= 3
    assert "short-first" in paradigms.names()
    with pytest.raises(InputError, match="'order' is shuffle; the paradigm short-first allows: given"):
        resolve(TrainConfig(paradigm="short-first", order="shuffle", train="train.jsonl", out="other"))


def install(folder: Path, module: str) -> None:
    """A package with an entry point, as pip would leave it."""
    folder.mkdir()
    (folder / "short_first.py").write_text(module, encoding="utf-8")
    info = folder / "short_first-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: short-first\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[pusl.paradigms]\nshort-first = short_first:ShortFirst\n", encoding="utf-8")


def test_an_installed_package_adds_its_paradigm_to_the_commands(registry, tmp_path, monkeypatch):
    install(tmp_path / "site", "\n".join(example().split("\ntrain(")[0].splitlines()[1:]).replace(", train", ""))
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    shown = subprocess.run([sys.executable, "-m", "pusl", "train", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert "short-first" in shown.stdout
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    paradigms._installed.cache_clear()
    assert get("short-first").title == "One2Seq, short first"


def test_a_broken_package_names_itself_and_breaks_nothing_else(registry, tmp_path, monkeypatch):
    install(tmp_path / "site", "import no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    paradigms._installed.cache_clear()
    assert get("pusl").name == "pusl" and "short-first" in paradigms.names()
    with pytest.raises(InputError, match=r"short-first.*short_first:ShortFirst.*no_such_module"):
        get("short-first")


def test_unknown_names_and_wrong_declarations_are_refused(registry):
    with pytest.raises(InputError, match="'seq2seq' is unknown; known: one2one, one2seq, groov, pusl"):
        get("seq2seq")
    with pytest.raises(ValueError, match="the paradigm 'one2seq' is already One2Seq"):
        register(type("Other", (One2Seq,), {}))
    with pytest.raises(ValueError, match="losses is \\('hinge',\\); allowed: sequence, order-free"):
        register(type("Hinge", (One2Seq,), {"name": "hinge", "losses": ("hinge",)}))


@pytest.mark.parametrize("name", ["one2one", "one2seq", "groov", "pusl"])
def test_each_paradigm_says_everything_about_itself(name):
    paradigm = get(name)
    assert isinstance(paradigm, Paradigm) and str(paradigm) == paradigm.name == name
    assert paradigm.title and paradigm.summary
    assert set(paradigm.losses) <= set(LOSSES) and set(paradigm.orders) <= set(ORDERS)
    assert paradigm.choose_strategy(None) == paradigm.strategies[0]
    for strategy in STRATEGIES:
        assert paradigm.choose_strategy(strategy) in paradigm.strategies
    facts = (paradigm.endless, paradigm.ends_itself, paradigm.packs_rows, paradigm.reads_known, sorted(paradigm.marks))
    assert (
        facts
        == {
            "one2one": (False, False, True, False, []),
            "one2seq": (False, True, False, False, ["sep"]),
            "groov": (False, True, False, False, ["sep"]),
            "pusl": (True, False, False, True, ["bok", "eok"]),
        }[name]
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"paradigm": "groov", "order": "given"}, "groov means --order shuffle and --loss order-free"),
        ({"paradigm": "groov", "loss": "sequence"}, "groov means --order shuffle and --loss order-free"),
        ({"paradigm": "one2one", "loss": "order-free"}, "one2one has one keyphrase per target"),
        ({"paradigm": "one2seq", "restart": 0.5}, "'restart' is for the paradigm pusl, not for one2seq"),
        ({"paradigm": "one2one", "learn_bok": True}, "'learn_bok' is for the paradigm pusl, not for one2one"),
        ({"paradigm": "pusl", "restart": 1.5}, "'restart' is 1.5; it is a chance from 0 to 1"),
    ],
)
def test_options_that_do_not_fit_a_paradigm(tmp_path, settings, message):
    write_rows(tmp_path / "train.jsonl", [{"id": "a", "text": "x", "keyphrases": ["y"]}])
    with pytest.raises(InputError, match=re.escape(message)):
        resolve(TrainConfig(train=str(tmp_path / "train.jsonl"), out=str(tmp_path / "out"), **settings))
