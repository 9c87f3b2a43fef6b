"""Bad input ends with one or two clear lines, exit code 2 (1 for the disk), and nothing half-written."""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pusl_eval import evaluate
from pusl_eval.__main__ import main
from pusl_eval.files import InputError

GOOD = [{"id": "a1", "keyphrases": ["red shoe", "hat"]}, {"id": "a2", "keyphrases": ["coat"]}]


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("refs.jsonl").write_bytes(lines(*GOOD))
    Path("preds.jsonl").write_bytes(lines(*({**row, "exhausted": True} for row in GOOD)))
    return tmp_path


def run(*extra, references="refs.jsonl", predictions="preds.jsonl", k=("3",)):
    """Exit code of an evaluation that would write out.json."""
    try:
        return main(
            ["--references", references, "--predictions", predictions, "--k", *k, "--output", "out.json", *extra]
        )
    except SystemExit as stop:  # argparse
        return stop.code


def check(capsys, code, *words, left=()):
    """One or two lines on stderr that hold all the words; no output file, no leftovers."""
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert 1 <= len(captured.err.strip().splitlines()) <= 2
    assert "Traceback" not in captured.err
    for word in words:
        assert word in captured.err, captured.err
    assert not Path("out.json").exists()
    assert not [name for name in os.listdir(".") if name.startswith(".")], "a temporary file was left"


