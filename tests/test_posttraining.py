"""PUSL+PT: which items are chosen, what is added, what is rejected, and that it trains, stops and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pusl.checkpoint import load_labels, read_meta
from pusl.cli import main
from pusl.examples import Example, read_examples
from pusl.training import TrainConfig, train
from pusl.training.posttraining import Selection, complete_example, draw, mean_keyphrases, parse_sources, select
from pusl_eval.files import InputError, write_rows
from pusl_eval.normalize import normalize

COLORS, THINGS = ("red", "blue", "green", "black"), ("shoe", "boot", "hat", "coat")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 items: every third one has four keyphrases, the others one. μ = 2."""
    rows = []
    for number in range(48):
        color, thing = COLORS[number % 4], THINGS[number // 4 % 4]
        phrases = [thing, f"{color} {thing}", color, f"{thing} {color}"] if number % 3 == 0 else [thing]
        rows.append({"id": f"i{number}", "text": f"a {color} {thing}, no. {number}", "keyphrases": phrases})
    path = tmp_path_factory.mktemp("catalog") / "train.jsonl"
    write_rows(path, rows)
    return path


@pytest.fixture(scope="module")
def model(catalog: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "pusl"
    train(
        TrainConfig(
            model="scratch:tiny",
            train=str(catalog),
            out=str(out),
            vocab_size=330,
            batch_size=12,
            max_steps=80,
            order="frequency",  # with a fixed order Algorithm 1 seldom repeats itself, so that items can be completed
        )
    )
    return out


def test_mean_counts_different_keyphrases(tmp_path: Path) -> None:
    write_rows(tmp_path / "t.jsonl", [{"id": "a", "text": "x", "keyphrases": ["Hat", "hat", "cap"]},
                                      {"id": "b", "text": "y", "keyphrases": ["cap"]}])  # fmt: skip
    assert mean_keyphrases(tmp_path / "t.jsonl") == 1.5


def test_completed_item_must_exceed_the_mean() -> None:
    sparse = Example("a", "t", ["Drone"])
    assert complete_example(sparse, ["drone", " toy "], 2.0) is None  # two different ones are not more than μ = 2
    kept = complete_example(sparse, ["drone", "toy", "gift"], 2.0)
    assert kept is not None and kept.keyphrases == ["Drone", "toy", "gift"] and kept.extra["observed"] == ["Drone"]


@pytest.mark.parametrize("text", ["", "raw,made-up", "synth"])
def test_unknown_sources_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--sources"):
        parse_sources(text)


def test_draw_is_a_fixed_sample_in_file_order() -> None:
    examples = [Example(f"i{n}", "t", ["x"]) for n in range(100)]
    chosen = [e.id for e in draw(iter(examples), 10, seed=1)]
    assert chosen == sorted(chosen, key=lambda i: int(i[1:])) and len(set(chosen)) == 10
    assert chosen == [e.id for e in draw(reversed(examples), 10, seed=1)][::-1]
    assert chosen != [e.id for e in draw(examples, 10, seed=2)]


@pytest.mark.slow
def test_selection_takes_rich_items_and_completes_sparse_ones(catalog: Path, model: Path, tmp_path: Path) -> None:
    report = select(model, catalog, tmp_path / "s", Selection(k=4), workers=1)
    assert report["mu"] == 2.0 and report["raw"]["kept"] == 16
    part = report["synthetic"]
    assert part["candidates"] == 32 and part["kept"] + part["rejected"] == 32 and part["kept"] > 0
    original = {e.id: e for e in read_examples(catalog)}
    chosen = list(read_examples(tmp_path / "s" / "selected.jsonl"))
    assert len(chosen) == 16 + part["kept"]
    for example in chosen:
        assert len({normalize(p) for p in example.keyphrases}) == len(example.keyphrases) > report["mu"]
        assert example.keyphrases[: len(original[example.id].keyphrases)] == original[example.id].keyphrases
    again = (tmp_path / "s" / "selected.jsonl").stat().st_mtime_ns
    assert select(model, catalog, tmp_path / "s", Selection(k=4), workers=1) == report
    assert (tmp_path / "s" / "selected.jsonl").stat().st_mtime_ns == again  # a finished selection is used again


@pytest.mark.slow
def test_sample_cap_is_shared_by_the_sources(catalog: Path, model: Path, tmp_path: Path) -> None:
    report = select(model, catalog, tmp_path / "s", Selection(samples=10, k=4), workers=1)
    part = report["synthetic"]
    assert report["raw"]["kept"] == 5 and part["kept"] == 5 and part["candidates"] == 5 + part["rejected"]
    report = select(model, catalog, tmp_path / "r", Selection(samples=10, sources="raw"), workers=1)
    assert report["raw"]["kept"] == 10 and "synthetic" not in report


@pytest.mark.parametrize(
    ("samples", "completes", "raw", "synthetic"),
    [
        (10, 32, 5, 5),
        (5, 32, 3, 2),  # an odd number is not rounded up
        (40, 32, 16, 24),  # 16 rich items are fewer than half
        (20, 4, 16, 4),  # nearly all synthetic items are rejected
        (100, 32, 16, 32),  # there are no more
    ],
)
def test_a_source_that_is_short_is_made_up_by_the_other(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    samples: int, completes: int, raw: int, synthetic: int,
) -> None:  # fmt: skip
    def complete(model, sparse, mu, folder, turn, options, workers, device):  # type: ignore[no-untyped-def]
        return {n: complete_example(e, ["x", "y", "z"], mu) if n < completes else None for n, e in sparse.items()}

    monkeypatch.setattr("pusl.training.posttraining._complete", complete)
    report = select("no-model", catalog, tmp_path / "s", Selection(samples=samples))
    assert (report["raw"]["kept"], report["synthetic"]["kept"]) == (raw, synthetic)
    sources = [example.extra["source"] for example in read_examples(tmp_path / "s" / "selected.jsonl")]
    assert sources == ["raw"] * raw + ["synthetic"] * synthetic


@pytest.mark.slow
def test_rejected_items_are_replaced_while_there_are_candidates(catalog: Path, model: Path, tmp_path: Path) -> None:
    every = select(model, catalog, tmp_path / "all", Selection(k=3, sources="synthetic"), workers=1)["synthetic"]
    assert 0 < every["kept"] < every["candidates"] == every["available"] == 32, "some are rejected"
    report = select(
        model, catalog, tmp_path / "some", Selection(k=3, sources="synthetic", samples=every["kept"] - 1), workers=1
    )
    part = report["synthetic"]
    assert part["kept"] == every["kept"] - 1 < part["candidates"] < 32
    chosen = {e.id: e.keyphrases for e in read_examples(tmp_path / "some" / "selected.jsonl")}
    assert chosen.items() < {e.id: e.keyphrases for e in read_examples(tmp_path / "all" / "selected.jsonl")}.items()
    # A run that was killed before its end tries the same items, and does not generate again.
    first = (tmp_path / "some" / "selected.jsonl").read_bytes()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "some").glob("generated-*.jsonl")}
    assert len(times) > 1
    (tmp_path / "some" / "selection.json").unlink()
    (tmp_path / "some" / "selected.jsonl").unlink()
    options = Selection(k=3, sources="synthetic", samples=every["kept"] - 1)
    assert select(model, catalog, tmp_path / "some", options, workers=1) == report
    assert first == (tmp_path / "some" / "selected.jsonl").read_bytes()
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "some").glob("generated-*.jsonl")}


