"""Scores of given phrases: the model's own numbers, the same in every batch, and a file that survives a kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from decoding_models import IDS, WORDS, checkpoint, documents, random_t5, random_texts

from pusl import paradigms
from pusl.catalog.candidates import CandidateLists, score_catalog
from pusl.checkpoint import save_checkpoint
from pusl.decoding.calibration import Calibration
from pusl.decoding.cpu.engine import Engine
from pusl.decoding.generator import KeyphraseGenerator
from pusl.decoding.scoring import PhraseTree, score_trees
from pusl_eval.files import InputError


def random_phrases(seed: int, count: int) -> list[list[list[int]]]:
    """Ids of up to 60 phrases per item, many with common beginnings, some blank."""
    chance = random.Random(seed)

    def phrase() -> list[int]:
        return [chance.randrange(2, 30) for _ in range(chance.randrange(0, 5))]

    return [[phrase() for _ in range(chance.randrange(0, 60))] for _ in range(count)]


def plain_score(
    model: torch.nn.Module, text: list[int], opening: list[int], phrase: list[int], ends: list[int]
) -> float:
    """One (text, phrase) pair through the Hugging Face model."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([text]), decoder_input_ids=torch.tensor([[*opening, *phrase]])).logits[0]
    logprobs = logits.double().log_softmax(-1)[len(opening) - 1 :]
    return float(logprobs[range(len(phrase)), phrase].sum() + logprobs[-1, ends].logsumexp(0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
@pytest.mark.parametrize(
    ("opening", "ends"), [([0, 97], [98]), ([0], [1]), ([0], [99, 1]), ([0, *range(2, 40), 97], [98])]
)
def test_scores_are_those_of_plain_pairs(kind: str, opening: list[int], ends: list[int]) -> None:
    model, texts, phrases = random_t5(1, kind), random_texts(2, 6), random_phrases(3, 6)
    trees = [PhraseTree(opening, some) for some in phrases]
    for text, some, found in zip(texts, phrases, score_trees(Engine(model), texts, trees, ends), strict=True):
        for phrase, score in zip(some, found, strict=True):
            expected = plain_score(model, text, opening, phrase, ends) if phrase else -float("inf")
            assert score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_scores_are_bit_equal_at_any_batch_size(precision: str) -> None:
    engine, texts = Engine(random_t5(4), precision), random_texts(5, 23, 70)
    trees = [PhraseTree([0, IDS.bok], some) for some in random_phrases(6, 23)]
    whole = score_trees(engine, texts, trees, [IDS.eok], 64)
    for slots in (1, 2, 7):
        assert score_trees(engine, texts, trees, [IDS.eok], slots) == whole
    backwards = score_trees(engine, texts[::-1], trees[::-1], [IDS.eok], 5)
    assert backwards[::-1] == whole


@pytest.mark.parametrize("paradigm", ["pusl", "one2one"])
def test_generate_and_score_agree(paradigm: str, tmp_path: Path) -> None:
    phrases = [f"{one} {other}" for one in WORDS for other in WORDS if one < other]
    (tmp_path / "universe.txt").write_text("\n".join(phrases))  # spelled by the ids that the tokenizer chooses
    generator, texts = KeyphraseGenerator(checkpoint(paradigm), universe=tmp_path / "universe.txt"), documents(6)
    found = generator.generate(texts, 8, vocabulary="closed")
    scored = generator.score(texts, [one.keyphrases for one in found])
    for one, scores in zip(found, scored, strict=True):
        assert len(one.keyphrases) == 8
        assert scores.scores == pytest.approx(one.scores, abs=1e-4)
        assert scores.normalized == pytest.approx(one.normalized, abs=1e-4)


def test_a_sequence_model_scores_its_first_phrase_whatever_follows() -> None:
    generator, text = KeyphraseGenerator(checkpoint("one2seq")), documents(1)[0]
    ids = generator.tokenizer("red shoe", add_special_tokens=False)["input_ids"]
    source = generator.tokenizer(text)["input_ids"]
    tokens = generator.tokens
    expected = plain_score(generator.checkpoint.model, source, [tokens.start], ids, [tokens.sep, tokens.eos])
    assert generator.score([text], ["red shoe"])[0].scores[0] == pytest.approx(expected, abs=1e-4)


def test_known_keyphrases_stand_before_the_candidates() -> None:
    generator, text = KeyphraseGenerator(checkpoint()), documents(1)[0]
    alone = generator.score([text], [["blue boot"]])[0].scores
    told = generator.score([text], [["blue boot"]], known=[["red shoe"]])[0].scores
    tokens, encode = generator.tokens, lambda phrase: generator.tokenizer(phrase, add_special_tokens=False)["input_ids"]
    opening = [tokens.start, tokens.bok, *encode("red shoe"), tokens.eok, tokens.bok]
    expected = plain_score(
        generator.checkpoint.model, generator.tokenizer(text)["input_ids"], opening, encode("blue boot"), [tokens.eok]
    )
    assert told[0] == pytest.approx(expected, abs=1e-4) and told != alone


def test_one_list_for_all_blanks_and_calibration() -> None:
    generator, texts = KeyphraseGenerator(checkpoint()), documents(3)
    curve = Calibration((-20.0, 0.0), (0.0, 1.0))
    shared = generator.score(texts, ["lamp", " ", "red shoe"], calibration=curve)
    assert [one.scores for one in shared] == [
        one.scores for one in generator.score(texts, [["lamp", " ", "red shoe"]] * 3)
    ]
    assert shared[0].scores[1] == -float("inf")
    assert shared[0].probabilities == [curve(score) for score in shared[0].scores]
    assert generator.score([], ["lamp"]) == []
    with pytest.raises(InputError, match="2 lists for 3 texts"):
        generator.score(texts, [["lamp"], ["table"]])
    with pytest.raises(InputError, match="list of phrases"):
        generator.score(texts, "lamp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = checkpoint()
    save_checkpoint(tmp_path / "model", made.model, made.tokenizer, {"paradigm": "pusl", **made.meta})
    rows = [{"id": f"i{number}", "text": text} for number, text in enumerate(documents(40))]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "all.txt").write_text("\n".join(WORDS) + "\n")
    chance = random.Random(1)
    some = [{"id": row["id"], "candidates": chance.sample(WORDS, 4)} for row in rows[:-1]]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return tmp_path


def score(folder: Path, candidates: str, output: str, **options: object) -> list[dict]:
    score_catalog(
        folder / "model", folder / "items.jsonl", folder / candidates, folder / output, workers=1, progress=False,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    return [json.loads(line) for line in (folder / output).read_text().splitlines()]


def test_a_file_of_scores_holds_every_candidate_best_first(folder: Path) -> None:
    rows = score(folder, "some.jsonl", "out.jsonl")
    generator = KeyphraseGenerator.from_pretrained(folder / "model")
    given = CandidateLists(str(folder / "some.jsonl")).of([row["id"] for row in rows])
    assert [row["id"] for row in rows] == [f"i{number}" for number in range(40)]
    assert rows[-1] == {"id": "i39", "keyphrases": [], "scores": [], "reason": "no candidates"}
    for row, phrases, text in zip(rows[:-1], given, documents(40), strict=False):
        assert sorted(row["keyphrases"]) == sorted(phrases)
        assert row["scores"] == sorted(row["scores"], reverse=True)
        assert row["scores"] == pytest.approx(generator.score([text], [row["keyphrases"]])[0].scores, abs=1e-4)
    shared = score(folder, "all.txt", "all.jsonl", shard_size=7, batch_size=3)
    assert shared == score(folder, "all.txt", "other.jsonl", shard_size=40)
    assert all(len(row["keyphrases"]) == len(WORDS) for row in shared)


def test_calibrated_scores_come_with_probabilities(folder: Path) -> None:
    lines = [{"id": f"d{n}", "text": text, "keyphrases": list(WORDS[:6])} for n, text in enumerate(documents(12, 9))]
    (folder / "dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = score(folder, "all.txt", "out.jsonl", calibrate=folder / "dev.jsonl")
    assert all(len(row["probabilities"]) == len(row["scores"]) for row in rows)
    assert all(0 <= value <= 1 for row in rows for value in row["probabilities"])


def test_bad_candidates_are_refused(folder: Path) -> None:
    (folder / "bad.jsonl").write_text('{"candidates": ["x"]}\n')
    with pytest.raises(InputError, match=r"bad.jsonl:1: no 'id'"):
        score(folder, "bad.jsonl", "out.jsonl")
    (folder / "bad.jsonl").write_text('{"id": "i1", "candidates": [3]}\n')
    with pytest.raises(InputError, match="expected a list of strings in 'candidates'"):
        score(folder, "bad.jsonl", "out.jsonl")
    (folder / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="one phrase a line"):
        score(folder, "empty.txt", "out.jsonl")


def test_csv_and_compressed_candidates_are_read_too(folder: Path) -> None:
    (folder / "some.csv").write_text('id,candidates\ni0,lamp|table\ni1,"[""red shoe""]"\n')
    assert CandidateLists(str(folder / "some.csv")).of(["i1", "i0", "i2"]) == [["red shoe"], ["lamp", "table"], []]


@pytest.mark.slow
@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_bytes(folder: Path) -> None:
    whole = folder / "whole.jsonl"
    score(folder, "all.txt", "whole.jsonl", shard_size=2)
    command = [sys.executable, "-m", "pusl", "score", "--quiet", "--workers", "1", "--shard-size", "2", "--model",
               "model", "--input", "items.jsonl", "--candidates", "all.txt", "--output", "killed.jsonl"]  # fmt: skip
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    while process.poll() is None and not list((folder / "killed.jsonl.parts").glob("part-*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "killed.jsonl").read_bytes() == whole.read_bytes()


def test_every_paradigm_can_score() -> None:
    for paradigm in paradigms.names():
        scores = KeyphraseGenerator(checkpoint(paradigm)).score(documents(2), ["lamp", "red shoe"])
        assert all(value < 0 for one in scores for value in one.scores)
