"""Vocabularies learned offline, marks, spare rows, and heads that must stay untied."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

from pusl import paradigms
from pusl.checkpoint import (
    fit_embeddings,
    is_tied,
    load_base,
    load_checkpoint,
    load_labels,
    save_checkpoint,
    save_labels,
    scratch_model,
)
from pusl.tokenizer import add_marks, encode_texts, token_ids, train_tokenizer
from pusl_eval.files import InputError

TEXTS = ["red running shoe for men", "blue suede boot", "Zeto X2 drone with camera", "naïve café, 日本 style"] * 10


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 400)


def untied_checkpoint(folder, tokenizer, spare=0):
    """A tiny v1.1-like T5 on disk: lm_head of its own, config.json as the hub has it."""
    torch.manual_seed(1)
    rows = len(tokenizer) + spare
    config = T5Config(vocab_size=rows, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    weights = {name: value.clone() for name, value in model.state_dict().items() if "embed_tokens" not in name}
    weights["lm_head.weight"] = torch.randn(rows, 16)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {**config.to_dict(), "architectures": ["T5ForConditionalGeneration"], "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(settings))
    tokenizer.save_pretrained(folder)
    return weights


def test_saves_and_reloads_with_auto_tokenizer(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert token_ids(again) == token_ids(tokenizer)
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert again("red boot")["input_ids"][-1] == again.eos_token_id == 1 and again.pad_token_id == 0


def test_no_character_is_unknown(tokenizer):
    for text in ("Ελληνικά", "emoji 🎨 and ~{}^<", "tab\tand  spaces", "ﬁligree"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == " ".join(text.replace("ﬁ", "fi").split())


def test_the_same_texts_give_the_same_vocabulary():
    assert train_tokenizer(TEXTS, 400).get_vocab() == train_tokenizer(TEXTS, 400).get_vocab()


def test_a_script_with_more_characters_than_the_vocabulary_has_places():
    text = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 600))
    chinese = train_tokenizer([text, text[::-1], "一丁七 一丁"] * 5, 300)
    assert chinese.decode(chinese(text, add_special_tokens=False)["input_ids"]) == text


def test_texts_that_cannot_be_learned_from_are_an_input_error():
    with pytest.raises(InputError, match="vocabulary"):
        train_tokenizer([], 400)


def test_documents_are_cut_with_their_eos_and_cannot_smuggle_in_marks(tokenizer):
    tokens = token_ids(tokenizer)
    (ids,) = encode_texts(tokenizer, ["red <bok> shoe " * 20], 12)
    assert len(ids) == 12 and ids[-1] == tokens.eos
    assert not {tokens.bok, tokens.eok, tokens.sep} & set(ids)


def test_marks_keep_the_sentinels():
    from transformers import T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁a", -1.0)]
    plain = T5Tokenizer(vocab=pieces + [(f"<extra_id_{i}>", 0.0) for i in range(99, -1, -1)])
    sentinels = plain.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"])
    assert add_marks(plain) == 3 and add_marks(plain) == 0
    assert plain.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"]) == sentinels
    assert plain("a<extra_id_0>")["input_ids"].count(sentinels[0]) == 1


@pytest.mark.parametrize(("spare", "paradigm"), [(0, "pusl"), (2, "one2seq"), (28, "one2one")])
def test_untied_heads_stay_untied_and_spare_rows_are_used_first(tmp_path, spare, paradigm):
    plain = train_tokenizer([*TEXTS, "boot; shoe"], 400, marks=False)
    weights = untied_checkpoint(tmp_path / "base", plain, spare)
    known, rows = len(plain), len(plain) + spare
    model, tokenizer = load_base(str(tmp_path / "base"), paradigm=paradigms.get(paradigm))
    assert model.get_input_embeddings().num_embeddings == max(rows, known + 3) == model.config.vocab_size
    assert not is_tied(model)
    assert model.encoder.embed_tokens.weight is model.shared.weight is model.decoder.embed_tokens.weight
    assert torch.equal(model.lm_head.weight[:known], weights["lm_head.weight"][:known])
    assert torch.equal(model.shared.weight[:known], weights["shared.weight"][:known])
    ids = token_ids(tokenizer, model.config)
    stand_for = {ids.bok: ids.start, ids.eok: ids.eos, ids.sep: tokenizer.get_vocab()[";"]}
    written = {"pusl": {ids.bok, ids.eok}, "one2seq": {ids.sep}, "one2one": set()}[paradigm]
    for weight in (model.lm_head.weight, model.shared.weight):
        assert len({tuple(weight[i].tolist()) for i in (*stand_for, *stand_for.values())}) == 6, "all are different"
        for mark, part in stand_for.items():
            start = weight[part] if mark in written else weight[:known].mean(0)
            assert (weight[mark] - start).norm() < 0.2 * weight[:known].norm(dim=1).mean(), "as what it stands for"
    assert model.config.scale_decoder_outputs is False

    save_checkpoint(tmp_path / "out", model, tokenizer, {"paradigm": "pusl"})
    assert {"lm_head.weight", "shared.weight"} <= load_file(tmp_path / "out" / "model.safetensors").keys()
    again = load_checkpoint(tmp_path / "out")
    assert not is_tied(again.model) and torch.equal(again.model.lm_head.weight, model.lm_head.weight)
    assert again.model.config.scale_decoder_outputs is False
    once_more, _ = load_base(str(tmp_path / "out"))
    assert torch.equal(once_more.lm_head.weight, model.lm_head.weight), "known marks keep what they learned"


def test_a_tokenizer_that_has_some_of_the_marks():
    plain = train_tokenizer(TEXTS, 400, marks=False)
    plain.add_tokens(["<sep>"], special_tokens=True)
    model = scratch_model("tiny", plain)
    before = model.shared.weight.detach().clone()
    assert fit_embeddings(model, plain) == 2
    ids, rows = token_ids(plain, model.config), model.shared.weight
    assert torch.equal(rows[ids.sep], before[ids.sep]), "a mark that was there keeps its row"
    assert torch.cosine_similarity(rows[ids.bok], rows[ids.start], 0) > 0.9
    assert torch.cosine_similarity(rows[ids.eok], rows[ids.eos], 0) > 0.9


def test_tied_heads_stay_tied():
    plain = train_tokenizer(TEXTS, 400, marks=False)
    model = scratch_model("tiny", plain)
    before = model.shared.weight.detach().clone()
    assert fit_embeddings(model, plain) == 3
    assert is_tied(model) and torch.equal(model.shared.weight[: len(before)], before)


def test_a_saved_folder_is_a_plain_hugging_face_checkpoint(tokenizer, tmp_path):
    model = scratch_model("tiny", tokenizer, seed=0)
    save_checkpoint(tmp_path, model, tokenizer, {"paradigm": "one2seq", "defaults": {"k": 4}})
    save_labels(tmp_path, ["red shoe", "boot", "red  shoe"])
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(plain) is T5ForConditionalGeneration
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["T5ForConditionalGeneration"]
    loaded = load_checkpoint(tmp_path)
    assert torch.equal(loaded.model.shared.weight, model.shared.weight) and not loaded.model.training
    assert loaded.paradigm.name == "one2seq" and loaded.defaults == {"k": 4} and loaded.tokens == token_ids(tokenizer)
    assert load_labels(tmp_path) == ["boot", "red shoe"]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_folders_that_are_no_models(tmp_path, tokenizer):
    with pytest.raises(InputError, match="no such model folder"):
        load_checkpoint(tmp_path / "missing")
    with pytest.raises(InputError, match=r"no pusl\.json"):
        load_checkpoint(tmp_path)
    (tmp_path / "pusl.json").write_text('{"paradigm": "seq2seq"}')
    with pytest.raises(InputError, match="one2one"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, scratch_model("tiny", tokenizer), tokenizer, {"paradigm": "pusl"})
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_checkpoint(tmp_path)
    with pytest.raises(InputError, match="scratch:"):
        scratch_model("huge", tokenizer)


def test_models_outside_the_family_are_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bart"}')
    with pytest.raises(InputError, match="is a bart"):
        load_base(str(tmp_path))
