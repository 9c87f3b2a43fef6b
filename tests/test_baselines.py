"""The closed-vocabulary baselines: one interface, one predictions file, models that survive a round trip."""

from __future__ import annotations

import doctest
import json
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from pusl.baselines.label_matrix import label_matrix, read_training
from pusl.baselines.model import BASELINES, baseline_class, load_baseline, save_baseline, top_k, top_sparse
from pusl.baselines.parallel import run_parallel
from pusl.baselines.tfidf import Tfidf
from pusl.cli import main
from pusl_eval.files import InputError, write_rows

ANIMALS = {"cat": "whiskers purr", "dog": "bark leash", "fish": "scales water", "bird": "wings feather"}
QUICK = {
    "svm": ["--jobs", "1"],
    "plt": ["--jobs", "1"],
    "logistic": ["--jobs", "1", "--epochs", "20"],
    "fastxml": ["--jobs", "1", "--trees", "8", "--cost", "8"],
    "word-label": ["--width", "16", "--epochs", "15", "--rate", "0.02", "--batch", "16", "--dropout", "0"],
    "attention-xml": ["--width", "32", "--epochs", "20", "--rate", "0.02", "--batch", "16", "--dropout", "0"],
    "doc-vec": ["--width", "16", "--epochs", "15", "--rate", "0.02", "--batch", "16", "--dropout", "0"],
}


def zoo(count: int, seed: int) -> list[dict]:
    """Items whose words tell their labels."""
    draw = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        names = sorted(draw.choice(list(ANIMALS), draw.integers(1, 3), replace=False).tolist())
        noise = draw.choice(["red", "old", "big", "shop"], 2).tolist()
        rows.append(
            {
                "id": f"{seed}-{number}",
                "text": " ".join([*noise, *(ANIMALS[name] for name in names)]),
                "keyphrases": [name.title() if number % 5 == 0 else name for name in names] + ["animal"],
            }
        )
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    write_rows(folder / "train.jsonl", zoo(120, 1))
    write_rows(folder / "test.jsonl", zoo(30, 2))
    return folder


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def right_in_first_three(rows: list[dict], references: list[dict]) -> float:
    hits = total = 0
    for row, reference in zip(rows, references, strict=True):
        wanted = {phrase.lower() for phrase in reference["keyphrases"]}
        hits += len(wanted & {phrase.lower() for phrase in row["keyphrases"][:3]})
        total += len(wanted)
    return hits / total


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_from_command_to_predictions(name: str, files: Path, tmp_path: Path) -> None:
    test, out = files / "test.jsonl", tmp_path / "out.jsonl"
    train = ["--train", str(files / "train.jsonl"), "--save", str(tmp_path / "model"), *QUICK.get(name, [])]
    predict = ["--input", str(test), "--output", str(out), "-k", "3"]
    assert main(["baseline", name, *train, *predict]) == 0
    rows, references = read(out), read(test)
    assert [row["id"] for row in rows] == [reference["id"] for reference in references]
    assert all(0 <= score <= 1 for row in rows for score in row["scores"])
    assert all(len(row["keyphrases"]) == len(row["scores"]) == 3 for row in rows)
    assert all(len(set(row["keyphrases"])) == 3 for row in rows)
    assert all(row["scores"] == sorted(row["scores"], reverse=True) for row in rows)
    assert right_in_first_three(rows, references) > (0.5 if name == "frequency" else 0.9)
    # The saved model gives the same answers.
    again = [
        "--model",
        str(tmp_path / "model"),
        "--input",
        str(test),
        "--output",
        str(tmp_path / "again.jsonl"),
        "-k",
        "3",
    ]
    assert main(["baseline", name, *again]) == 0
    assert read(tmp_path / "again.jsonl") == rows


def test_labels_are_merged_and_shown_as_most_often_written(files: Path) -> None:
    data = read_training(files / "train.jsonl")
    assert sorted(data.labels) == ["animal", "bird", "cat", "dog", "fish"]
    assert data.labels[0] == "animal" and data.frequencies[0] == 120
    assert data.matrix.max() == 1


def test_tfidf_equals_scikit_learn(files: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [row["text"] for row in zoo(50, 3)] + ["", "cat cat cat shop"]
    for ngrams in (1, 2):
        ours = Tfidf(ngrams)
        mine = ours.fit(texts)
        theirs = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, ngrams), token_pattern=r"\w+").fit(texts)
        assert sorted(ours.vocabulary) == sorted(theirs.vocabulary_)
        assert np.allclose(mine.toarray(), theirs.transform(texts).toarray(), atol=1e-6)


def test_top_k_breaks_ties_by_label_number() -> None:
    scores = np.array([[0.5, 0.9, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4]])
    numbers, best = top_k(scores, 3)
    assert numbers.tolist() == [[1, 0, 2], [3, 2, 1]]
    assert best.tolist() == [[0.9, 0.5, 0.5], [0.4, 0.3, 0.2]]
    numbers, best = top_sparse(sparse.csr_matrix(np.array([[0, 0.5, 0.5], [0, 0, 0.0]])), 3)
    assert numbers.tolist() == [[1, 2, -1], [-1, -1, -1]]


