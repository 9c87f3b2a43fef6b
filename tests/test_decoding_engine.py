"""The engine gives what Hugging Face `generate` gives: greedy tokens, beam hypotheses, scores."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
import torch
from decoding_models import IDS, padded_batch, random_t5, random_texts
from transformers import LogitsProcessor, LogitsProcessorList

from pusl.decoding.cpu.engine import Engine
from pusl.decoding.cpu.kernels import load_kernels
from pusl.decoding.greedy import decode_sequences, first_best
from pusl.decoding.logits_processor import TopKKeyphrasesLogitsProcessor
from pusl.decoding.plans import Ranked
from pusl.decoding.rules import Rules
from pusl.decoding.search import search_phrases
from pusl.paradigms import One2Seq, Pusl
from pusl_eval.files import InputError

KINDS = list(itertools.product(("relu", "gated-gelu", "gated-silu"), (True, False)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("feed_forward", "tied"), KINDS)
def test_greedy_tokens_are_those_of_generate(seed, feed_forward, tied):
    model, texts, k, cap = random_t5(seed, feed_forward, tied), random_texts(seed, 7), 4, 5
    rule = TopKKeyphrasesLogitsProcessor(bok=97, eok=98, eos=1, k=k, max_phrase_tokens=cap, banned=[99])
    out = model.generate(
        **padded_batch(texts), logits_processor=LogitsProcessorList([rule]), max_new_tokens=rule.max_new_tokens,
        do_sample=False,
    )  # fmt: skip
    expected = [Pusl().split(row.tolist(), IDS) for row in out]
    found = decode_sequences(Engine(model), texts, Rules(IDS, True, k, cap), slots=3)  # fewer slots than texts
    assert [[list(phrase.ids) for phrase in phrases] for phrases in found] == expected


def test_without_numba_torch_gives_the_same(monkeypatch):
    model, texts, rules = random_t5(5, "relu", False), random_texts(5, 7), Rules(IDS, True, 4, 5)
    compiled = Engine(model)
    assert compiled.compiled
    found = decode_sequences(compiled, texts, rules)
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it now fails
    load_kernels.cache_clear()
    try:
        plain, rounded = Engine(model), Engine(model, "int8")
        assert not plain.compiled
        again = decode_sequences(plain, texts, rules)
        assert decode_sequences(rounded, texts, rules)
    finally:
        monkeypatch.undo()
        load_kernels.cache_clear()
    assert [[one.ids for one in phrases] for phrases in again] == [[one.ids for one in phrases] for phrases in found]
    for one, other in zip(itertools.chain(*again), itertools.chain(*found), strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_one2seq_tokens_are_those_of_generate(seed):
    model, texts = random_t5(seed), random_texts(seed)
    banned = [[token] for token in (IDS.pad, IDS.bok, IDS.eok)]
    out = model.generate(**padded_batch(texts), max_new_tokens=25, do_sample=False, bad_words_ids=banned)
    found = decode_sequences(Engine(model), texts, Rules(IDS, False, 100, 25), slots=4)
    for row, phrases in zip(out, found, strict=True):
        if IDS.eos in row[1:] and [] not in One2Seq().split(row.tolist(), IDS):
            assert One2Seq().split(row.tolist(), IDS) == [list(phrase.ids) for phrase in phrases]


class WholePhrases(LogitsProcessor):
    """What the phrase search allows, for `generate`: no empty phrase, no marks, closed at the cap."""

    def __init__(self, cap: int) -> None:
        self.cap = cap

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, [IDS.pad, IDS.bok, IDS.eok, IDS.sep]] = -torch.inf
        depth = input_ids.shape[1] - 1
        if depth == 0:
            scores[:, IDS.eos] = -torch.inf
        if depth == self.cap:
            closing = scores[:, IDS.eos].clone()
            scores[:] = -torch.inf
            scores[:, IDS.eos] = closing
        return scores


@pytest.mark.parametrize("seed", range(4))
def test_beam_hypotheses_are_those_of_generate(seed):
    beams, cap = 6, 5
    model, texts = random_t5(seed, tied=seed % 2 == 0), random_texts(seed, 6)
    out = model.generate(
        **padded_batch(texts), num_beams=beams, num_return_sequences=beams, length_penalty=0.0, max_new_tokens=cap + 1,
        do_sample=False, logits_processor=LogitsProcessorList([WholePhrases(cap)]), return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    rules = Rules(IDS, False, beams, cap)
    plans = search_phrases(
        Engine(model), texts, rules, lambda _: Ranked(beams, lambda ids: str(ids)), beams=beams, slots=4
    )
    for item, plan in enumerate(plans):
        rows = out.sequences[item * beams : (item + 1) * beams].tolist()
        expected = [tuple(One2Seq().split(row, IDS)[0]) for row in rows]
        scores = out.sequences_scores[item * beams : (item + 1) * beams].tolist()
        assert [phrase.ids for phrase in plan.phrases()] == expected
        assert [phrase.logprob for phrase in plan.phrases()] == pytest.approx(scores, abs=1e-4)


def test_scores_are_the_models_log_probabilities_of_whole_phrases():
    model, texts = random_t5(3), random_texts(3, 3)
    found = decode_sequences(Engine(model), texts, Rules(IDS, True, 3, 5))
    for text, phrases in zip(texts, found, strict=True):
        target = [IDS.start]
        for phrase in phrases:
            target += [IDS.bok, *phrase.ids, IDS.eok]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([text]), decoder_input_ids=torch.tensor([target])).logits[0]
        logprobs = logits.log_softmax(-1)
        place = 1
        for phrase in phrases:
            span = [*phrase.ids, IDS.eok]
            expected = sum(float(logprobs[place + i, token]) for i, token in enumerate(span))
            assert phrase.logprob == pytest.approx(expected, abs=1e-4)
            place += len(span) + 1


def test_long_outputs_grow_the_cache_and_the_distances():
    model = random_t5(1, closing=0.0)
    found = decode_sequences(Engine(model), random_texts(1, 2), Rules(IDS, True, 30, 16))
    assert [len(phrases) for phrases in found] == [30, 30]  # 30 * 18 positions, past the first 512


def test_int8_is_close_to_fp32_and_refused_where_it_cannot_run():
    model, texts = random_t5(5), random_texts(5)
    plain, whole = (
        decode_sequences(Engine(model, precision), texts, Rules(IDS, True, 1, 5)) for precision in ("fp32", "int8")
    )
    same = [a[0].ids[0] == b[0].ids[0] for a, b in zip(plain, whole, strict=True)]
    assert sum(same) >= len(same) // 2
    assert all(math.isfinite(phrase.logprob) for phrases in whole for phrase in phrases)
    with pytest.raises(InputError, match="fp32, int8"):
        Engine(model, "fp8")


def test_one_int8_engine_decodes_greedily_and_by_beams_in_turn():
    model, texts, rules = random_t5(6), random_texts(6), Rules(IDS, True, 3, 5)

    def beams(engine):
        plans = search_phrases(engine, texts, rules, lambda _: Ranked(3, str), beams=4)
        return [plan.phrases() for plan in plans]

    engine = Engine(model, "int8")  # the two keep a text's keys and values in different precision
    greedy, searched = decode_sequences(engine, texts, rules), beams(engine)
    assert decode_sequences(engine, texts, rules) == greedy == decode_sequences(Engine(model, "int8"), texts, rules)
    assert searched == beams(Engine(model, "int8"))


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300, 2003])
def test_first_best_is_argmax_ties_and_forbidden_tokens_included(width):
    torch.manual_seed(width)
    logits = torch.randint(0, 9, (50, width)).float()
    logits[torch.rand(50, width) < 0.3] = -torch.inf
    logits[0] = -torch.inf
    logits[1, -1] = 99.0
    assert first_best(logits).tolist() == logits.argmax(-1).tolist()