BAD_LINES = {
    "not json": ('{"id": "a1", "keyphrases": ["x"', "not a JSON object"),
    "an array": ('["a1"]', "found a list"),
    "nan": ('{"id": "a1", "keyphrases": [], "scores": [NaN]}', "NaN"),
    "no id": ({"keyphrases": ["x"]}, "no field 'id'"),
    "id null": ({"id": None, "keyphrases": ["x"]}, "'id' is null"),
    "id float": ({"id": 1.5, "keyphrases": ["x"]}, "'id' is a number"),
    "id true": ({"id": True, "keyphrases": ["x"]}, "'id' is true/false"),
    "id empty": ({"id": "", "keyphrases": ["x"]}, "'id' is empty"),
    "no keyphrases": ({"id": "a1", "keywords": ["x"]}, "no field 'keyphrases' (found: id, keywords)"),
    "null keyphrases": ({"id": "a1", "keyphrases": None}, "'keyphrases' is null; expected a list of strings"),
    "a string": ({"id": "a1", "keyphrases": "red shoe"}, "'keyphrases' is a string"),
    "a number": ({"id": "a1", "keyphrases": ["x", 2014]}, "keyphrase 2 is a number (2014)"),
    "a null": ({"id": "a1", "keyphrases": [None]}, "keyphrase 1 is null"),
    "half a pair": ('{"id": "a1", "keyphrases": ["\\ud800"]}', "surrogate"),
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("which", ["references", "predictions"])
def test_bad_line(files, capsys, bad, which):
    row, words = bad
    Path("bad.jsonl").write_bytes(lines({"id": "ok", "keyphrases": []}, row))
    if which == "predictions":
        Path("refs.jsonl").write_bytes(lines({"id": "ok", "keyphrases": ["x"]}, GOOD[0]))
    named = ["'a1'"] if isinstance(row, dict) and row.get("id") == "a1" else []
    check(capsys, run(**{which: "bad.jsonl"}), "bad.jsonl:2:", words, *named)


@pytest.mark.parametrize("which", ["references", "predictions"])
def test_duplicate_id(files, capsys, which):
    Path("bad.jsonl").write_bytes(lines(*GOOD, GOOD[0]))
    check(capsys, run(**{which: "bad.jsonl"}), "bad.jsonl:3:", "'a1'", "line 1")


def test_the_same_id_as_number_and_as_string(files, capsys):
    Path("refs.jsonl").write_bytes(lines({"id": 7, "keyphrases": ["x"]}, {"id": "7", "keyphrases": ["y"]}))
    check(capsys, run(), "refs.jsonl:2:", "'7'")


def test_prediction_without_reference(files, capsys):
    Path("preds.jsonl").write_bytes(lines(GOOD[0], {"id": "zz", "keyphrases": ["x"]}))
    check(capsys, run(), "preds.jsonl:2:", "'zz'", "refs.jsonl")


@pytest.mark.parametrize("which", ["file", "records"])
def test_predictions_for_another_file(files, capsys, which):
    ids = ["a1", *(f"z{number}" for number in range(4))]
    fewer = {"all": ids[1:], "most": ids, "one": ids[:2]}
    words = {"all": "4 of 4 ids are not there. Are these predictions for another file?",
             "most": "4 of 5 ids are not there. Are these predictions for another file?",
             "one": "; remove the line"}  # fmt: skip
    for name, chosen in fewer.items():
        rows = [{"id": item, "keyphrases": ["x"]} for item in chosen]
        if which == "file":
            Path("preds.jsonl").write_bytes(lines(*rows))
            line = 1 + (name != "all")
            check(capsys, run(), f"preds.jsonl:{line}: id 'z0' has no reference in refs.jsonl", words[name])
        else:
            with pytest.raises(InputError, match=re.escape(words[name])):
                evaluate(GOOD, rows, k=[1])
    some = [{"id": item, "keyphrases": []} for item in ("a1", "a2", "a3", "a4", "y", "z")]
    with pytest.raises(InputError, match=r"2 of 6 ids are not there. Remove their lines"):
        evaluate([{**GOOD[0], "id": f"a{number}"} for number in range(1, 5)], some, k=[1])


@pytest.mark.parametrize("column", ["id", "keyphrases"])
def test_a_column_of_another_name(files, capsys, column):
    """References have flags for it, predictions do not."""
    row = {"sku": "a1", **GOOD[0]}
    del row[column]
    Path("other.jsonl").write_bytes(lines(row))
    for extra in ({"references": "other.jsonl"}, {}):
        code = run(*([] if extra else ["--train", "other.jsonl"]), **extra)
        check(capsys, code, f"no field '{column}' (found: sku, ", f"). Name it with --{column}-column")
    words = "In predictions this field must have this name"
    check(capsys, run(predictions="other.jsonl"), f"no field '{column}'", words)


def test_a_table_without_ids(files, capsys):
    Path("refs.csv").write_text("sku,keyphrases\na1,hat\n")
    words = "refs.csv has no column 'id' (found: sku, keyphrases). Name it with --id-column"
    check(capsys, run(references="refs.csv"), words)
    Path("refs.csv").write_text("id;keyphrases\na1;hat\n")
    check(capsys, run(references="refs.csv"), "--delimiter ';'")


def test_reference_without_prediction_is_an_empty_prediction(files, capsys):
    Path("preds.jsonl").write_bytes(lines(GOOD[0]))
    assert run() == 0
    metrics = json.loads(Path("out.json").read_text())
    assert metrics["counts"]["n_missing_predictions"] == 1
    assert metrics["scores"]["all"]["R@3"] == 0.5


def test_scores_of_another_length(files, capsys):
    Path("preds.jsonl").write_bytes(lines(GOOD[0], {"id": "a2", "keyphrases": ["x", "y"], "scores": [1.0]}))
    check(capsys, run(), "preds.jsonl:2:", "'a2'", "1 scores for 2 keyphrases")


@pytest.mark.parametrize("scores", ["high", [True], ["1"], [None], {"x": 1}])
def test_scores_that_are_no_numbers(files, capsys, scores):
    Path("preds.jsonl").write_bytes(lines({"id": "a2", "keyphrases": ["x"], "scores": scores}))
    check(capsys, run(), "preds.jsonl:1:", "'a2'", "'scores'")


@pytest.mark.parametrize("counts", [[1], [1, -1], [1, 2.5], [1, "2"], 3])
def test_bad_counts(files, capsys, counts):
    Path("refs.jsonl").write_bytes(lines({"id": "a1", "keyphrases": ["x", "y"], "counts": counts}))
    check(capsys, run(), "refs.jsonl:1:", "'a1'", "counts")


def test_truncated_gzip(files, capsys):
    whole = gzip.compress(lines(*[{"id": str(i), "keyphrases": [f"phrase {i * i}"]} for i in range(3000)]))
    Path("cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    check(capsys, run(references="cut.jsonl.gz"), "cut.jsonl.gz", "gzip")


def test_gzip_with_a_flipped_byte(files, capsys):
    whole = bytearray(gzip.compress(lines(*GOOD)))
    whole[-6] ^= 0xFF
    Path("bad.jsonl.gz").write_bytes(bytes(whole))
    check(capsys, run(references="bad.jsonl.gz"), "bad.jsonl.gz", "gzip")


def test_invalid_utf8(files, capsys):
    Path("refs.jsonl").write_bytes(lines(GOOD[0]) + b'{"id": "a2", "keyphrases": ["caf\xe9"]}\n')
    check(capsys, run(), "refs.jsonl:2:", "UTF-8")


def test_bom_crlf_and_blank_lines_are_fine(files):
    text = b"\xef\xbb\xbf" + lines(*GOOD).replace(b"\n", b"\r\n\r\n")
    Path("refs.jsonl").write_bytes(text)
    Path("preds.jsonl").write_bytes(text)
    assert run() == 0
    assert json.loads(Path("out.json").read_text())["scores"]["all"]["F1@O"] == 1


@pytest.mark.parametrize("which", ["references", "predictions", "train", "universe", "label-space", "weights"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_empty_file(files, capsys, which, content):
    name = "empty.jsonl" if which in ("references", "predictions", "train") else "empty.txt"
    Path(name).write_bytes(content)
    code = run(**{which: name}) if which in ("references", "predictions") else run(f"--{which}", name)
    check(capsys, code, name, "expected at least one")


def test_a_megabyte_keyphrase_is_no_trouble(files):
    long = "x" * 1_000_000
    Path("refs.jsonl").write_bytes(lines({"id": "a1", "keyphrases": [long, "y " * 500_000]}))
    Path("preds.jsonl").write_bytes(lines({"id": "a1", "keyphrases": [long.upper(), "z"]}))
    assert run() == 0
    assert json.loads(Path("out.json").read_text())["scores"]["all"]["P@3"] == 0.5


@pytest.mark.parametrize("k", ["0", "-1", "2.5", "three", "99999999999"])
def test_bad_k(files, capsys, k):
    check(capsys, run(k=(k,)), "k", k)


def test_no_k(files, capsys):
    check(capsys, run(k=()), "--k")


@pytest.mark.parametrize("k", ["mu", "2mu"])
def test_mu_needs_a_training_file(files, capsys, k):
    check(capsys, run(k=(k,)), k, "--train")


@pytest.mark.parametrize("flag", ["references", "predictions", "train", "universe", "output"])
def test_a_directory(files, capsys, flag):
    Path("folder.jsonl").mkdir()
    code = run(**{flag: "folder.jsonl"}) if flag in ("references", "predictions") else run(f"--{flag}", "folder.jsonl")
    check(capsys, code, "folder.jsonl", "directory")


def test_missing_file_and_unknown_ending(files, capsys):
    check(capsys, run(references="nowhere.jsonl"), "nowhere.jsonl", "no such file")
    Path("refs.txt").write_bytes(lines(*GOOD))
    check(capsys, run(references="refs.txt"), "refs.txt", "unknown file ending")
    check(capsys, run(references="x" * 5000 + ".jsonl"), "no such file")


FLAGS = {
    "normalization": (["--normalization", "fancy"], "fancy"),
    "propensity": (["--propensity", "magic", "--train", "refs.jsonl"], "magic"),
    "propensity without training": (["--propensity", "jpv"], "--train"),
    "power without parameters": (["--propensity", "power", "--train", "refs.jsonl"], "beta=NUMBER"),
    "unknown parameter": (["--propensity-parameters", "z=1", "--train", "refs.jsonl"], "'z'"),
    "parameter without number": (["--propensity-parameters", "a", "--train", "refs.jsonl"], "NAME=NUMBER"),
    "negative parameter": (["--propensity-parameters", "b=-3", "--train", "refs.jsonl"], "positive"),
    "direct without unbiased": (["--propensity", "direct", "--train", "refs.jsonl"], "--unbiased"),
    "unbiased without training": (["--unbiased", "refs.jsonl"], "--train"),
    "alpha": (["--alpha", "2"], "alpha"),
    "bins": (["--bins", "10", "5"], "bins"),
    "coverage items": (["--coverage-items", "0"], "coverage"),
    "prior": (["--prior", "-1"], "prior"),
    "bootstrap": (["--bootstrap", "-5"], "bootstrap"),
    "no number": (["--seed", "x"], "--seed"),
    "unknown flag": (["--alhpa", "1"], "--alhpa"),
    "two systems of one name": (["--predictions", "sub/preds.jsonl"], "'preds'"),
}


@pytest.mark.parametrize("extra", FLAGS.values(), ids=FLAGS)
def test_bad_flags(files, capsys, extra):
    check(capsys, run(*extra[0]), extra[1])


def test_bad_weights(files, capsys):
    Path("w.txt").write_text("red shoe\tmuch\n")
    check(capsys, run("--weights", "w.txt"), "w.txt:1", "'much'")
    Path("w.txt").write_text("red shoe 2\n")
    check(capsys, run("--weights", "w.txt"), "w.txt:1", "tab")
    Path("w.csv").write_text("label,weight\nhat,1\n")
    check(capsys, run("--weights", "w.csv"), "w.csv:2", "'keyphrase'")


def test_an_existing_output_needs_force(files, capsys):
    Path("out.json").write_text("mine")
    assert run() == 2
    assert "--force" in capsys.readouterr().err
    assert Path("out.json").read_text() == "mine"
    assert run("--force") == 0
    assert json.loads(Path("out.json").read_text())["k"] == [3]


def test_the_output_is_no_input(files, capsys):
    before = Path("refs.jsonl").read_bytes()
    assert run("--output", "./refs.jsonl", "--force") == 2
    assert "is the --references file" in capsys.readouterr().err
    assert Path("refs.jsonl").read_bytes() == before


def test_a_failure_leaves_the_old_output(files, capsys):
    Path("out.json").write_text("mine")
    Path("preds.jsonl").write_bytes(lines({"id": "a1"}))
    assert run("--force") == 2
    assert Path("out.json").read_text() == "mine"


def test_csv_mistakes(files, capsys):
    Path("refs.csv").write_text("id,keyphrases\na1,red shoe|hat\na2\n")
    fix = "; quote cells that hold the delimiter (',') or a line break"
    check(capsys, run(references="refs.csv"), "refs.csv:3", "1 cells, but the header has 2", fix)
    Path("refs.csv").write_text('id,keyphrases\na1,"red shoe|hat\n')
    check(capsys, run(references="refs.csv"), "refs.csv", "CSV")
    Path("refs.csv").write_text("id,id\na1,b\n")
    check(capsys, run(references="refs.csv"), "refs.csv:1", "same name")
    Path("refs.csv").write_bytes(bytes(range(256)) * 8)
    check(capsys, run(references="refs.csv"), "refs.csv: looks like a binary file, not CSV; export it as text")
    Path("refs.csv").write_bytes("id,keyphrases\r\na1,hat\r\n".encode("utf-16"))
    check(capsys, run(references="refs.csv"), "refs.csv:1: not valid UTF-8; name its encoding")


def test_a_parquet_file_that_is_none(files, capsys):
    pytest.importorskip("pyarrow")
    Path("refs.parquet").write_bytes(lines(*GOOD))
    check(capsys, run(references="refs.parquet"), "refs.parquet", "Parquet")


def command(*flags):
    return [
        sys.executable,
        "-m",
        "pusl_eval",
        "--references",
        "refs.jsonl",
        "--predictions",
        "preds.jsonl",
        "--k",
        "3",
        *flags,
    ]


def environment():
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def test_disk_full_while_writing(files):
    """A file size limit makes the write fail half-way, as a full disk does."""
    done = subprocess.run(
        command("--output", "out.json"), env=environment(), capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)),
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "half-written" in done.stderr
    assert sorted(os.listdir(".")) == ["preds.jsonl", "refs.jsonl"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_disk_full_behind_standard_output(files):
    with open("/dev/full", "w") as full:
        done = subprocess.run(command(), env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr


def test_a_closed_pipe_is_no_error(files):
    with subprocess.Popen(command(), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("which", ["refs.jsonl", "preds.jsonl", "folder"])
def test_no_permission(which):
    """Root may read everything, so the command gives root up before it looks at the files."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        for name in ("refs.jsonl", "preds.jsonl"):
            (folder / name).write_bytes(lines(*GOOD))
            (folder / name).chmod(0o644)
        if which != "folder":
            (folder / which).chmod(0)
        else:
            folder.chmod(0o555)
        code = (
            "import os, sys\n"
            "from pusl_eval.__main__ import main\n"
            "import pusl_eval.evaluation, pusl_eval.glossary, pusl_eval.table, pusl_eval.verdict\n"
            "if os.geteuid() == 0: os.setuid(65534)\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *command("--output", "out.json")[3:]], cwd=folder, env=environment(),
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1 and "no permission" in done.stderr
        assert not (folder / "out.json").exists()
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