def test_a_text_without_known_words_is_exhausted(files: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "odd.jsonl", [{"id": "x", "text": "zzz"}, {"id": "y", "text": ""}])
    arguments = ["--train", str(files / "train.jsonl"), "--input", str(tmp_path / "odd.jsonl")]
    assert main(["baseline", "knn", *arguments, "--output", str(tmp_path / "o.jsonl"), "-k", "2"]) == 0
    assert read(tmp_path / "o.jsonl")[0] == {"id": "x", "keyphrases": [], "scores": [], "exhausted": True}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["knn"], "--train"),
        (["knn", "--train", "T"], "nothing to do"),
        (["knn", "--train", "T", "--input", "E"], "--input and --output"),
        (["knn", "--train", "T", "--input", "E", "--output", "O", "-k", "0"], "argument -k/--k: 0 must be at least 1"),
        (["knn", "--train", "T", "--model", "M", "--save", "S"], "either --train"),
        (["knn", "--train", "none.jsonl", "--save", "S"], "none.jsonl: no such file"),
        (["knn", "--model", "T", "--input", "E", "--output", "O"], "is not a saved baseline"),
        (["svm", "--train", "T", "--save", "S", "--cost", "0"], "'cost' is 0"),
        (["knn", "--train", "U", "--save", "S"], "no item with keyphrases"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_flags_are_two_lines(
    arguments: list[str], expected: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "empty.jsonl", [{"id": "a", "text": "b", "keyphrases": []}])
    places = {
        "T": files / "train.jsonl", "E": files / "test.jsonl", "O": tmp_path / "o", "S": tmp_path / "s",
        "M": tmp_path / "m", "U": tmp_path / "empty.jsonl",
    }  # fmt: skip
    try:
        code = main(["baseline", *(str(places.get(word, word)) for word in arguments)])
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2 and expected in error and len(error.strip().splitlines()) <= 2
    assert not (tmp_path / "o").exists() and not (tmp_path / "s").exists()


def test_existing_outputs_need_force(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["baseline", "frequency", "--train", str(files / "train.jsonl"), "--save", str(tmp_path / "m")]
    assert main(arguments) == 0
    assert main(arguments) == 2 and "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("keep")
    assert main([*arguments[:-1], str(tmp_path / "other"), "--force"]) == 2
    assert (tmp_path / "other" / "precious.txt").read_text() == "keep"
    inside = tmp_path / "m" / "train.jsonl"
    inside.write_bytes((files / "train.jsonl").read_bytes())
    capsys.readouterr()
    assert main(["baseline", "frequency", "--train", str(inside), "--save", str(tmp_path / "m"), "--force"]) == 2
    assert "would be replaced" in capsys.readouterr().err and inside.exists()


def test_damaged_or_other_models_are_refused(files: Path, tmp_path: Path) -> None:
    model = baseline_class("knn")()
    model.fit(read_training(files / "train.jsonl"))
    save_baseline(tmp_path / "m", "knn", model)
    with pytest.raises(InputError, match="not 'svm'"):
        load_baseline(tmp_path / "m", "svm")
    (tmp_path / "m" / "features.npz").write_bytes(b"PK nonsense")
    with pytest.raises(InputError, match="damaged"):
        load_baseline(tmp_path / "m")


def test_a_failed_save_leaves_nothing(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = baseline_class("frequency")()
    model.fit(read_training(files / "train.jsonl"))
    monkeypatch.setattr(type(model), "_save", lambda self, folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_baseline(tmp_path / "m", "frequency", model)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are inside of trees."""
    nothing, broken = np.zeros(1, int), sparse.csr_matrix([[np.nan]])
    tree = import_module("pusl.baselines.fastxml").Tree(nothing, nothing, nothing, broken, broken)
    monkeypatch.setattr("pusl.baselines.fastxml.grow_tree", lambda *_: tree)
    model = baseline_class("fastxml")(baseline_class("fastxml").Config(jobs=1, trees=1))
    with pytest.raises(InputError, match="not finite"):
        model.fit(read_training(files / "train.jsonl"))


def test_other_processes_follow_the_same_rules_for_numbers() -> None:
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        list(run_parallel(np.exp, [(1e9,), (1e9,)], jobs=2))


def _holds_interrupts(_: int) -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_workers_leave_ctrl_c_to_their_parent() -> None:
    """In a fresh process: the helpers of the workers' pool are started there too."""
    code = (
        "from test_baselines import _holds_interrupts as held; from pusl.baselines.parallel import run_parallel; "
        "print(*run_parallel(held, [(1,), (2,)], jobs=2), held(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


def test_label_matrix_of_nothing() -> None:
    labels, matrix = label_matrix([[" "], []])
    assert labels == [] and matrix.shape == (2, 0)


@pytest.mark.parametrize("module", ["label_matrix", "model", "fastxml", "logistic"])
def test_docstring_examples(module: str) -> None:
    found = doctest.testmod(import_module(f"pusl.baselines.{module}"))
    assert found.failed == 0 and found.attempted > 0
