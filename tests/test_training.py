"""Training for real on a tiny catalog: every paradigm learns, refusals, the files of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from xml.etree import ElementTree

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from pusl.checkpoint import load_checkpoint, load_labels
from pusl.cli import main
from pusl.decoding.generator import KeyphraseGenerator
from pusl.training import TrainConfig, TrainingError, train
from pusl.training.data import PreparedData, prepare
from pusl.training.train_config import resolve
from pusl_eval.files import InputError, write_rows

COLORS = {"red": "rot", "blue": "blau", "green": "grün", "black": "schwarz"}
THINGS = {"shoe": "shoes", "boot": "boots", "hat": "hats", "coat": "coats"}
STEPS = 100  # every paradigm knows most of the rule by then, whatever the seed and the processor


def phrases_of(color, thing):
    """The right keyphrases of an item."""
    return [f"{color} {THINGS[thing]}", THINGS[thing], COLORS[color]]


def catalog(path, count=96, start=0):
    """Items whose keyphrases follow from their text by a simple rule."""
    rows = []
    for number in range(start, start + count):
        color, thing = list(COLORS)[number % 4], list(THINGS)[number // 4 % 4]
        phrases = phrases_of(color, thing)[: 2 + number // 16 % 2]
        rows.append({"id": f"i{number}", "text": f"a {color} {thing}, no. {number}", "keyphrases": phrases})
    write_rows(path, rows, force=True)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return catalog(folder / "train.jsonl"), catalog(folder / "dev.jsonl", 12, 1000)


def settings(files, out, **more):
    train_file, dev_file = files
    given = {
        "model": "scratch:tiny", "train": train_file, "dev": dev_file, "out": str(out), "vocab_size": 330,
        "batch_size": 12, "max_steps": STEPS, "eval_every": STEPS, "patience": 0, "log_every": 5, **more,
    }  # fmt: skip
    return TrainConfig(**given)


@pytest.fixture(scope="module")
def pusl_model(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("pusl") / "model"
    return train(settings(files, out, paradigm="pusl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paradigm", "more"),
    [
        ("one2one", {}),
        ("one2seq", {"order": "given"}),
        ("groov", {}),
        ("pusl", {"loss": "order-free"}),
        ("pusl", {"restart": 0.5}),
        ("pusl", None),
    ],
)
def test_every_paradigm_learns(files, pusl_model, tmp_path, paradigm, more):
    result = pusl_model if more is None else train(settings(files, tmp_path / "model", paradigm=paradigm, **more))
    assert result.finished and result.steps == STEPS
    losses = [point["loss"] for point in result.record["history"] if "loss" in point]
    assert len(losses) == STEPS // 5 and losses[-1] < 0.2 * losses[0]
    checkpoint = load_checkpoint(result.path)
    assert checkpoint.paradigm.name == paradigm and checkpoint.defaults["k"] == 5
    pairs = [(color, thing) for color in COLORS for thing in THINGS]
    # The order-free loss may put a slot's whole weight on one right phrase: the next one stands in the next slot.
    strategy = "sequence" if "loss" in (more or {}) else None
    texts = [f"a {color} {thing}, no. 3" for color, thing in pairs]
    found = [one.keyphrases for one in KeyphraseGenerator(checkpoint).generate(texts, 3, strategy=strategy)]
    right = sum(len(set(got) & set(phrases_of(*pair))) for got, pair in zip(found, pairs, strict=True))
    # Of 48 right ones the three most frequent phrases for every text would hit 12; lazy models stop after two.
    assert right >= (24 if paradigm in ("one2seq", "groov") else 36), found
    assert result.best and result.best["B@2mu"] > 0.2
    plain = AutoModelForSeq2SeqLM.from_pretrained(result.path)
    assert type(plain).__name__ == "T5ForConditionalGeneration"
    assert len(AutoTokenizer.from_pretrained(result.path)) == plain.config.vocab_size


@pytest.mark.slow
def test_every_parameter_moves_and_the_files_of_a_run_are_there(files, tmp_path):
    out = tmp_path / "model"
    result = train(settings(files, out, max_steps=2, eval_every=2, dropout=0.0))
    from pusl.checkpoint import scratch_model

    checkpoint = load_checkpoint(out)
    fresh = scratch_model("tiny", checkpoint.tokenizer, seed=0).state_dict()
    still = [name for name, value in checkpoint.model.state_dict().items() if torch.equal(value, fresh[name])]
    assert not still
    names = {path.name for path in out.iterdir()}
    assert {"pusl.json", "run.json", "README.md", "curve.svg", "labels.txt.gz", "model.safetensors"} <= names
    picture = ElementTree.parse(out / "curve.svg").getroot()
    shown = {node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"pusl · scratch:tiny", "training loss per token", "dev scores", "B@2μ", "F1@O"} <= shown
    assert "training" not in names, "checkpoints are removed after the run"
    pairs = {f"{color} {things}" for color in COLORS for things in THINGS.values()}
    assert load_labels(out) == sorted(pairs | set(THINGS.values()) | set(COLORS.values()))
    record = json.loads((out / "run.json").read_text())
    assert (record["config"]["optimizer"], record["config"]["lr"]) == ("muon", 1e-2)
    assert record["status"] == "finished" and record["data"]["dev"]["sha256"]
    assert record["timings"]["train"] > 0 and record["versions"]["torch"] and "git" in record
    card = (out / "README.md").read_text()
    assert "μ = 2.50" in card and "B@2μ" in card and record["data"]["train"]["sha256"] in card
    assert result.record["summary"]["mu"] == 2.5


@pytest.mark.slow
def test_pretrained_folders_train_on_and_untied_heads_survive_training_and_resume(files, tmp_path):
    from test_tokenizer import untied_checkpoint

    from pusl.checkpoint import is_tied
    from pusl.tokenizer import train_tokenizer

    untied_checkpoint(tmp_path / "base", train_tokenizer(["a red shoe", "a blue boot"] * 20, 300, marks=False), 28)
    config = settings(files, tmp_path / "model", model=str(tmp_path / "base"), max_steps=4, eval_every=2, dev=None,
                      save_every=2, keep_checkpoints=True, vocab_size=None)  # fmt: skip
    assert resolve(config).lr == 2e-4
    train(config)
    model = load_checkpoint(tmp_path / "model").model
    assert not is_tied(model) and model.config.scale_decoder_outputs is False
    checkpoint = tmp_path / "model" / "training" / "checkpoint-2"
    reloaded = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    assert not torch.equal(reloaded.lm_head.weight, reloaded.shared.weight)


@pytest.mark.slow
def test_an_option_that_the_record_does_not_name_had_its_default(files, tmp_path):
    config = settings(files, tmp_path / "model", max_steps=1, dev=None)
    train(config)
    path = tmp_path / "model" / "run.json"
    record = json.loads(path.read_text())
    del record["config"]["learn_bok"]
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"--learn-bok is True, but the run .* began with False; omit the flag"):
        train(dataclasses.replace(config, learn_bok=True), resume=True)
    assert train(config, resume=True).finished


@pytest.mark.slow
def test_a_finished_run_is_not_overwritten(files, tmp_path, capsys):
    config = settings(files, tmp_path / "model", max_steps=1, dev=None)
    train(config)
    before = (tmp_path / "model" / "run.json").read_bytes()
    with pytest.raises(InputError, match="--force"):
        train(config)
    assert train(config, resume=True).finished and (tmp_path / "model" / "run.json").read_bytes() == before
    with pytest.raises(InputError, match="began with"):
        train(dataclasses.replace(config, lr=0.1), resume=True)
    assert train(dataclasses.replace(config, seed=1), force=True).record["config"]["seed"] == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds other files"):
        train(dataclasses.replace(config, out=str(tmp_path / "other")), force=True)
    (tmp_path / "other" / "pusl.json").write_text("{}")
    with pytest.raises(InputError, match="holds a model"):
        train(dataclasses.replace(config, out=str(tmp_path / "other")))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"train": "nowhere.jsonl"}, "no such file"),
        ({"train": None}, "--train must be given"),
        ({"model": "scratch:huge"}, "scratch:tiny"),
        ({"model": "no/such-model"}, "not a folder"),
        ({"paradigm": "groov", "order": "given"}, "groov means"),
        ({"paradigm": "one2one", "loss": "order-free"}, "one keyphrase per target"),
        ({"paradigm": "one2seq", "restart": 0.5}, "for the paradigm pusl"),
        ({"restart": 1.5}, "from 0 to 1"),
        ({"paradigm": "one2seq", "learn_bok": True}, "for the paradigm pusl"),
        ({"max_target_length": 20}, "max_phrase_tokens"),
        ({"paradigm": "seq"}, "one2one"),
        ({"dropout": 1.5}, "below 1"),
        ({"accumulation": 200}, "micro-batches"),
        ({"min_keyphrases": 9}, "no item with 9 keyphrases"),
        ({"metric": "loss"}, "B@2mu"),
    ],
)
def test_bad_settings_are_named(files, tmp_path, more, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=message):
        train(settings(files, tmp_path / "model", **more))
    assert not (tmp_path / "model" / "pusl.json").exists()


@pytest.mark.slow
def test_items_without_keyphrases_are_counted_and_an_empty_file_is_refused(tmp_path):
    empty = {"id": "a", "text": "x", "keyphrases": []}
    rows = [
        empty,
        {"id": "b", "text": "red", "keyphrases": ["Red", "red ", " ".join("abcdefghijklmnopqrstuvwxyz" * 4)]},
    ]
    write_rows(tmp_path / "t.jsonl", rows)
    result = train(settings((str(tmp_path / "t.jsonl"), None), tmp_path / "m", max_steps=1, vocab_size=270))
    summary = result.record["summary"]
    assert (summary["items"], summary["trained"], summary["mu"], summary["dropped_phrases"]) == (2, 1, 1.0, 1)
    write_rows(tmp_path / "e.jsonl", rows[:1])
    with pytest.raises(InputError, match=r"e\.jsonl has no item with a keyphrase"):
        train(settings((str(tmp_path / "e.jsonl"), None), tmp_path / "n", max_steps=1, vocab_size=270))


@pytest.mark.slow
def test_early_stopping_and_the_best_model(files, pusl_model, tmp_path):
    # With a learning rate of zero a trained model gets no better: the first score stays the best.
    config = settings(files, tmp_path / "model", model=str(pusl_model.path), lr=0.0, eval_every=2, patience=2)
    result = train(dataclasses.replace(config, max_steps=10, vocab_size=None))
    assert result.record["stopped_early"] and result.steps == 6 and result.best["step"] == 2
    assert result.best["B@2mu"] == pusl_model.best["B@2mu"]


@pytest.mark.slow
def test_while_nothing_is_right_the_latest_model_is_kept(files, tmp_path):
    result = train(settings(files, tmp_path / "model", lr=0.0, max_steps=3, eval_every=1, patience=1))
    assert result.best["B@2mu"] == 0 and result.steps == 3 and result.best["step"] == 3


@pytest.mark.slow
def test_out_of_memory_gives_advice(files, tmp_path, capsys, monkeypatch):
    from pusl.training.trainer import KeyphraseTrainer

    def exhaust(self, *args, **kwargs):
        torch.empty(1 << 50)

    monkeypatch.setattr(KeyphraseTrainer, "compute_loss", exhaust)
    with pytest.raises(TrainingError, match=r"--accumulation 2.*--gradient-checkpointing"):
        train(settings(files, tmp_path / "model", max_steps=1))
    flags = ["--train", files[0], "--model", "scratch:tiny", "--vocab-size", "330", "--max-steps", "1"]
    assert main(["train", *flags, "--out", str(tmp_path / "again")]) == 1
    assert "\npusl: out of memory" in capsys.readouterr().err  # on a line of its own, below the bar


@pytest.mark.slow
def test_a_diverged_run_says_so(files, tmp_path, monkeypatch):
    from pusl.training import objective

    monkeypatch.setattr(objective, "sequence_loss", lambda logits, labels: logits.sum() * torch.nan)
    with pytest.raises(TrainingError, match="smaller --lr"):
        train(settings(files, tmp_path / "model", max_steps=5, dev=None))


@pytest.mark.slow
def test_bf16_warns_where_it_is_emulated_and_trains(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pusl.training.training_run.has_fast_bf16", lambda device: False)
    result = train(settings(files, tmp_path / "model", max_steps=2, dev=None, bf16=True, log_every=1))
    assert "--bf16" in capsys.readouterr().err
    assert all(math.isfinite(point["loss"]) for point in result.record["history"])
    assert load_checkpoint(tmp_path / "model").model.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
def test_bf16_is_recommended_for_pretrained_weights_on_a_processor_that_has_it(
    files, tmp_path, capsys, monkeypatch, fast
):
    monkeypatch.setattr("pusl.training.training_run.has_fast_bf16", lambda device: fast)
    train(settings(files, tmp_path / "first", max_steps=1, dev=None))
    assert "bfloat16" not in capsys.readouterr().err
    train(settings(files, tmp_path / "second", model=str(tmp_path / "first"), max_steps=1, dev=None))
    assert ("--bf16 trains" in capsys.readouterr().err) is fast


def test_orders(tmp_path):
    from pusl.examples import Example
    from pusl.tokenizer import decode_each, token_ids, train_tokenizer
    from pusl.training.collate import Draw

    words_of = {"a": ["rare", "often", "some"], "b": ["some", "often"], "c": ["often"]}
    examples = [Example(name, "x", words) for name, words in words_of.items()]
    tokenizer = train_tokenizer(["rare often some x y z"] * 20, 300)
    prepare(examples, tokenizer, token_ids(tokenizer), tmp_path / "d", max_source_length=8, max_phrase_tokens=20)

    def words(order, epoch=0):
        return decode_each(tokenizer, PreparedData(tmp_path / "d", order)[Draw(0, epoch, 0)].phrases)

    assert words("given") == ["rare", "often", "some"]
    assert words("frequency") == ["often", "some", "rare"]
    shuffled = [tuple(words("shuffle", epoch)) for epoch in range(8)]
    assert len(set(shuffled)) > 2 and shuffled == [tuple(words("shuffle", epoch)) for epoch in range(8)]
    sources = PreparedData(tmp_path / "d").source_lengths()
    assert len(sources) == 3 and math.isclose(PreparedData(tmp_path / "d").summary.mu, 2.0)


@pytest.mark.slow
def test_gradient_checkpointing_gives_the_same_weights(files, tmp_path):
    weights = []
    for on in (False, True):
        config = settings(files, tmp_path / str(on), max_steps=2, dev=None, gradient_checkpointing=on)
        train(config)
        weights.append(load_checkpoint(tmp_path / str(on)).model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_keeps_the_keyphrases_of_a_trained_model(pusl_model):
    texts = [f"a {color} {thing}, no. 7" for color in COLORS for thing in THINGS]
    whole, half = (
        KeyphraseGenerator.from_pretrained(pusl_model.path, precision=precision).generate(texts, 3)
        for precision in ("fp32", "bf16")
    )
    assert [one.keyphrases[0] for one in whole] == [one.keyphrases[0] for one in half]
    common = sum(len(set(a.keyphrases) & set(b.keyphrases)) for a, b in zip(whole, half, strict=True))
    assert common >= 0.95 * sum(len(one.keyphrases) for one in whole)
