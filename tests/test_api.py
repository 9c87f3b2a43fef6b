"""The public API: what `import pusl` offers and costs, what `generate` returns, streams, callbacks, silence."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from decoding_models import WORDS, checkpoint, documents
from transformers import TrainerCallback

import pusl
from pusl import KeyphraseGenerator, Prediction, PredictionList, TrainConfig
from pusl_eval.files import InputError

ROOT = Path(pusl.__file__).parent


@pytest.fixture(scope="module")
def generator():
    return KeyphraseGenerator(checkpoint())


def test_import_is_light_and_every_public_name_exists():
    code = (
        "import sys, pusl, pusl.cli\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'datasets', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert set(pusl.__all__) <= set(dir(pusl))
    for name in pusl.__all__:
        assert getattr(pusl, name) is not None
        assert getattr(pusl, name).__doc__ or name == "__version__", name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pusl.nothing  # noqa: B018


def test_the_type_checker_and_the_program_see_the_same_names():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == pusl._PLACES


def test_predictions_are_a_list_with_views(generator):
    texts = ["red drone", "blue <b>lamp</b>", " "]
    found = generator.generate(texts, 3)
    assert isinstance(found, PredictionList) and isinstance(found, list)
    assert found == list(found) and [*found] == list(found) and found[0].keyphrases
    assert found[:2].texts == texts[:2] and isinstance(found[1:], PredictionList)
    assert pickle.loads(pickle.dumps(found)) == found and pickle.loads(pickle.dumps(found)).texts == texts
    assert found.to_dicts()[0]["keyphrases"] == found[0].keyphrases
    text = repr(found)
    assert text.startswith("Predictions for 3 texts\n0  red drone\n") and found[0].keyphrases[0] in text
    assert "(exhausted)" in text
    page = found._repr_html_()
    assert "&lt;b&gt;lamp" in page and "<b>" not in page
    hostile = PredictionList([Prediction(["<script>alert(1)</script>"], [-1.0])])
    assert "<script>" not in hostile._repr_html_()
    assert "and 5 more" in repr(generator.generate(documents(15), 1)) and "text</th>" not in hostile._repr_html_()


def test_predictions_as_a_frame_and_a_dataset(generator, tmp_path):
    pandas = pytest.importorskip("pandas")
    import datasets

    found = generator.generate(documents(4), 2)
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame["keyphrases"]) == [one.keyphrases for one in found]
    assert list(frame.columns) == ["text", "keyphrases", "scores", "exhausted", "truncated"]
    exploded = found.to_pandas(explode=True)
    assert len(exploded) == sum(len(one.keyphrases) for one in found)
    assert list(exploded[exploded["item"] == 1]["keyphrase"]) == found[1].keyphrases
    assert list(PredictionList().to_pandas().columns) == ["keyphrases", "scores", "exhausted", "truncated"]
    found.to_dataset().save_to_disk(tmp_path / "saved")
    again = datasets.load_from_disk(tmp_path / "saved")
    assert again["keyphrases"][:] == [one.keyphrases for one in found] and len(PredictionList().to_dataset()) == 0


def test_stream_takes_endless_input_in_order_and_reads_no_further_than_its_buffer(generator):
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield f"{WORDS[number % len(WORDS)]} {number}"

    found = list(itertools.islice(generator.stream(endless(), 2, buffer=4), 6))
    assert len(taken) == 8
    texts = [f"{WORDS[number % len(WORDS)]} {number}" for number in range(6)]
    assert found == generator.generate(texts, 2)
    with pytest.raises(InputError, match=r"texts\[5\] is None"):
        list(generator.stream(["a"] * 5 + [None], 1, buffer=2))
    for wrong in ({"texts": "one text"}, {"texts": ["a"], "known": [["b"]]}, {"texts": ["a"], "buffer": 0}):
        with pytest.raises(InputError):
            generator.stream(wrong.pop("texts"), 1, **wrong)


def test_progress_changes_nothing(generator, capsys):
    texts = documents(20)
    assert generator.generate(texts, 2, batch_size=1, progress=True) == generator.generate(texts, 2)
    assert "20/20" in capsys.readouterr().err


def test_the_library_never_prints():
    """Commands, the service's greeting and the endpoint for trying the judge speak to people; nothing else does."""
    allowed = {"messages.py", "serve/server.py", "llm/fake_endpoint.py"}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("commands/") or name in allowed | {"cli.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not called, f"{name}:{node.lineno}"


def test_messages_are_lines_for_the_command_line_only(capsys):
    from pusl.messages import Lines, show_messages

    logger = logging.getLogger("pusl")
    before = [handler for handler in logger.handlers if isinstance(handler, Lines)]
    show_messages()
    show_messages()
    logging.getLogger("pusl.fusion.learn").warning("no dev file")
    logging.getLogger("pusl.fusion.learn").info("memory: 0.1 s")
    assert capsys.readouterr().err == "pusl: no dev file\nmemory: 0.1 s\n"
    assert len([handler for handler in logger.handlers if isinstance(handler, Lines)]) == 1
    logger.handlers[:] = [one for one in logger.handlers if not isinstance(one, Lines)] + before


class Seen(TrainerCallback):
    """A user's own callback."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.scores: list[dict[str, float]] = []

    def on_step_end(self, args, state, control, **_):
        self.steps.append(state.global_step)

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "eval_B@2mu" in logs:
            self.scores.append(logs)


@pytest.mark.slow
def test_own_callbacks_and_a_search_over_train_config(tmp_path):
    rows = [{"id": str(i), "text": f"red {WORDS[i % 5]}", "keyphrases": [WORDS[i % 5], "red"]} for i in range(30)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file, seen = str(tmp_path / "data.jsonl"), Seen()
    config = TrainConfig(
        model="scratch:tiny", train=file, dev=file, out=str(tmp_path / "m"), max_steps=3, vocab_size=300, eval_every=2
    )
    result = pusl.train(config, callbacks=[seen])
    assert result.finished and seen.steps == [1, 2, 3] and len(seen.scores) >= 1
    place = ROOT.parent / "docs" / "examples" / "optuna_search.py"
    spec = importlib.util.spec_from_file_location("optuna_search", place)
    optuna_search = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(optuna_search)

    class Trial:
        """What the example asks of optuna's trial."""

        number, reported = 7, []

        def suggest_float(self, name, low, high, log=False):
            return low

        def suggest_categorical(self, name, choices):
            return choices[0]

        def report(self, value, step):
            self.reported.append((step, value))

        def should_prune(self):
            return False

    trial = Trial()
    best = optuna_search.objective(trial, file, file, tmp_path / "search", max_steps=2, model="scratch:tiny")
    assert 0 <= best <= 1 and trial.reported and (tmp_path / "search" / "trial-7" / "pusl.json").is_file()
