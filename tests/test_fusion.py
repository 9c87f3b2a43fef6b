"""Sources fused into one ranking: the parts against their oracles, and the folder as a model like any other."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from decoding_models import WORDS, checkpoint
from server_process import Server

from pusl import KeyphraseGenerator
from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.simple import Neighbors, NeighborsConfig
from pusl.catalog.run import generate_catalog
from pusl.checkpoint import load_checkpoint, save_checkpoint, save_labels
from pusl.cli import main
from pusl.fusion.features import Pooler
from pusl.fusion.fused import FusedGenerator
from pusl.fusion.learn import fuse, parse_sources, update
from pusl.fusion.memory import Memory, TextView
from pusl.fusion.ranker import Ranker, fit_ranker, fit_trees, platt
from pusl.fusion.sources import Query
from pusl_eval.files import InputError

NOUNS = ("shoe", "boot", "drone", "camera", "phone", "lamp", "table")


def rows(count: int, seed: int) -> list[dict]:
    """Items that name a thing and a color; labels are the thing, and often its combination with the color."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        color, noun = chance.choice(WORDS[:3]), chance.choice(NOUNS)
        text = f"{color} {noun} {' '.join(chance.choices(WORDS, k=chance.randrange(1, 6)))}"
        labels = [noun] + [f"{color} {noun}"] * (chance.random() < 0.7) + ["gift"] * (chance.random() < 0.3)
        made.append({"id": f"{seed}-{number}", "text": text, "keyphrases": labels})
    return made