@pytest.mark.slow
def test_another_model_can_complete_the_items(catalog: Path, model: Path, tmp_path: Path, capsys) -> None:
    train(
        TrainConfig(
            paradigm="one2seq", model="scratch:tiny", train=str(catalog), out=str(tmp_path / "o2s"), vocab_size=330,
            batch_size=12, max_steps=2,
        )
    )  # fmt: skip
    options = Selection(k=4, sources="synthetic", generator=str(model))
    select(tmp_path / "o2s", catalog, tmp_path / "s", options, workers=1)
    select(model, catalog, tmp_path / "own", Selection(k=4, sources="synthetic"), workers=1)
    assert (tmp_path / "s" / "selected.jsonl").read_bytes() == (tmp_path / "own" / "selected.jsonl").read_bytes()
    words = ["post-train", "--model", str(model), "--train", str(catalog), "--out", str(tmp_path / "pt")]
    assert main([*words, "--generator", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err and not (tmp_path / "pt").exists()


@pytest.mark.slow
def test_resuming_with_train_reads_the_dev_file_of_renamed_columns(catalog: Path, model: Path, tmp_path: Path) -> None:
    rows = [{"id": e.id, "title": e.text, "tags": e.keyphrases} for e in read_examples(catalog)]
    write_rows(tmp_path / "own.jsonl", rows)
    words = ["post-train", "--model", str(model), "--train", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "pt")]
    words += ["--dev", str(tmp_path / "own.jsonl"), "--text-column", "title", "--keyphrases-column", "tags"]
    words += ["--sources", "raw", "--max-steps", "2", "--batch-size", "12", "--eval-every", "1"]
    assert main(words) == 0
    scored = json.loads((tmp_path / "pt" / "run.json").read_text())
    record = {**scored, "status": "running"}
    (tmp_path / "pt" / "run.json").write_text(json.dumps(record))
    assert main(["train", "--resume", "--out", str(tmp_path / "pt")]) == 0
    after = json.loads((tmp_path / "pt" / "run.json").read_text())
    assert after["status"] == "finished" and after["best"]["B@2mu"] == scored["best"]["B@2mu"] > 0


@pytest.mark.slow
def test_the_command_trains_again_and_keeps_what_belongs_to_the_data(
    catalog: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pt"
    words = ["post-train", "--model", str(model), "--train", str(catalog), "--out", str(out), "--max-steps", "3"]
    words += ["--batch-size", "12", "--generate-workers", "1", "--k", "4"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "raw: 16 items with more than μ = 2.00" in shown and "synthetic:" in shown and "rejected" in shown
    meta, run = read_meta(out), json.loads((out / "run.json").read_text())
    assert meta["paradigm"] == "pusl" and meta["defaults"]["mu"] == 2.0
    assert run["config"]["lr"] == pytest.approx(json.loads((model / "run.json").read_text())["config"]["lr"] / 2)
    assert load_labels(out) == load_labels(model)
    assert main(words) == 2 and "finished run" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0


@pytest.mark.slow
def test_restarts_and_marks_follow_the_first_run(catalog: Path, tmp_path: Path) -> None:
    first = TrainConfig(
        model="scratch:tiny", train=str(catalog), out=str(tmp_path / "m"), vocab_size=330, batch_size=12, max_steps=2,
        restart=0.5, learn_bok=True,
    )  # fmt: skip
    train(first)
    (tmp_path / "m" / "run.json").unlink()  # a model that was copied without the record of its run
    words = ["post-train", "--model", str(tmp_path / "m"), "--train", str(catalog), "--out", str(tmp_path / "pt")]
    assert main([*words, "--max-steps", "1", "--batch-size", "12", "--sources", "raw"]) == 0
    second = json.loads((tmp_path / "pt" / "run.json").read_text())["config"]
    assert second["restart"] == 0.5 and second["learn_bok"] is True


@pytest.mark.slow
def test_a_model_that_training_made_worse_is_kept_as_it_was(model: Path, catalog: Path, tmp_path: Path, capsys) -> None:
    words = ["post-train", "--model", str(model), "--train", str(catalog), "--dev", str(catalog), "--sources", "raw"]
    words += ["--max-steps", "6", "--batch-size", "12", "--eval-every", "3"]
    assert main([*words, "--out", str(tmp_path / "worse"), "--lr", "0.5"]) == 0
    said = capsys.readouterr().out
    assert "post-training did not help: dev B@2mu was" in said and "holds the model as it was" in said
    record = json.loads((tmp_path / "worse" / "run.json").read_text())
    assert record["best"]["step"] == 0 and record["best"]["B@2mu"] == record["history"][0]["B@2mu"] > 0
    assert (tmp_path / "worse" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert load_labels(tmp_path / "worse") == load_labels(model)


@pytest.mark.slow
def test_a_model_that_training_made_better_replaces_it(catalog: Path, tmp_path: Path, capsys) -> None:
    young = TrainConfig(
        model="scratch:tiny",
        train=str(catalog),
        out=str(tmp_path / "young"),
        vocab_size=330,
        batch_size=12,
        max_steps=4,
    )
    train(young)
    words = ["post-train", "--model", str(tmp_path / "young"), "--train", str(catalog), "--dev", str(catalog)]
    words += ["--sources", "raw", "--max-steps", "60", "--batch-size", "12", "--eval-every", "30", "--lr", "0.01"]
    assert main([*words, "--out", str(tmp_path / "better")]) == 0
    assert "did not help" not in capsys.readouterr().out
    record = json.loads((tmp_path / "better" / "run.json").read_text())
    assert record["best"]["step"] > 0 and record["best"]["B@2mu"] > record["history"][0]["B@2mu"]


@pytest.mark.slow
def test_wrong_flags_are_refused_before_the_slow_part(model: Path, catalog: Path, tmp_path: Path, capsys) -> None:
    words = ["post-train", "--model", str(model), "--train", str(catalog), "--out", str(tmp_path / "pt")]
    assert main([*words, "--dev", "nowhere.jsonl"]) == 2 and "nowhere.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "pt").exists()
