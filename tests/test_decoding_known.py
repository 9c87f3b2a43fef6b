"""Keyphrases that an item has already: a PUSL model goes on behind them, nobody repeats them, every file has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding_models import IDS, checkpoint, documents, random_t5, random_texts

from eval.files import InputError, read_rows, write_rows
from eval.normalize import normalize
from pusl import KeyphraseGenerator
from pusl.checkpoint import save_checkpoint
from pusl.cli import main
from pusl.decoding.engine import Engine
from pusl.decoding.phrases import search_phrases
from pusl.decoding.plans import Merged, Ranked
from pusl.decoding.sequences import Rules


@pytest.mark.parametrize("plan", [Ranked, Merged])
def test_scores_are_those_of_the_whole_model_behind_the_known_phrases(plan: Any) -> None:
    model, texts = random_t5(5), random_texts(5, 3)
    known = [
        [[5], [6, 7]],
        [],
        [[9, 9, 9], [8], [10, 11], [12], [13, 14, 15], [16], [17]],
    ]  # longer than the beam is wide
    plans: list[Any] = search_phrases(
        Engine(model), texts, Rules(IDS, True, 4, 3), lambda _: plan(4, str), beams=6, slots=2, known=known
    )
    for text, before, found in zip(texts, known, plans, strict=True):
        context = [IDS.start, IDS.bok]
        for phrase in before:
            context += [*phrase, IDS.eok, IDS.bok]
        first = found.found if plan is Ranked else found.first
        assert len(first) >= 4
        for phrase in first.values():
            target = torch.tensor([[*context, *phrase.ids, IDS.eok]])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([text]), decoder_input_ids=target[:, :-1]).logits
            right = logits.log_softmax(-1)[0].gather(1, target[0, 1:, None])[len(context) - 1 :]
            assert phrase.logprob == pytest.approx(float(right.sum()), abs=1e-4)


@pytest.mark.parametrize("strategy", ["beam", "sequence", "merge"])
def test_known_phrases_steer_and_never_come_again(strategy: str) -> None:
    generator, texts = KeyphraseGenerator(checkpoint("pusl"), threads=1), documents(6)
    plain = generator.generate(texts, 4, strategy=strategy)
    known = [[phrase.upper() for phrase in one.keyphrases[:2]] for one in plain]
    more = generator.generate(texts, 4, strategy=strategy, known=known)
    for had, one in zip(known, more, strict=True):
        assert not {normalize(phrase) for phrase in had} & {normalize(phrase) for phrase in one.keyphrases}
        assert len(one.keyphrases) == 4 or one.exhausted
    assert [one.scores for one in more] != [one.scores for one in plain]
    assert generator.generate(texts, 4, strategy=strategy, known=[[]] * 6) == plain
    assert generator.generate(texts[::-1], 4, strategy=strategy, known=known[::-1], batch_size=2)[::-1] == more


@pytest.mark.parametrize("paradigm", ["one2one", "one2seq", "groov"])
def test_other_paradigms_leave_known_phrases_out(paradigm: str) -> None:
    generator, texts = KeyphraseGenerator(checkpoint(paradigm), threads=1), documents(6)
    plain = generator.generate(texts, 5)
    more = generator.generate(texts, 5, known=[one.keyphrases[:1] for one in plain])
    for one, other in zip(plain, more, strict=True):
        assert other.keyphrases[: len(one.keyphrases) - 1] == one.keyphrases[1:]


def test_what_does_not_fit_is_refused() -> None:
    generator = KeyphraseGenerator(checkpoint("pusl"), threads=1)
    with pytest.raises(InputError, match="known has 1 entries for 2 texts"):
        generator.generate(["a drone", "a lamp"], 2, known=[["drone"]])
    for more in ({"temperature": 1.0}, {"allow_repeats": True}):
        with pytest.raises(InputError, match="known keyphrases"):
            generator.generate(["a drone"], 2, known=[["drone"]], **more)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "pusl"
    one = checkpoint("pusl")
    save_checkpoint(folder, one.model, one.tokenizer, {"paradigm": "pusl", "defaults": {"max_phrase_tokens": 5}})
    return folder


def complete(model: Path, items: Path, *more: str) -> list[dict[str, Any]] | int:
    output = items.parent / "out.jsonl"
    words = ["generate", "--model", str(model), "--input", str(items), "--output", str(output), "-k", "3", "--quiet"]
    code = main([*words, "--workers", "1", "--force", "--complete", *more])
    return [row for _, row in read_rows(output)] if code == 0 else code


def test_the_command_completes_items_of_every_file_kind(model: Path, tmp_path: Path) -> None:
    texts = [*documents(3), documents(1)[0]]  # the last has the first one's text, but other keyphrases
    known = [["drone"], [], ["red shoe", "lamp"], ["camera"]]
    rows: list[dict[str, Any]] = [
        {"id": f"a{i}", "text": text, "keyphrases": had} for i, (text, had) in enumerate(zip(texts, known, strict=True))
    ]
    write_rows(tmp_path / "items.jsonl", rows)
    found = complete(model, tmp_path / "items.jsonl")
    expected = KeyphraseGenerator.from_pretrained(model, threads=1).generate(texts, 3, known=known)
    assert isinstance(found, list)
    assert [row["keyphrases"] for row in found] == [one.keyphrases for one in expected]
    assert found[0]["scores"] != found[3]["scores"], "equal texts with different keyphrases are different tasks"
    write_rows(tmp_path / "items.parquet", rows)
    assert complete(model, tmp_path / "items.parquet") == found
    tags = [{"id": row["id"], "text": row["text"], "tags": "; ".join(row["keyphrases"])} for row in rows]
    write_rows(tmp_path / "items.csv", tags)
    assert complete(model, tmp_path / "items.csv", "--keyphrases-column", "tags", "--separator", ";") == found


def test_the_command_says_what_is_wrong(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text(
        json.dumps({"id": "a", "text": "a drone", "keyphrases": "drone"}) + "\n"
        + json.dumps({"id": "b", "text": "a lamp"}) + "\n"
    )  # fmt: skip
    found = complete(model, items)
    assert isinstance(found, list) and [row["id"] for row in found] == ["b"]
    assert "'keyphrases' must be a list of strings, found a string" in (tmp_path / "out.jsonl.rejects").read_text()
    (tmp_path / "items.csv").write_text("id,text\na,a drone\n")
    for path, more, message in (
        (tmp_path / "items.csv", [], "has no column 'keyphrases' (found: id, text). Name it with --keyphrases-column"),
        (items, ["--calibrate", str(items)], "--complete and --calibrate"),
        (items, ["--allow-repeats"], "known keyphrases need a search"),
    ):
        capsys.readouterr()
        assert complete(model, path, *more) == 2
        assert message in capsys.readouterr().err
