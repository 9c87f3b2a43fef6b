"""Texts longer than the model reads: marked when they are cut, searched whole by windows."""

from __future__ import annotations

import json
import math

import datasets
import pytest
from decoding_models import checkpoint, documents, tokenizer

from pusl import KeyphraseGenerator
from pusl.checkpoint import save_checkpoint
from pusl.cli import main
from pusl.decoding.windows import any_of, text_windows
from pusl.tokenizer import encode_whole
from pusl_eval.files import InputError

LENGTH = 16
TEXTS = [" ".join(documents(12, seed)) for seed in range(3)] + ["red drone", "", "lamp"]


@pytest.fixture(scope="module")
def generator():
    made = KeyphraseGenerator(checkpoint())
    made.max_source_length = LENGTH
    return made


def generators(paradigm: str) -> KeyphraseGenerator:
    made = KeyphraseGenerator(checkpoint(paradigm))
    made.max_source_length = LENGTH
    return made


def test_cut_texts_are_marked(generator):
    found = generator.generate(TEXTS, 3)
    assert [one.truncated for one in found] == [True, True, True, False, False, False]
    exact = next(text for text in documents(200) if len(encode_whole(tokenizer(), [text])[0]) == LENGTH - 1)
    assert [one.truncated for one in generator.generate([exact, exact + " red"], 1)] == [False, True]


@pytest.mark.parametrize("options", [{}, {"strategy": "sequence"}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("paradigm", ["pusl", "one2one", "one2seq"])
def test_windows_read_the_whole_text_at_any_batch_size(paradigm, options):
    model = generators(paradigm)
    if paradigm == "one2one" and options.get("strategy") == "sequence":
        pytest.skip("One2One has no sequence")
    found = model.generate(TEXTS, 3, long="window", batch_size=1, **options)
    assert not any(one.truncated for one in found)
    assert found == model.generate(TEXTS, 3, long="window", batch_size=64, **options)
    assert [*found[3:]] == [*model.generate(TEXTS[3:], 3, **options)]  # short texts as ever
    for one in found[:3]:
        assert one.scores == sorted(one.scores, reverse=True) and all(score <= 0 for score in one.scores)


def test_a_score_is_the_probability_that_any_window_has_the_phrase(generator):
    """Against windows that are generated for one by one."""
    text = TEXTS[0]
    ids = encode_whole(tokenizer(), [text])[0]
    pieces = text_windows(ids, LENGTH - 1)
    assert len(pieces) > 2 and {i for piece in pieces for i in piece} == set(ids)
    missing: dict[str, float] = {}
    for piece in pieces:
        one = generator._search([[*piece, generator.tokens.eos]], _search(6), None)[0]
        for phrase in one:
            name = generator._spell(phrase.ids)[0]
            missing[name] = missing.get(name, 1.0) * (1 - math.exp(phrase.logprob))
    best = sorted(missing.items(), key=lambda pair: pair[1])[:6]
    found = generator.generate(text, 6, long="window")[0]
    assert found.keyphrases == [name for name, _ in best]
    assert found.scores == pytest.approx([math.log(1 - value) for _, value in best], rel=1e-6)


def _search(k):
    from pusl.decoding.generator import FLOOR, Search

    return Search(k, "beam", False, 8, None, FLOOR)


def test_tiny_probabilities_and_wrong_words(generator):
    assert any_of([-60.0, -60.0]) == pytest.approx(-60 + math.log(2))
    assert any_of([-900.0, -901.0]) == pytest.approx(-900 + math.log1p(math.exp(-1)))
    with pytest.raises(InputError, match="long 'all' is unknown"):
        generator.generate("a", 1, long="all")
    with pytest.raises(InputError, match="allow_repeats"):
        generator.generate("a", 1, long="window", allow_repeats=True)


def test_known_phrases_are_not_given_again_by_any_window(generator):
    first = generator.generate(TEXTS[0], 4, long="window")[0].keyphrases
    again = generator.generate(TEXTS[0], 4, long="window", known=[first[:2]])[0].keyphrases
    assert not set(first[:2]) & set(again) and len(again) == 4


@pytest.mark.slow
def test_the_command_marks_counts_and_searches(tmp_path, capsys):
    made = checkpoint()
    meta = {"paradigm": "pusl", "defaults": {"max_source_length": LENGTH, "max_phrase_tokens": 5, "k": 3, "mu": 1.5}}
    save_checkpoint(tmp_path / "m", made.model, made.tokenizer, meta)
    rows = [{"id": str(i), "text": text} for i, text in enumerate(TEXTS) if text]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = ["generate", "--model", str(tmp_path / "m"), "--input", str(tmp_path / "in.jsonl"), "-k", "3", "--quiet"]
    assert main([*base, "--output", str(tmp_path / "cut.jsonl"), "--workers", "1"]) == 0
    assert "3 were cut, being longer than the model reads ('truncated'); see --long window" in capsys.readouterr().out
    cut = [json.loads(line) for line in (tmp_path / "cut.jsonl").read_text().splitlines()]
    assert [row.get("truncated", False) for row in cut] == [True, True, True, False, False]
    for number, workers in enumerate(("1", "2")):
        flags = ["--long", "window", "--workers", workers, "--shard-size", str(1 + number)]
        assert main([*base, "--output", str(tmp_path / f"window{number}.jsonl"), *flags]) == 0
    assert "were cut" not in capsys.readouterr().out
    assert (tmp_path / "window0.jsonl").read_bytes() == (tmp_path / "window1.jsonl").read_bytes()
    whole = [json.loads(line) for line in (tmp_path / "window0.jsonl").read_text().splitlines()]
    assert "truncated" not in whole[0] and whole[0] != cut[0] and whole[3:] == cut[3:]
    folder = tmp_path / "saved"
    for kind in ("parquet", "csv"):
        flags = ["--workers", "1", "--dataset", str(folder), *(["--force"] if folder.exists() else [])]
        assert main([*base, "--output", str(tmp_path / f"cut.{kind}"), *flags]) == 0
        again = datasets.load_from_disk(folder)
        assert [again[name][:] for name in ("id", "keyphrases")] == [
            [row[name] for row in cut] for name in ("id", "keyphrases")
        ]
        assert again["truncated"][:] == [True, True, True, False, False]
    assert main([*base, "--output", str(tmp_path / "other.jsonl"), "--dataset", str(folder)]) == 2
    assert main([*base, "--output", str(tmp_path / "other.jsonl"), "--dataset", str(tmp_path / "m"), "--force"]) == 2
    assert (tmp_path / "m" / "pusl.json").is_file() and not (tmp_path / "other.jsonl").exists()
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "cut.parquet")["truncated"].to_pylist()[:4] == [
        True,
        True,
        True,
        False,
    ]