def write(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fused model of a (random) generator, neighbors and the text, with its files."""
    home = tmp_path_factory.mktemp("fusion")
    made = checkpoint()
    save_checkpoint(home / "pusl", made.model, made.tokenizer, {"paradigm": "pusl", **made.meta})
    save_labels(home / "pusl", NOUNS)
    write(home / "train.jsonl", rows(150, 1))
    write(home / "dev.jsonl", rows(80, 2))
    write(home / "test.jsonl", rows(30, 3))
    fuse(
        home / "train.jsonl", home / "dev.jsonl", [f"pusl={home / 'pusl'}", "knn", "text"], home / "fused",
        depth=15,
    )  # fmt: skip
    return home


@pytest.fixture(scope="module")
def fused(folder: Path) -> FusedGenerator:
    found = KeyphraseGenerator.from_pretrained(folder / "fused")
    assert isinstance(found, FusedGenerator)
    return found


@pytest.mark.slow
def test_neighbors_are_those_of_the_brute_force() -> None:
    items = [(row["id"], row["text"], row["keyphrases"]) for row in rows(120, 4)]
    memory = Memory(items, neighbors=10)
    oracle = Neighbors(NeighborsConfig(neighbors=10))
    oracle.fit(TrainingData([text for _, text, _ in items], memory.labels, memory.matrix))
    texts = [row["text"] for row in rows(25, 5)] + ["nothing in common"]
    numbers, scores = oracle.rank(texts, 40)
    for votes, row, expected in zip(memory.votes(texts), numbers, scores, strict=True):
        found = {label: vote[0] for label, vote in votes.items()}
        assert found == pytest.approx({int(n): s for n, s in zip(row, expected, strict=True) if n >= 0}, abs=1e-5)


def test_a_memory_that_grew_is_one_that_was_built_at_once(tmp_path: Path) -> None:
    items = [(row["id"], row["text"], row["keyphrases"]) for row in rows(60, 6)]
    whole, grown = Memory(items), Memory(items[:40]).extended(items[40:])
    grown.save(tmp_path / "memory")
    loaded = Memory.load(tmp_path / "memory")
    for other in (grown, loaded):
        assert other.labels == whole.labels
        assert (other.matrix != whole.matrix).nnz == 0 and abs(other.features - whole.features).max() == 0
        assert other.given_if_in_text.tolist() == whole.given_if_in_text.tolist()
    assert list(loaded.items) == items


def test_labels_in_a_text_are_counted_up_to_their_endings() -> None:
    memory = Memory([("a", "two red shoes", ["red shoe"]), ("b", "a red shoe", ["x"]), ("c", "lamp", ["lamp"])])
    label = memory.forms["red shoe"]
    assert memory.standing_in(TextView("Red  SHOES on sale")) == [label]
    assert (memory.in_text[label], memory.given[label]) == (2, 1)


@pytest.mark.slow
def test_scripts_without_spaces_have_neighbors_and_labels_in_the_text(tmp_path: Path) -> None:
    things = ("无人机", "登山靴", "台灯", "相机")
    colors = ("红色的", "轻便的", "防水的", "黑色的", "便宜的")
    items = [
        {"id": f"{part}-{n}", "text": f"{colors[n % 5]}{things[n % 4]}，第{n}号，包邮", "keyphrases": [things[n % 4]]}
        for part, count in (("train", 60), ("dev", 60)) for n in range(count)
    ]  # fmt: skip
    write(tmp_path / "train.jsonl", items[:60])
    write(tmp_path / "dev.jsonl", items[60:])
    report = fuse(tmp_path / "train.jsonl", tmp_path / "dev.jsonl", ["knn", "svm", "text"], tmp_path / "fused")
    assert all(report["percent"][name]["B@1"] > 95 for name in ("knn", "svm", "text", "fused"))
    (tmp_path / "queries.txt").write_text("折叠无人机\n", encoding="utf-8")
    model = FusedGenerator.load(tmp_path / "fused", universe=tmp_path / "queries.txt")
    found = model.generate(["新款折叠无人机"], 3)[0].keyphrases
    assert found[0] == "无人机" and "折叠无人机" in found  # a label, and an entry of the universe
    assert model.explain("新款折叠无人机", ["无人机"])[0]["offsets"] == [[4, 7]]


def test_words_beside_signs_and_in_other_widths() -> None:
    memory = Memory([("a", "相机 usb充电器", ["usb充电器", "カメラ"]), ("b", "lamp", ["lamp"])])
    view = TextView("new iPhone 手机壳 sale, ｶﾒﾗ")
    assert {"iphone 手机壳", "手机", "カメラ", "new iphone 手机壳 sale"} <= set(view.as_written())
    assert view.holds("カメラ") and view.share("カメラ") == 1.0 and memory.standing_in(view) == [memory.forms["カメラ"]]
    assert TextView("น้ำแข็ง").holds("น้ำ")
    assert Pooler(memory, [], 15).whole("usb充电器", Query(["text"]), 0)


def test_numbers_are_given_only_from_a_universe_or_the_text(tmp_path: Path) -> None:
    items = [("a", "a novel", ["1984"]), ("b", "another novel", ["orwell"])]
    write(tmp_path / "train.jsonl", [{"id": i, "text": text, "keyphrases": labels} for i, text, labels in items])
    fuse(tmp_path / "train.jsonl", None, ["knn", "text"], tmp_path / "fused")
    (tmp_path / "universe.txt").write_text("747\nboeing 747\nc\n")
    model = FusedGenerator.load(tmp_path / "fused")
    options = {"vocabulary": "closed", "universe": tmp_path / "universe.txt"}
    assert set(model.generate(["boeing 747 in c"], 5, **options)[0].keyphrases) == {"747", "boeing 747", "c"}


def test_trees_are_those_of_scikit_learn_and_survive_a_file(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    features = chance.normal(size=(600, 4))
    features[chance.random(features.shape) < 0.2] = np.nan
    features[:, 3] = np.nan  # a column without a value
    right = (np.nan_to_num(features[:, 0]) + chance.normal(size=600) > 0.3).astype(float)
    names = ["knn:score", "knn:reciprocal_rank", "words", "best_rank"]
    ranker, held_out = fit_ranker(features, right, np.repeat(np.arange(100), 6), names)  # compares with scikit-learn
    ranker.save(tmp_path / "ranker.npz")
    again = Ranker.load(tmp_path / "ranker.npz")
    assert again.log_odds(features).tolist() == ranker.log_odds(features).tolist()
    assert fit_trees(features, right, names)(features).tolist() == fit_trees(features, right, names)(features).tolist()
    chances = ranker.probabilities(held_out)
    assert abs(chances.mean() - right.mean()) < 0.02
    (tmp_path / "bad.npz").write_bytes(b"no ranker")
    with pytest.raises(InputError, match="the ranker of a fused model is damaged"):
        Ranker.load(tmp_path / "bad.npz")


def test_platt_finds_the_line() -> None:
    chance = np.random.default_rng(1)
    log_odds = chance.normal(size=20_000) * 2
    right = (chance.random(20_000) < 1 / (1 + np.exp(-(0.5 * log_odds - 1)))).astype(float)
    assert platt(log_odds, right) == pytest.approx((0.5, -1.0), abs=0.05)


def test_reciprocal_ranks_by_hand() -> None:
    ranker = Ranker(["a:score", "a:reciprocal_rank", "b:score", "b:reciprocal_rank"])
    features = np.array([[9.0, 1.0, np.nan, 0.0], [8.0, 1 / 2, 5.0, 1 / 4]])
    assert ranker.log_odds(features) == pytest.approx([1 / 61, 1 / 62 + 1 / 64])
    assert not ranker.learned


@pytest.mark.slow
def test_the_fused_ranking_is_better_than_its_sources(folder: Path) -> None:
    report = json.loads((folder / "fused" / "fusion.json").read_text())
    percent = report["percent"]
    assert report["learned"] and report["dev_items"] == 80
    assert all(percent["fused"]["F1@O"] > percent[name]["F1@O"] + 5 for name in ("pusl", "knn", "text"))
    assert set(report["without"]) == {"pusl", "knn", "text"}
    assert report["reliability"]["gap"] < 15


@pytest.mark.slow
def test_predictions_are_the_same_in_every_batch(fused: FusedGenerator) -> None:
    texts = [row["text"] for row in rows(20, 7)]
    whole = fused.generate(texts, 4)
    assert fused.generate(texts[::-1], 4, batch_size=3)[::-1] == whole
    assert [fused.generate([text], 4)[0] for text in texts[:5]] == whole[:5]
    for one in whole:
        assert len(one.keyphrases) == len(set(one.keyphrases)) <= 4
        assert one.scores == sorted(one.scores, reverse=True) and all(0 <= score <= 1 for score in one.scores)
    assert fused.generate([" "], 3)[0].keyphrases == []


@pytest.mark.slow
def test_known_keyphrases_are_used_and_not_given_again(fused: FusedGenerator) -> None:
    texts = [row["text"] for row in rows(10, 8)]
    first = fused.generate(texts, 3)
    told = fused.generate(texts, 3, known=[one.keyphrases[:1] for one in first])
    for one, other in zip(first, told, strict=True):
        assert one.keyphrases[0] not in other.keyphrases
    assert fused.told is not None


@pytest.mark.slow
def test_a_closed_vocabulary_min_score_and_wrong_options(fused: FusedGenerator, tmp_path: Path) -> None:
    (tmp_path / "universe.txt").write_text("lamp\nred lamp\ntable\ngreen drone\n")
    texts = [row["text"] for row in rows(12, 9)]
    for one in fused.generate(texts, 4, vocabulary="closed", universe=tmp_path / "universe.txt"):
        assert set(one.keyphrases) <= {"lamp", "red lamp", "table", "green drone"}
    (tmp_path / "other.txt").write_text("blue boot\nshoe\n")
    for one in fused.generate(texts, 4, vocabulary="closed", universe=tmp_path / "other.txt"):
        assert set(one.keyphrases) <= {"blue boot", "shoe"}
    again = fused.generate(texts, 4, vocabulary="closed", universe=tmp_path / "universe.txt")
    assert any(one.keyphrases for one in again)
    preferred = fused.generate(texts, 4, vocabulary="prefer", universe=tmp_path / "universe.txt")
    assert preferred != fused.generate(texts, 4)
    assert all(score >= 0.4 for one in fused.generate(texts, 4, min_score=0.4) for score in one.scores)
    for options, message in (
        ({"vocabulary": "closed"}, "needs a universe"), ({"temperature": 1.0}, "no temperature"),
        ({"known": [[]]}, "1 entries for 12 texts"), ({"vocabulary": "some"}, "unknown"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            fused.generate(texts, 4, **options)


@pytest.mark.slow
def test_phrases_of_a_universe_are_spelled_as_in_its_file(fused: FusedGenerator, tmp_path: Path) -> None:
    (tmp_path / "universe.txt").write_text("LAMP\nRed Lamp\ntable\n  Green  Drone \n")
    texts = [row["text"] for row in rows(12, 8)]
    for vocabulary in ("closed", "prefer"):
        found = fused.generate(texts, 4, vocabulary=vocabulary, universe=tmp_path / "universe.txt")
        given = {phrase for one in found for phrase in one.keyphrases}
        assert "LAMP" in given and not given & {"lamp", "red lamp", "green drone"}
        if vocabulary == "closed":
            assert given <= {"LAMP", "Red Lamp", "table", "Green  Drone"}


@pytest.mark.slow
def test_a_source_that_proposes_nothing_can_be_left_out(tmp_path: Path) -> None:
    for name, seed in (("train", 1), ("dev", 2)):
        records = [{**row, "keyphrases": [f"about {row['keyphrases'][0]}"]} for row in rows(80, seed)]
        write(tmp_path / f"{name}.jsonl", records)
    report = fuse(tmp_path / "train.jsonl", tmp_path / "dev.jsonl", ["knn", "text"], tmp_path / "fused")
    assert report["percent"]["text"]["B@1"] == report["without"]["knn"]["B@1"] == 0.0
    assert report["percent"]["fused"]["B@1"] > 50


def test_a_missing_package_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "napkinxc", None)  # as if it were not installed
    with pytest.raises(InputError, match="needs napkinXC: pip install"):
        parse_sources(["svm", "plt"])


@pytest.mark.slow
def test_predictions_for_other_items_are_refused(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dev = rows(120, 2)
    other = write(tmp_path / "other.jsonl", [{"id": f"z{row['id']}", "keyphrases": ["lamp"]} for row in dev])
    half = write(tmp_path / "half.jsonl", [{"id": row["id"], "keyphrases": ["lamp"]} for row in dev[:60]])
    with pytest.raises(InputError, match=r"other.jsonl: has predictions for none of the \d+ labeled items"):
        fuse(folder / "train.jsonl", folder / "dev.jsonl", [f"x={other}", "knn"], tmp_path / "none")
    assert not (tmp_path / "none").exists()
    fuse(folder / "train.jsonl", folder / "dev.jsonl", [f"x={half}", "knn"], tmp_path / "fused")
    assert "half.jsonl: has predictions for only 60 of the" in caplog.text
    generate_catalog(
        tmp_path / "fused", folder / "test.jsonl", tmp_path / "out.jsonl", 3, workers=1, progress=False,
        predictions={"x": str(other)},
    )  # fmt: skip
    assert "other.jsonl: has predictions for none of the first 30 items" in caplog.text


@pytest.mark.slow
def test_any_phrase_gets_a_probability(fused: FusedGenerator) -> None:
    texts = [row["text"] for row in rows(4, 12)]
    first = fused.generate(texts, 2)
    scored = fused.score(texts, [[*one.keyphrases, "never heard of", ""] for one in first])
    for one, found in zip(first, scored, strict=True):
        assert found.probabilities is not None and found.probabilities[:2] == pytest.approx(one.scores)
        assert found.probabilities[2] < min(one.scores) and found.probabilities[3] == 0.0
        assert found.scores[0] == pytest.approx(np.log(one.scores[0]))
    assert fused.told is not None
    known = [row["keyphrases"][:1] for row in rows(4, 12)]
    told = fused.generate(texts, 2, known=known)
    again = fused.score(texts, [one.keyphrases for one in told], known=known)
    for one, found in zip(told, again, strict=True):
        assert found.probabilities == pytest.approx(one.scores)


@pytest.mark.slow
def test_a_file_of_candidates_gets_probabilities(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("shoe\nlamp\ngift\n")
    words = ["--model", str(folder / "fused"), "--input", str(folder / "test.jsonl"), "--workers", "1", "--quiet"]
    output = tmp_path / "scores.jsonl"
    assert main(["score", *words, "--candidates", str(tmp_path / "all.txt"), "--output", str(output)]) == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(found) == 30
    for row, item in zip(found, rows(30, 3), strict=True):
        assert row["probabilities"] == sorted(row["probabilities"], reverse=True)
        if "shoe" in item["keyphrases"]:
            assert row["keyphrases"][0] == "shoe"


@pytest.mark.slow
def test_explain_names_the_sources(fused: FusedGenerator) -> None:
    text = "red shoe camera"
    marks = fused.explain(text, ["shoe", "red shoe", "never proposed"])
    assert marks[0]["present"] and marks[0]["seen"] and {"knn", "text"} <= set(marks[0]["sources"])
    assert marks[2]["sources"] == {} and marks[2]["seen"] is False
    assert all(rank >= 1 for mark in marks for rank in mark["sources"].values())


@pytest.mark.slow
def test_a_fused_folder_serves_a_catalog(folder: Path) -> None:
    for name, options in (("one", {"shard_size": 30}), ("two", {"shard_size": 7, "batch_size": 2})):
        generate_catalog(
            folder / "fused", folder / "test.jsonl", folder / f"{name}.jsonl", 3, explain=True, workers=1,
            progress=False, force=True, **options,
        )  # fmt: skip
    assert (folder / "one.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()
    first = json.loads((folder / "one.jsonl").read_text().splitlines()[0])
    assert first["explain"][0]["sources"]
    generate_catalog(
        folder / "fused", folder / "test.jsonl", folder / "more.jsonl", 3, complete=True, workers=1, progress=False
    )
    for line, row in zip((folder / "more.jsonl").read_text().splitlines(), rows(30, 3), strict=True):
        assert not set(json.loads(line)["keyphrases"]) & set(row["keyphrases"])


@pytest.mark.slow
def test_a_new_label_can_be_proposed_at_once(folder: Path, tmp_path: Path) -> None:
    fuse(folder / "train.jsonl", folder / "dev.jsonl", ["knn", "text"], tmp_path / "fused", ablate=False)
    new = [{"id": f"n{n}", "text": f"hoverboard {n} electric", "keyphrases": ["hoverboard"]} for n in range(3)]
    before = FusedGenerator.load(tmp_path / "fused").generate(["electric hoverboard"], 5)[0]
    assert "hoverboard" not in before.keyphrases
    assert main(["fuse", "--update", str(tmp_path / "fused"), "--train", str(write(tmp_path / "new.jsonl", new))]) == 0
    after = FusedGenerator.load(tmp_path / "fused").generate(["electric hoverboard"], 5)[0]
    assert after.keyphrases[0] == "hoverboard"
    assert [path.name for path in (tmp_path / "fused").glob("memory*")] == ["memory-1"]
    again = update(tmp_path / "fused", tmp_path / "new.jsonl")
    assert again[0] == 153  # the same ids replace themselves


@pytest.mark.slow
def test_without_enough_dev_items_reciprocal_ranks_are_fused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fuse", "--train", str(folder / "train.jsonl"), "--sources", "knn", "text", "--out"]
    assert main([*words, str(tmp_path / "plain")]) == 0
    assert "no --dev; at least 50 are needed" in capsys.readouterr().err
    write(tmp_path / "few.jsonl", rows(9, 11))
    assert main([*words, str(tmp_path / "few"), "--dev", str(tmp_path / "few.jsonl")]) == 0
    assert "has 9 labeled items" in capsys.readouterr().err
    fused = FusedGenerator.load(tmp_path / "plain")
    assert not fused.ranker.learned
    assert fused.generate(["red shoe"], 2)[0].keyphrases[0] in ("shoe", "red shoe")


@pytest.mark.slow
def test_junk_is_left_out_and_new_phrases_have_to_earn_their_place(folder: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    junk = ["s", "x", "moni", "shoe shoe", "!"]

    def predictions(records: list[dict]) -> list[dict]:
        return [{"id": r["id"], "keyphrases": [*chance.sample(junk, 5), "gift idea"]} for r in records]

    write(tmp_path / "dev_llm.jsonl", predictions(rows(80, 2)))
    write(tmp_path / "test_llm.jsonl", predictions(rows(30, 3)))
    for dev in (folder / "dev.jsonl", None):
        name = "learned" if dev else "plain"
        fuse(folder / "train.jsonl", dev, ["knn", f"llm={tmp_path / 'dev_llm.jsonl'}"], tmp_path / name, ablate=False)
        output = tmp_path / f"{name}.jsonl"
        generate_catalog(
            tmp_path / name, folder / "test.jsonl", output, 20, predictions={"llm": str(tmp_path / "test_llm.jsonl")},
            explain=True, workers=1, progress=False,
        )  # fmt: skip
        found = [json.loads(line) for line in output.read_text().splitlines()]
        assert not {phrase for row in found for phrase in row["keyphrases"]} & {*junk, "gift idea"}
    with pytest.raises(InputError, match="no source is called 'gpt'"):
        FusedGenerator.load(tmp_path / "plain", predictions={"gpt": tmp_path / "test_llm.jsonl"})


@pytest.mark.slow
def test_right_predictions_from_a_file_are_learned_from(folder: Path, tmp_path: Path) -> None:
    def predictions(records: list[dict]) -> list[dict]:
        return [{"id": r["id"], "keyphrases": r["keyphrases"][:1], "scores": [0.9]} for r in records]

    write(tmp_path / "dev_llm.jsonl", predictions(rows(80, 2)))
    write(tmp_path / "test_llm.jsonl", predictions(rows(30, 3)))
    sources = ["knn", f"llm={tmp_path / 'dev_llm.jsonl'}"]
    report = fuse(folder / "train.jsonl", folder / "dev.jsonl", sources, tmp_path / "fused")
    assert report["without"]["llm"]["F1@O"] < report["percent"]["fused"]["F1@O"]
    fused = FusedGenerator.load(tmp_path / "fused", predictions={"llm": tmp_path / "test_llm.jsonl"})
    records = rows(30, 3)
    found = fused.generate([r["text"] for r in records], 1, ids=[r["id"] for r in records])
    assert np.mean([one.keyphrases[0] == r["keyphrases"][0] for one, r in zip(found, records, strict=True)]) > 0.9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "'nonsense' is unknown"), (["knn", "knn"], "twice"), (["x=/none"], "expected a model"),
        ([], "at least one"), (["a/b=/none"], "a name is made of"),
    ],
)  # fmt: skip
def test_wrong_sources_are_named(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_sources(words)


@pytest.mark.slow
def test_wrong_targets_and_items_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pass --force"):
        fuse(folder / "train.jsonl", None, ["knn"], folder / "fused")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        fuse(folder / "train.jsonl", None, ["knn"], tmp_path / "full")
    with pytest.raises(InputError, match="are in the training file too"):
        fuse(folder / "train.jsonl", folder / "train.jsonl", ["knn"], tmp_path / "out")
    assert not list(tmp_path.glob(".out*")) and not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="is a fused model itself"):
        fuse(folder / "train.jsonl", None, [f"a={folder / 'fused'}"], tmp_path / "out")
    with pytest.raises(InputError):
        load_checkpoint(folder / "fused")
    assert main(["fuse", "--train", "x", "--update", "y", "--sources", "knn"]) == 2
    assert main(["fuse", "--train", "x", "--out", "y"]) == 2
    fuse(folder / "train.jsonl", None, ["knn"], tmp_path / "fused")
    inside = write(tmp_path / "fused" / "train.jsonl", rows(5, 0))
    with pytest.raises(InputError, match="would be replaced"):
        fuse(inside, None, ["knn"], tmp_path / "fused", force=True)
    assert inside.exists()


@pytest.mark.slow
def test_a_service_answers_from_a_fused_folder(folder: Path) -> None:
    with Server(folder / "fused") as server:
        server.wait_ready()
        facts = server.call("GET", "/v1/model")[1]
        assert (facts["paradigm"], facts["scores"], list(facts["strategies"])) == ("fused", "probability", ["fused"])
        assert (facts["device"], facts["precision"]) == ("cpu", "fp32")
        result = server.ask(["red shoe camera"], k=3, explain=True)[1]["results"][0]
        assert result["keyphrases"] and all(0 <= score <= 1 for score in result["scores"])
        assert result["marks"][0]["sources"]
        told = server.ask(["red shoe camera"], k=3, known=[result["keyphrases"][:1]])[1]["results"][0]
        assert result["keyphrases"][0] not in told["keyphrases"]
        assert "proposed by" in server.call("GET", "/")[1]
