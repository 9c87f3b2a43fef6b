"""mT5, umT5, ByT5 and LongT5: tiny random models, trained for a few steps and decoded, with transformers' numbers."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from decoding_models import WORDS, documents, tokenizer
from transformers import (
    ByT5Tokenizer,
    LongT5Config,
    LongT5ForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

from pusl import KeyphraseGenerator, TrainConfig, paradigms, train
from pusl.checkpoint import Checkpoint, load_base, load_checkpoint
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.tokenizer import encode_keyphrases, encode_texts, token_ids
from pusl_eval.files import InputError

SIZES = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64, "num_layers": 2, "decoder_start_token_id": 0}
LOCAL = {"local_radius": 7, "global_block_size": 4}
KINDS = {
    "mt5": (MT5ForConditionalGeneration, MT5Config, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "umt5": (UMT5ForConditionalGeneration, UMT5Config, {"feed_forward_proj": "gated-gelu"}),
    "umt5-untied": (UMT5ForConditionalGeneration, UMT5Config, {"tie_word_embeddings": False}),
    "byt5": (T5ForConditionalGeneration, T5Config, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "longt5-local": (LongT5ForConditionalGeneration, LongT5Config, LOCAL),
    "longt5-global": (
        LongT5ForConditionalGeneration, LongT5Config, {**LOCAL, "encoder_attention_type": "transient-global"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Base models on disk, without PUSL's marks in ByT5's vocabulary."""
    place = tmp_path_factory.mktemp("families")
    for name, (model, config, more) in KINDS.items():
        words = ByT5Tokenizer() if name == "byt5" else tokenizer()
        torch.manual_seed(0)
        made = model(config(vocab_size=len(words), pad_token_id=words.pad_token_id, **SIZES, **more))
        made.save_pretrained(place / name)
        words.save_pretrained(place / name)
    rows = [{"id": str(i), "text": text, "keyphrases": sorted({*text.split()[:2]})}
            for i, text in enumerate(documents(24))]  # fmt: skip
    (place / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_trained_decoded_and_equal_to_transformers(folders, tmp_path, name):
    file = str(folders / "data.jsonl")
    config = TrainConfig(
        model=str(folders / name), train=file, dev=file, out=str(tmp_path / "m"), max_steps=3, lr=1e-2, dev_items=4,
        batch_size=8, max_source_length=64,
    )  # fmt: skip
    result = train(config)
    losses = [point["loss"] for point in result.record["history"] if "loss" in point]
    assert result.finished and losses and all(loss == loss for loss in losses)
    checkpoint = load_checkpoint(tmp_path / "m")
    generator = KeyphraseGenerator(checkpoint)
    texts = [*documents(5, 3), " ".join(WORDS * 3)]
    assert generator.generate(texts, 3, batch_size=1) == generator.generate(texts, 3, batch_size=64)
    words = tmp_path / "words.txt"
    words.write_text("".join(word + "\n" for word in WORDS))
    closed = {"vocabulary": "closed", "universe": str(words), "floor": float("inf")}
    found = generator.generate(texts, 4, **closed)
    scored = generator.score(texts, [one.keyphrases for one in found])
    for text, one, again in zip(texts, found, scored, strict=True):
        assert len(one.keyphrases) == 4
        phrases = encode_keyphrases(checkpoint.tokenizer, one.keyphrases, checkpoint.tokens)
        source = encode_texts(checkpoint.tokenizer, [text], generator.max_source_length)
        expected = [stock_score(checkpoint, source, phrase) for phrase in phrases]
        assert one.scores == pytest.approx(expected, abs=2e-4) and again.scores == pytest.approx(expected, abs=2e-4)
    greedy = generator.generate(texts, 2, allow_repeats=True)
    assert greedy == generator.generate(texts, 2, allow_repeats=True, batch_size=2)


def stock_score(checkpoint, source: list[list[int]], phrase: list[int]) -> float:
    """log P(phrase <eok> | <bok>) by transformers' own forward pass."""
    tokens = checkpoint.tokens
    given = [tokens.start, tokens.bok, *phrase]
    wanted = [*phrase, tokens.eok]
    with torch.no_grad():
        logits = checkpoint.model(
            input_ids=torch.tensor(source), decoder_input_ids=torch.tensor([given]), use_cache=False
        ).logits[0]
    rows = logits[:, : len(checkpoint.tokenizer)].log_softmax(-1)[1:]
    return float(sum(rows[i, token] for i, token in enumerate(wanted)))


def test_the_sentinels_of_pretraining_never_come(folders):
    """ByT5's random model likes them; no phrase may have one."""
    checkpoint = base_checkpoint(folders / "byt5")
    texts, sentinels = documents(4), checkpoint.tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_124>"])
    generator = KeyphraseGenerator(checkpoint)
    assert set(sentinels) <= set(generator.banned) and len(generator.banned) >= 125
    with torch.no_grad():
        checkpoint.model.lm_head.weight[sentinels] *= 50  # now they are likely
    generator = KeyphraseGenerator(checkpoint)
    for way in ({}, {"strategy": "sequence"}, {"allow_repeats": True}):
        assert not any("extra_id" in phrase for one in generator.generate(texts, 3, **way) for phrase in one.keyphrases)


def test_what_is_not_supported_is_refused_with_what_is(tmp_path):
    from transformers import BartConfig

    BartConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is a bart; PUSL trains T5, mT5, umT5, ByT5 and LongT5"):
        load_base(str(tmp_path))


@pytest.mark.parametrize("name", [name for name in KINDS if name != "byt5"])
@pytest.mark.parametrize("way", [{}, {"allow_repeats": True}, {"strategy": "sequence"}], ids=str)
def test_every_family_gives_on_a_device_what_it_gives_on_the_cpu(folders, name, way):
    """umT5's bias per layer and LongT5's encoder too; random weights, but for the ends of phrases."""
    pytest.importorskip("torch.utils.backend_registration")
    from simulated_device import on_device, simulated_device

    checkpoint = base_checkpoint(folders / name)
    texts, phrases = [*documents(5, 3), " ".join(WORDS * 3)], ["red shoe", "zeto", "bavix phone case"]
    generator = KeyphraseGenerator(checkpoint)
    expected, scores = generator.generate(texts, 3, **way), generator.score(texts, phrases)
    with simulated_device() as log:
        there = KeyphraseGenerator(dataclasses.replace(checkpoint, model=on_device(checkpoint.model)))
        assert isinstance(there.engine, DeviceEngine)
        found, again = there.generate(texts, 3, batch_size=4, **way), there.score(texts, phrases)
        assert log.copies["to host"] == 0, log.places
    for one, other in zip(found, expected, strict=True):
        assert one.keyphrases == other.keyphrases and one.scores == pytest.approx(other.scores, abs=1e-4)
    for one, other in zip(again, scores, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def base_checkpoint(folder):
    """A model that was not trained, with phrases that end."""
    model, words = load_base(str(folder))
    marks = token_ids(words, model.config)
    with torch.no_grad():
        model.lm_head.weight[[marks.eos, marks.eok, marks.sep]] *= 3
    return Checkpoint(model.eval(), words, paradigms.get("pusl"), marks, {"defaults": {"max_phrase_tokens": 5}})


@pytest.mark.parametrize("name", ["umt5", "longt5-global"])
def test_umt5_and_longt5_are_decoded_in_bfloat16(folders, name):
    generator = KeyphraseGenerator(base_checkpoint(folders / name), precision="bf16")
    assert isinstance(generator.engine, DeviceEngine) and generator.engine.t5.dtype == torch.bfloat16
    expected = KeyphraseGenerator(generator.checkpoint).score(documents(4), list(WORDS))
    for one, other in zip(generator.score(documents(4), list(WORDS)), expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=0.3)
