"""Keyphrases that an item has already: a PUSL model goes on behind them, nobody repeats them, every file has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding_models import IDS, checkpoint, documents, random_t5, random_texts

from pusl import KeyphraseGenerator
from pusl.checkpoint import save_checkpoint
from pusl.cli import main
from pusl.decoding.cpu.engine import Engine
from pusl.decoding.plans import Ranked
from pusl.decoding.rules import Rules
from pusl.decoding.search import search_phrases
from pusl_eval.files import InputError, read_rows, write_rows
from pusl_eval.normalize import normalize


def test_scores_are_those_of_the_whole_model_behind_the_known_phrases() -> None:
    model, texts = random_t5(5), random_texts(5, 3)
    known = [
        [[5], [6, 7]],
        [],
        [[9, 9, 9], [8], [10, 11], [12], [13, 14, 15], [16], [17]],
    ]  # longer than the beam is wide
    plans: list[Any] = search_phrases(
        Engine(model), texts, Rules(IDS, True, 4, 3), lambda _: Ranked(4, str), beams=6, slots=2, known=known
    )
    for text, before, found in zip(texts, known, plans, strict=True):
        context = [IDS.start, IDS.bok]
        for phrase in before:
            context += [*phrase, IDS.eok, IDS.bok]
        assert len(found.found) >= 4
        for phrase in found.found.values():
            target = torch.tensor([[*context, *phrase.ids, IDS.eok]])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([text]), decoder_input_ids=target[:, :-1]).logits
            right = logits.log_softmax(-1)[0].gather(1, target[0, 1:, None])[len(context) - 1 :]
            assert phrase.logprob == pytest.approx(float(right.sum()), abs=1e-4)


@pytest.mark.parametrize("strategy", ["beam", "sequence"])
def test_known_phrases_steer_and_never_come_again(strategy: str) -> None:
    generator, texts = KeyphraseGenerator(checkpoint("pusl")), documents(6)
    plain = generator.generate(texts, 4, strategy=strategy)
    known = [[phrase.upper() for phrase in one.keyphrases[:2]] for one in plain]
    more = generator.generate(texts, 4, strategy=strategy, known=known)
    for had, one in zip(known, more, strict=True):
        assert not {normalize(phrase) for phrase in had} & {normalize(phrase) for phrase in one.keyphrases}
        assert len(one.keyphrases) == 4 or one.exhausted
    assert [one.scores for one in more] != [one.scores for one in plain]
    assert generator.generate(texts, 4, strategy=strategy, known=[[]] * 6) == plain
    assert generator.generate(texts[::-1], 4, strategy=strategy, known=known[::-1], batch_size=2)[::-1] == more


def test_one2one_gives_what_follows_the_known_phrases() -> None:
    generator, texts = KeyphraseGenerator(checkpoint("one2one")), documents(6)
    plain = generator.generate(texts, 20, num_beams=64)
    more = generator.generate(texts, 4, known=[one.keyphrases[:9] for one in plain], num_beams=64)
    assert [one.keyphrases for one in more] == [one.keyphrases[9:13] for one in plain]
    assert all(len(one.keyphrases) == 4 for one in more)


@pytest.mark.parametrize("paradigm", ["one2seq", "groov"])
def test_sequences_go_on_until_they_have_k_further_phrases(paradigm: str) -> None:
    generator, texts = KeyphraseGenerator(checkpoint(paradigm, seed=3)), documents(12)
    plain = [one.keyphrases for one in generator.generate(texts, 30)]
    more = [one.keyphrases for one in generator.generate(texts, 1, known=[phrases[:1] for phrases in plain])]
    assert any(more) and all(given == phrases[1:2] for given, phrases in zip(more, plain, strict=True) if phrases[1:])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["beam", "sequence"])
def test_a_search_is_as_wide_as_what_is_known(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phrases that must not come again would fill a beam of k; nobody's width depends on its batch mates."""
    widths: list[tuple[int, int]] = []

    def spy(engine: Any, texts: Any, *args: Any, beams: int, **more: Any) -> Any:
        widths.append((beams, len(texts)))
        return search_phrases(engine, texts, *args, beams=beams, **more)

    monkeypatch.setattr("pusl.decoding.engines.search_phrases", spy)
    generator = KeyphraseGenerator(checkpoint("pusl"))
    known = [[], ["drone"], [f"red {i}" for i in range(12)], ["lamp"], [f"blue {i}" for i in range(300)]]
    found = generator.generate(documents(5), 3, known=known, strategy=strategy)
    base = 5 if strategy == "beam" else 4
    assert widths[:4] == [(base, 1), (base + 8, 2), (base + 16, 1), (64, 1)]
    alone = [
        generator.generate([text], 3, known=[had], strategy=strategy)[0]
        for text, had in zip(documents(5), known, strict=True)
    ]
    assert found == alone


