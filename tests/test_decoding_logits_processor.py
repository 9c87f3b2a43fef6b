"""Algorithm 1 as a rule for `generate`: k keyphrases, none empty, none too long, then EOS."""

from __future__ import annotations

import pytest
import torch
from decoding_models import IDS, padded_batch, random_t5, random_texts
from transformers import LogitsProcessorList

from pusl import TopKKeyphrasesLogitsProcessor
from pusl.paradigms import Pusl
from pusl_eval.files import InputError


def rule(k: int = 2, cap: int = 3, **more):
    return TopKKeyphrasesLogitsProcessor(bok=97, eok=98, eos=1, k=k, max_phrase_tokens=cap, **more)


def allowed(ids: list[int], **settings) -> set[int]:
    scores = rule(**settings)(torch.tensor([ids]), torch.zeros(1, 100))
    return set(torch.nonzero(scores[0] > -torch.inf)[:, 0].tolist())


def test_what_may_follow():
    words = set(range(100)) - {0, 1, 97, 98}
    assert allowed([0]) == {97}
    assert allowed([0, 97]) == words
    assert allowed([0, 97, 5]) == words | {98}
    assert allowed([0, 97, 5, 6, 7]) == {98}
    assert allowed([0, 97, 5, 98]) == {97}
    assert allowed([0, 97, 5, 98, 97, 5, 98]) == {1}
    assert allowed([0, 97, 5, 98, 97, 5, 98, 1]) == {0}
    assert allowed([0, 97], banned=[50, 99]) == words - {50, 99}


def test_rows_are_judged_alone_and_scores_are_not_changed_in_place():
    scores = torch.randn(2, 100)
    before = scores.clone()
    out = rule()(torch.tensor([[0, 97, 5, 98], [0, 97, 5, 6]]), scores)
    assert torch.equal(scores, before)
    assert out[0].argmax() == 97
    assert torch.equal(out[1, 2:97], before[1, 2:97])


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 3, "do_sample": False}])
def test_generate_gives_exactly_k(how):
    torch.manual_seed(0)
    model, limit = random_t5(2), rule(k=4, banned=[99])
    out = model.generate(
        **padded_batch(random_texts(2)), logits_processor=LogitsProcessorList([limit]),
        max_new_tokens=limit.max_new_tokens, **how,
    )  # fmt: skip
    for row in out.tolist():
        phrases = Pusl().split(row, IDS)
        assert len(phrases) == 4
        assert all(1 <= len(phrase) <= 3 for phrase in phrases)
        assert row.index(IDS.eos) == max(i for i, token in enumerate(row) if token == IDS.eok) + 1


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="k is 0"):
        rule(k=0)
    with pytest.raises(InputError, match="max_phrase_tokens"):
        rule(cap=0)
