"""`python -m pusl_eval`: the table, metrics.json, comparison, and what it must not import."""

from __future__ import annotations

import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from pusl_eval import schema
from pusl_eval.__main__ import main
from pusl_eval.budgets import budget, budgets, resolve_k
from pusl_eval.evaluation import evaluate
from pusl_eval.files import InputError, write_rows
from pusl_eval.flags import named_files, parameters
from pusl_eval.normalize import collapse, distinct, distinct_forms

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = ["red shoe", "hat", "coat", "blue sock", "cap"]
    references = [
        {"id": f"i{n}", "text": "t", "keyphrases": labels[: n % 5 + 1], "group": "ab"[n % 2]} for n in range(20)
    ]
    write_rows("test.jsonl", references)
    write_rows("good.jsonl", [{"id": r["id"], "keyphrases": r["keyphrases"]} for r in references])
    write_rows("lazy.jsonl.gz", [{"id": r["id"], "keyphrases": r["keyphrases"][:1]} for r in references])
    write_rows("train.jsonl", [{"id": str(n), "keyphrases": labels[: n % 2 + 1]} for n in range(30)])
    Path("universe.txt").write_text("Hat\nCOAT\n")
    return tmp_path


def run(*flags):
    return main(["--references", "test.jsonl", *flags])


def test_one_system(files, capsys):
    code = run(
        "--predictions", "good.jsonl", "--k", "3", "2mu", "--train", "train.jsonl", "--universe", "universe.txt",
        "--output", "out/metrics.json",
    )  # fmt: skip
    assert code == 0
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert list(metrics) == ["counts", "k", "mu", "scores", "groups", "bins", "intervals", "provenance"]
    assert metrics["k"] == [3] and metrics["mu"] == 1.5
    assert metrics["scores"]["all"]["F1@O"] == 1 and metrics["groups"]["a"]["F1@O"] == 1
    assert metrics["intervals"]["all"]["F1@O"] == [1, 1]
    assert metrics["provenance"]["files"]["train"]["sha256"]
    table = capsys.readouterr().out
    for word in ("20 items", "μ = 1.50", "F1@O", "B@k", "#K@k", "narrow", "diverse", "100.0 [100.0, 100.0]", "unseen"):
        assert word in table
    assert "\033" not in table, "no bold codes outside a terminal"


def test_metrics_json_has_the_documented_form(files):
    """Every key of the TypedDict is there, and none that it does not have."""
    result = evaluate("test.jsonl", "lazy.jsonl.gz", [3], train="train.jsonl", universe="universe.txt")
    kinds = typing.get_type_hints(schema.Metrics)
    assert set(result) == set(kinds)
    for name in ("counts", "scores", "intervals", "provenance"):
        assert set(result[name]) == set(typing.get_type_hints(kinds[name])), name
    names = {"F1@O", "P@O", "R@O"} | {
        f"{name}@3"
        for name in (
            "B", "K", "P", "R", "F1", "nDCG", "Success", "Abandonment", "PSP", "PSnDCG", "Diversity", "MacroP",
            "MacroR", "MacroF1", "Cov", "αCov", "Entropy", "R_seen", "R_unseen", "weighted P", "Uni", "New",
            "MicroP", "MicroR", "MicroF1", "MacroF_β", "PSR", "rank-weighted P", "present F1", "absent F1", "absent R",
        )
    } | {"B@3_max", "PSP@3_norm", "PSnDCG@3_norm", "nDCG@3_k", "Cov@3 (1000 items)"}  # fmt: skip
    names |= {"present F1@M", "absent F1@M"}
    for group in result["scores"].values():
        assert set(group) == names


def test_without_training_narrow_and_diverse_are_null(files, capsys):
    assert run("--predictions", "good.jsonl", "--k", "3", "--output", "m.json") == 0
    metrics = json.loads(Path("m.json").read_text())
    assert metrics["mu"] is None and metrics["bins"] == {}
    assert set(metrics["scores"]["narrow"].values()) == {None}
    assert metrics["scores"]["all"]["PSP@3"] is None and metrics["scores"]["all"]["New@3"] is None
    assert "--train" in capsys.readouterr().out


def test_the_same_input_gives_the_same_bytes(files):
    for name in ("one.json", "two.json"):
        assert run("--predictions", "good.jsonl", "--k", "3", "--train", "train.jsonl", "--output", name) == 0
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()


def test_several_systems(files, capsys):
    code = run("--predictions", "good=good.jsonl", "lazy.jsonl.gz", "--k", "3", "--output", "m.json")
    assert code == 0
    document = json.loads(Path("m.json").read_text())
    assert list(document["systems"]) == ["good", "lazy"]
    assert set(document) == set(typing.get_type_hints(schema.Comparison))
    gap = document["comparisons"][0]["scores"]["all"]["B@3"]
    assert gap["difference"] > 0 and gap["p"] < 0.05
    table = capsys.readouterr().out
    assert "*80.0" in table, "the best is marked"
    assert "good - lazy" in table and "+46.67" in table


def test_predictions_flag_may_repeat(files):
    flags = ["--predictions", "good.jsonl", "--predictions", "b=lazy.jsonl.gz", "--k", "1", "--output", "m.json"]
    assert run(*flags) == 0
    assert list(json.loads(Path("m.json").read_text())["systems"]) == ["good", "b"]