def test_a_long_phrase_takes_no_room_from_the_others() -> None:
    generator = KeyphraseGenerator(checkpoint("pusl"))
    assert len(generator._known_ids(["red shoe " * 200, "boot", "Boot", " ", "lamp"])) == 2


def test_what_does_not_fit_is_refused() -> None:
    generator = KeyphraseGenerator(checkpoint("pusl"))
    with pytest.raises(InputError, match="known has 1 entries for 2 texts"):
        generator.generate(["a drone", "a lamp"], 2, known=[["drone"]])
    for wrong in (["drone"], [["drone", None]]):
        with pytest.raises(InputError, match="a list of keyphrases for each text"):
            generator.generate(["a drone"], 2, known=wrong)  # type: ignore[arg-type]
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


@pytest.mark.slow
def test_the_command_completes_items_of_every_file_kind(model: Path, tmp_path: Path) -> None:
    texts = [*documents(3), documents(1)[0]]  # the last has the first one's text, but other keyphrases
    known = [["drone"], [], ["red shoe", "lamp"], ["camera"]]
    rows: list[dict[str, Any]] = [
        {"id": f"a{i}", "text": text, "keyphrases": had} for i, (text, had) in enumerate(zip(texts, known, strict=True))
    ]
    write_rows(tmp_path / "items.jsonl", rows)
    found = complete(model, tmp_path / "items.jsonl")
    expected = KeyphraseGenerator.from_pretrained(model).generate(texts, 3, known=known)
    assert isinstance(found, list)
    assert [row["keyphrases"] for row in found] == [one.keyphrases for one in expected]
    assert found[0]["scores"] != found[3]["scores"], "equal texts with different keyphrases are different tasks"
    write_rows(tmp_path / "items.parquet", rows)
    assert complete(model, tmp_path / "items.parquet") == found
    tags = [{"id": row["id"], "text": row["text"], "tags": "; ".join(row["keyphrases"])} for row in rows]
    write_rows(tmp_path / "items.csv", tags)
    assert complete(model, tmp_path / "items.csv", "--keyphrases-column", "tags", "--separator", ";") == found
    # pandas writes its index under a blank name, which must not be taken for counts
    lines = [f'{i},{row["id"]},"{row["text"]}","{row["tags"]}"' for i, row in enumerate(tags)]
    (tmp_path / "pandas.csv").write_text("\n".join([",id,text,tags", *lines]) + "\n")
    assert complete(model, tmp_path / "pandas.csv", "--keyphrases-column", "tags", "--separator", ";") == found


def test_the_command_says_what_is_wrong(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text(
        json.dumps({"id": "a", "text": "a drone", "keyphrases": "drone"}) + "\n"
        + json.dumps({"id": "b", "text": "a lamp"}) + "\n"
    )  # fmt: skip
    found = complete(model, items)
    assert isinstance(found, list) and [row["id"] for row in found] == ["b"]
    assert "'keyphrases' must be a list of strings, found a string" in (tmp_path / "out.jsonl.rejects").read_text()
    assert "1 have no keyphrases of their own" in capsys.readouterr().out
    (tmp_path / "half.csv").write_text('id,text,keyphrases\na,a drone,"[""\\ud83d x""]"\nb,a lamp,lamp\n')
    found = complete(model, tmp_path / "half.csv")
    assert isinstance(found, list) and [row["id"] for row in found] == ["b"]
    assert "half of a surrogate pair" in (tmp_path / "out.jsonl.rejects").read_text()
    (tmp_path / "items.csv").write_text("id,text\na,a drone\n")
    for path, more, message in (
        (tmp_path / "items.csv", [], "has no column 'keyphrases' (found: id, text). Name it with --keyphrases-column"),
        (items, ["--calibrate", str(items)], "--complete and --calibrate"),
        (items, ["--allow-repeats"], "--complete searches for different keyphrases"),
        (items, ["--temperature", "0.5"], "omit --temperature"),
        (items, ["--keyphrases-column", "tags"], "no item has 'tags' (found: id, text, keyphrases). Name it with"),
    ):
        capsys.readouterr()
        assert complete(model, path, *more) == 2
        assert message in capsys.readouterr().err
