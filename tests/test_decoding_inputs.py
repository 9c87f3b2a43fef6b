"""What people have (strings, iterators, columns) is accepted in its order; what cannot work is one line."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding_models import checkpoint, documents

from pusl import KeyphraseGenerator
from pusl.checkpoint import save_checkpoint
from pusl.cli import main
from pusl.decoding.arguments import known_lists, text_list
from pusl_eval.files import InputError, write_rows


@pytest.fixture(scope="module")
def generator() -> KeyphraseGenerator:
    return KeyphraseGenerator(checkpoint("pusl"))


def columns(texts: list[str]) -> dict[str, Any]:
    """The same texts as everything that people keep them in."""
    import pyarrow as pa

    found: dict[str, Any] = {
        "tuple": tuple(texts), "iterator": iter(texts), "generator": (text for text in texts),
        "numpy": np.array(texts), "numpy objects": np.array(texts, dtype=object),
        "dict keys": dict.fromkeys(texts).keys(),
        "arrow": pa.array(texts), "arrow chunks": pa.chunked_array([texts[:1], texts[1:]]),
        "arrow column": pa.table({"text": texts})["text"],
    }  # fmt: skip
    datasets = pytest.importorskip("datasets")
    found["datasets"] = datasets.Dataset.from_dict({"text": texts})["text"]
    return found


def test_every_column_gives_the_same_keyphrases_in_the_same_order(generator: KeyphraseGenerator) -> None:
    texts = documents(4)
    expected = generator.generate(texts, 3)
    for kind, column in columns(texts).items():
        assert generator.generate(column, 3) == expected, kind


def test_a_series_is_read_in_its_order_whatever_its_index(generator: KeyphraseGenerator) -> None:
    pandas = pytest.importorskip("pandas")
    texts = documents(4)
    series = pandas.Series(texts, index=[3, 2, 1, 0])
    assert generator.generate(series, 2) == generator.generate(texts, 2)
    known = pandas.Series([["drone"], [], ["lamp"], []], index=[9, 8, 7, 0])
    assert generator.generate(series, 2, known=known) == generator.generate(texts, 2, known=list(known))


def test_a_polars_column() -> None:
    polars = pytest.importorskip("polars")
    assert text_list(polars.Series("text", ["a", "b"])) == ["a", "b"]


def test_one_string_is_one_text(generator: KeyphraseGenerator) -> None:
    found = generator.generate("a red drone", 3)
    assert len(found) == 1 and found == generator.generate(["a red drone"], 3)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([None], r"texts\[0\] is None; expected a string"),
        (["a", math.nan], r"texts\[1\] is nan \(float\)"),
        (["a", 3], r"texts\[1\] is 3 \(int\)"),
        ([["a"]], r"texts\[0\] is \['a'\] \(list\)"),
        (np.array([["a", "b"]]), r"texts\[0\]"),
        ({"text": "a"}, "texts is a dict"),
        ({"a", "b"}, "texts is a set"),
        (b"a", "texts is a bytes"),
        (None, "texts is a NoneType; expected a string"),
        (7, "texts is a int"),
        (["\ud800"], "half of a surrogate pair"),
    ],
)
def test_what_is_not_text_is_refused(generator: KeyphraseGenerator, texts: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        generator.generate(texts, 2)
    assert "\n" not in str(raised.value)


def test_a_table_is_not_a_column() -> None:
    import pyarrow as pa

    with pytest.raises(InputError, match=r"texts is a Table; .* name one of its columns"):
        text_list(pa.table({"text": ["a"]}))
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="DataFrame"):
        text_list(pandas.DataFrame({"text": ["a"]}))


def test_known_keyphrases_in_other_containers() -> None:
    import pyarrow as pa

    assert known_lists(pa.array([["a"], []]), 2) == [["a"], []]
    assert known_lists((np.array(["a", "b"]),), 1) == [["a", "b"]]
    with pytest.raises(InputError, match="known is a str"):
        known_lists("drone", 1)
    with pytest.raises(InputError, match=r"known\[0\] is a NoneType"):
        known_lists([None], 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 1e-308}, "temperature is 1e-308; expected 0, or 0.01 to 100"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"k": 0}, "k is 0; it must be at least 1"),
        ({"k": 1_000_000_000}, "k is 1000000000; it must be at most 1000"),
        ({"k": 2.5}, "k is 2.5; expected an integer"),
        ({"k": True}, "k is True; expected an integer"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 10_000_000}, "num_beams is 10000000; it must be at most 1000"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"min_score": math.nan}, "min_score is nan"),
        ({"min_score": False}, "min_score is False"),
        ({"floor": math.nan}, "floor is nan"),
        ({"bonus": math.inf}, "bonus is inf"),
    ],
    ids=str,
)
def test_numbers_have_bounds(generator: KeyphraseGenerator, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        generator.generate(["a red drone"], **{"k": 2, **settings})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "flags",
    [
        ["-k", "1000000000"],
        ["-k", "2", "--num-beams", "10000000"],
        ["-k", "2", "--temperature", "1e-308"],
        ["-k", "2", "--temperature", "inf"],
        ["-k", "2", "--top-p", "nan"],
        ["-k", "2", "--min-score", "nan"],
        ["-k", "2", "--threads", "100000"],
    ],
    ids=" ".join,
)
def test_the_command_refuses_them_with_exit_code_2(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = checkpoint("pusl")
    save_checkpoint(tmp_path / "model", one.model, one.tokenizer, {"paradigm": "pusl", "defaults": {}})
    write_rows(tmp_path / "items.jsonl", [{"id": "a", "text": "a red drone"}])
    files = ["--model", tmp_path / "model", "--input", tmp_path / "items.jsonl", "--output", tmp_path / "out.jsonl"]
    assert main(["generate", *map(str, files), *flags, "--workers", "1", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pusl: ") and len(said.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == []


@pytest.mark.slow
def test_the_bounds_themselves_work(generator: KeyphraseGenerator) -> None:
    for temperature in (0.01, 100):
        found = generator.generate(["a red drone"], np.int64(40), temperature=temperature)[0].keyphrases
        assert found and not any("\ufffd" in phrase for phrase in found), "broken bytes are no keyphrase"
    wide = generator.generate(documents(3), 2, num_beams=1000)
    assert wide == generator.generate(documents(3), 2, num_beams=1000, batch_size=1)


@pytest.mark.parametrize("strategy", ["sequence", "beam"])
@pytest.mark.parametrize("paradigm", ["pusl", "one2one", "one2seq", "groov"])
def test_a_model_that_computes_nan_ends_with_one_line(paradigm: str, strategy: str) -> None:
    broken = copy.deepcopy(checkpoint(paradigm))  # others use the same one
    with torch.no_grad():
        broken.model.decoder.final_layer_norm.weight[0] = math.nan
    with pytest.raises(InputError, match="not numbers"):
        KeyphraseGenerator(broken).generate(["a red drone"], 3, strategy=strategy)
    with pytest.raises(InputError, match="not numbers"):
        KeyphraseGenerator(broken).generate(["a red drone"], 3, temperature=1.0)