def test_names_of_systems(files):
    Path("x=1.jsonl").write_text("")
    assert named_files(["x=1.jsonl"]) == {"x=1": "x=1.jsonl"}, "a file that exists is not cut at its equals sign"
    assert named_files(["a/b=c/d.jsonl"]) == {"d": "a/b=c/d.jsonl"}
    assert named_files(["PUSL+PT=d.jsonl"]) == {"PUSL+PT": "d.jsonl"}


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl.gz"])
def test_other_file_kinds(files, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    rows = [json.loads(line) for line in Path("good.jsonl").read_text().splitlines()]
    write_rows(f"p.{ending}", rows)
    assert run("--predictions", f"p.{ending}", "--k", "3", "--output", "m.json") == 0
    assert json.loads(Path("m.json").read_text())["scores"]["all"]["F1@O"] == 1


def test_all_flags_together(files, capsys):
    Path("weights.tsv").write_text("keyphrase\tweight\nhat\t2\n")
    Path("space.txt").write_text("hat\ncoat\n")
    code = run(
        "--predictions", "lazy.jsonl.gz", "--k", "1", "--train", "train.jsonl", "--weights", "weights.tsv",
        "--label-space", "space.txt", "--normalization", "stem", "--propensity", "power", "--propensity-parameters",
        "beta=1", "gamma=0.5", "--prior", "1", "--bins", "5", "20", "--alpha", "0", "--coverage-items", "10", "20",
        "--bootstrap", "50", "--seed", "3", "--output", "m.json",
    )  # fmt: skip
    assert code == 0
    metrics = json.loads(Path("m.json").read_text())
    assert list(metrics["bins"]) == ["0", "1-4", "5-19", "20+"]
    assert "Cov@1 (20 items)" in metrics["scores"]["all"]
    assert metrics["provenance"]["propensity"]["parameters"] == {"beta": 1, "gamma": 0.5}
    assert metrics["provenance"]["n_labels"] == 2
    assert "have no weight" in capsys.readouterr().err or metrics["provenance"]["warnings"]


def test_imports_neither_pusl_nor_deep_learning(files):
    code = (
        "import sys\n"
        "from pusl_eval.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'pusl', 'pyarrow', 'datasets', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    flags = ["--references", "test.jsonl", "--predictions", "good.jsonl", "--k", "3", "--train", "train.jsonl"]
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text and "--propensity-parameters" in text


def test_parameters_with_spaces_or_commas():
    expected = {"a": 0.55, "b": 1.5}
    assert parameters(["a=0.55", "b=1.5"]) == parameters(["a=0.55,b=1.5"]) == parameters("a=0.55, b=1.5") == expected
    assert parameters([]) == parameters("") == {}
    for wrong in ("a", "a=", "=1", "a=x", "a=1 a=2"):
        with pytest.raises(InputError, match="--propensity-parameters"):
            parameters(wrong)


def test_budgets_round_a_half_upwards_and_are_never_0():
    assert [budget(mu) for mu in (0.2, 0.5, 1.5, 2.5, 2.49)] == [1, 1, 2, 3, 2]
    assert budgets(2.25) == (2, 5)
    assert resolve_k(["2mu", 5, "mu"], 2.25) == [5, 2]


def test_distinct_keyphrases():
    phrases = ["Café", " ", "x", "CAFE\u0301", "y"]
    assert distinct_forms(phrases) == {"café": 0, "x": 2, "y": 4}
    assert distinct(phrases) == ["Café", "x", "y"]
    assert distinct(["shoes", "shoe"], "stem") == ["shoes"]
    assert collapse(phrases, [1, 2, 3, 4, 5]) == (["Café", "x", "y"], [5, 3, 5])
    with pytest.raises(ValueError, match="zip"):
        collapse(["a"], [])


def test_columns_of_a_users_table(files, capsys):
    """References and training items with other column names, another delimiter and another encoding."""
    shop = "sku;title;price;tags\ni0;Ä red shoe;5;red shoe/hat\ni1;Coat;7;coat\n"
    Path("shop.csv").write_bytes(shop.encode("latin-1"))
    write_rows("p.jsonl", [{"id": "i0", "keyphrases": ["hat", "red shoe"]}, {"id": "i1", "keyphrases": ["x", "coat"]}])
    columns = [
        "--id-column", "sku", "--text-template", "{title}, {price}", "--keyphrases-column", "tags", "--separator", "/",
        "--delimiter", ";", "--encoding", "latin-1",
    ]  # fmt: skip
    flags = ["--references", "shop.csv", "--predictions", "p.jsonl", "--k", "mu", "--train", "shop.csv"]
    assert main([*flags, *columns, "--output", "m.json"]) == 0
    found = json.loads(Path("m.json").read_text())
    assert found["mu"] == 1.5 and found["k"] == [2]
    scores = found["scores"]["all"]
    assert scores["B@2"] == 3 / 4 and scores["New@2"] == 1 / 4
    assert scores["present F1@2"] == 1 and scores["absent R@2"] == 1, "the text comes from the template"
    assert found["provenance"]["files"]["references"]["file"] == "shop.csv"
    capsys.readouterr()
    assert main([*flags, "--id-column", "sku", "--encoding", "latin-1"]) == 2
    assert "--delimiter ';'" in capsys.readouterr().err
