"""The simulated shop: shape of the paper's section 3, known truth, same seed same bytes."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from pusl.cli import main
from pusl.data.grammar import PATTERNS, Brand, count_queries, invent_brands, make_item, queries_of, text_of
from pusl.data.selection import draw_interactions, power_law_counts, zipf_weights
from pusl.data.simulate import SimulateConfig, simulate
from pusl.data.vocabulary import product_types
from pusl.examples import read_examples
from pusl_eval.files import InputError
from pusl_eval.normalize import normalize

pytestmark = pytest.mark.slow  # whole catalogs

FILES = ("train", "dev", "test", "complete")


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    out = tmp_path_factory.mktemp("shop") / "data"
    about = simulate(out, SimulateConfig(items=6000, seed=3))
    return out, about, {name: list(read_examples(out / f"{name}.jsonl")) for name in FILES}


def test_the_quadrants_are_those_of_the_paper(shop):
    _, about, _ = shop
    shares = about["train"]["quadrants"]
    assert shares["rare-narrow"] == pytest.approx(0.74, abs=0.03)
    assert shares["hot-narrow"] == pytest.approx(0.15, abs=0.03)
    assert shares["hot-diverse"] == pytest.approx(0.11, abs=0.03)
    assert shares["rare-diverse"] == 0
    assert about["train"]["cv"] > 1.2
    assert about["train"]["right_per_item"] == pytest.approx(12, abs=1)


def test_files_fit_together(shop):
    out, _, files = shop
    assert [len(files[name]) for name in FILES] == [4800, 600, 600, 600]
    assert [example.id for example in files["test"]] == [example.id for example in files["complete"]]
    everyone = [example for name in ("train", "dev", "test") for example in files[name]]
    assert len({example.id for example in everyone}) == len({normalize(example.text) for example in everyone}) == 6000
    for example in everyone:
        assert example.keyphrases and len(set(example.keyphrases)) == len(example.keyphrases)
        assert example.counts == sorted(example.counts, reverse=True) and min(example.counts) >= 1
    universe = set((out / "universe.txt").read_text().splitlines())
    assert universe.issuperset(phrase for example in files["complete"] for phrase in example.keyphrases)


def test_complete_holds_what_is_right_and_noise_stays_outside(shop):
    _, _, files = shop
    wrong = total = 0
    for seen, truth in zip(files["test"], files["complete"], strict=True):
        assert truth.text == seen.text and truth.extra["observed"] == seen.keyphrases and truth.group == seen.group
        right = set(truth.keyphrases)
        wrong += sum(count for phrase, count in zip(seen.keyphrases, seen.counts, strict=True) if phrase not in right)
        total += seen.interactions
    assert wrong / total == pytest.approx(0.02, abs=0.01)
    assert 6 <= np.median([len(truth.keyphrases) for truth in files["complete"]]) <= 15


def test_popular_items_show_more_of_their_truth(shop):
    _, _, files = shop
    shares = {"hot-diverse": [], "rare-narrow": []}
    for seen, truth in zip(files["test"], files["complete"], strict=True):
        if seen.group in shares:
            shares[seen.group].append(len(set(seen.keyphrases) & set(truth.keyphrases)) / len(truth.keyphrases))
    assert np.mean(shares["hot-diverse"]) > 3 * np.mean(shares["rare-narrow"])


def test_new_entities_come_in_the_test_period_only(shop):
    _, _, files = shop
    assert {example.extra["entity"] for example in files["train"] + files["dev"]} == {"known"}
    new = [example for example in files["complete"] if example.extra["entity"] == "new"]
    assert len(new) / len(files["complete"]) == pytest.approx(0.2, abs=0.05)
    earlier = {word for example in files["train"] for word in example.text.lower().split()}
    for example in new:
        brand = example.keyphrases[0].split()[0]  # the first pattern is `{brand} {type}`
        assert brand not in earlier
    assert max(e.timestamp for e in files["train"]) < min(e.timestamp for e in files["test"])


def test_same_seed_same_bytes(tmp_path):
    config = SimulateConfig(items=300, seed=5)
    simulate(tmp_path / "a", config)
    simulate(tmp_path / "b", config)
    simulate(tmp_path / "c", SimulateConfig(items=300, seed=6))
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert digest(tmp_path / "a")["train.jsonl"] != digest(tmp_path / "c")["train.jsonl"]


def test_knobs_do_what_they_say(tmp_path):
    def run(name, **knobs):
        return simulate(tmp_path / name, SimulateConfig(items=1500, seed=1, **knobs))["train"]

    base = run("base")
    assert run("flat", popularity_exponent=1.3)["observed_per_item"] > base["observed_per_item"]
    assert run("many", queries_per_item=24)["right_per_item"] > 1.7 * base["right_per_item"]
    assert run("head", concentration=6.0)["observed_per_item"] < base["observed_per_item"]
    clean = tmp_path / "clean"
    simulate(
        clean, SimulateConfig(items=300, noise=0.0, types=3, brands=4, new_entities=0, dev_items=20, test_items=40)
    )
    truth = {example.id: set(example.keyphrases) for example in read_examples(clean / "complete.jsonl")}
    assert len(truth) == 40
    assert all(truth[example.id].issuperset(example.keyphrases) for example in read_examples(clean / "test.jsonl"))
    assert {example.extra["department"] for example in read_examples(clean / "train.jsonl")} == {
        kind.department for kind in product_types()[:3]
    }


def test_every_right_query_can_be_read_off_the_text_or_the_type():
    rng = np.random.default_rng(0)
    brands = invent_brands(rng, 20, set())
    for kind in product_types():
        item = make_item(kind, brands[int(rng.random() * 20)], float(rng.random()), rng.random(16).tolist())
        known = {*text_of(item).lower().replace(",", " ").split(), "for"}
        for words in (kind.name, kind.shelf, *kind.other_names):
            known.update(words.split())
        for query in queries_of(item, PATTERNS):
            assert known.issuperset(query.split()), (text_of(item), query)
        assert len(queries_of(item, PATTERNS)) <= sum(count_queries(item, pattern) for pattern in PATTERNS)


def test_an_item_by_hand():
    kind = next(kind for kind in product_types() if kind.name == "kettle")
    item = make_item(kind, Brand("zeto", ("x2",)), 0.0, [0.0] * 13 + [0.0, 0.0, 0.0])
    assert text_of(item) == "Zeto X2 Pro electric kettle, glass, 1 liter, black"
    assert queries_of(item, PATTERNS[:4]) == ["zeto kettle", "kettle", "zeto x2", "electric kettle"]
    assert queries_of(item, ["{name}", "{size} {feature} {type}", "{type} for {use}"]) == [
        "water boiler", "tea kettle", "1 liter electric kettle",
    ]  # fmt: skip


def test_power_law_counts_have_the_right_shares():
    uniforms = (np.arange(100_000) + 0.5) / 100_000
    counts = power_law_counts(uniforms, 2.0, 1000)
    harmonic = sum(n**-2.0 for n in range(1, 1001))
    for n in (1, 2, 10):
        assert (counts == n).mean() == pytest.approx(n**-2.0 / harmonic, abs=1e-4)
    assert counts.max() == 1000 or (counts <= 1000).all()


def test_interactions_stay_inside_their_item_and_follow_the_weights():
    sizes, interactions = np.array([2, 1, 3]), np.array([40_000, 5, 0])
    weights = zipf_weights(sizes, np.array([1.0, 2.0, 1.0]), np.array([1.0, 0.0, 0.0, 2.0, 0.0, 1.0]))
    assert weights.tolist() == [0.5, 1.0, 1.0, 1 / 3, 1.0, 0.5]
    counts = draw_interactions(np.random.default_rng(0), sizes, weights, interactions)
    assert counts[2] == 5 and counts[3:].sum() == 0 and counts[:2].sum() == 40_000
    assert counts[1] / 40_000 == pytest.approx(2 / 3, abs=0.01)


BAD_FLAGS = {
    "--items 2": "'items' is 2; it must be at least 3",
    "--items 100 --test-items 95": "nothing is left to train on",
    "--noise 1.5": "'noise' is 1.5; it must be at most",
    "--noise nan": "'noise' is nan",
    "--noise -0.1": "'noise' is -0.1; it must be at least 0",
    "--new-entities 2": "'new_entities' is 2.0",
    "--seed -1": "'seed' is -1",
    "--types 100000": "at most 140",
    "--popularity-exponent inf": "'popularity_exponent' is inf",
    "--items many": "invalid int value",
    "--itmes 5": "unrecognized arguments",
}


@pytest.mark.parametrize("flags", BAD_FLAGS)
def test_bad_flags(tmp_path, capsys, flags):
    try:
        code = main(["data", "simulate", "--out", str(tmp_path / "out"), *flags.split()])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and BAD_FLAGS[flags] in error and error.count("\n") <= 2
    assert list(tmp_path.iterdir()) == []


def test_existing_output_needs_force_and_other_files_stay(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["data", "simulate", "--out", str(out), "--items", "50"]
    assert main(command) == 0
    before = digest(out)
    (out / "mine.txt").write_text("mine")
    assert main([*command, "--seed", "1"]) == 2
    assert "pass --force" in capsys.readouterr().err
    assert {**before, "mine.txt": digest(out)["mine.txt"]} == digest(out)
    assert main([*command, "--seed", "1", "--force"]) == 0
    assert (out / "mine.txt").read_text() == "mine" and digest(out)["train.jsonl"] != before["train.jsonl"]
    assert json.loads((out / "simulation.json").read_text())["config"]["seed"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="is a file; expected a folder"):
        simulate(tmp_path / "out", SimulateConfig(items=10))
    with pytest.raises(InputError, match="is a file; expected a folder"):
        simulate(tmp_path / "out" / "deeper", SimulateConfig(items=10))


def test_the_current_folder_and_a_link_can_be_the_output(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert main(["data", "simulate", "--out", ".", "--items", "20"]) == 0
    assert main(["data", "simulate", "--out", str(tmp_path / "link"), "--items", "30", "--force"]) == 0
    expected = {"complete.jsonl", "dev.jsonl", "simulation.json", "test.jsonl", "train.jsonl", "universe.txt"}
    assert {path.name for path in (tmp_path / "here").iterdir()} == expected
    assert len(list(read_examples("train.jsonl"))) == 24
