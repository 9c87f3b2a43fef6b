"""k requested keyphrases are k different ones, best first, and never padded with junk."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from decoding_models import IDS, WORDS, checkpoint, documents, random_t5, random_texts

from pusl import KeyphraseGenerator
from pusl.decoding.calibration import Calibration, hits
from pusl.decoding.cpu.engine import Engine
from pusl.decoding.deadline import OutOfTime, time_limit
from pusl.decoding.explanation import explain
from pusl.decoding.greedy import sample
from pusl.decoding.plans import Ranked, Sequential, sum_over_beams
from pusl.decoding.rules import Phrase, Rules
from pusl.decoding.search import search_phrases
from pusl_eval.files import InputError
from pusl_eval.normalize import normalize


def spelled(ids: tuple[int, ...]) -> str:
    return str(ids)


@pytest.mark.parametrize("strategy", ["sequence", "beam"])
def test_keyphrases_differ_in_normalized_form(strategy):
    found = KeyphraseGenerator(checkpoint("pusl")).generate(documents(8), 8, strategy=strategy)
    for one in found:
        assert len({normalize(phrase) for phrase in one.keyphrases}) == len(one.keyphrases)
        assert len(one.scores) == len(one.normalized) == len(one.keyphrases)
        assert one.exhausted == (len(one.keyphrases) < 8)
        assert all(score <= 0 for score in one.scores)


def test_sequence_conditions_every_slot_on_those_before():
    """Every slot's phrase, checked against the whole model: nothing tried by brute force is better."""
    model, texts = random_t5(4), random_texts(4, 2)
    plans = search_phrases(
        Engine(model), texts, Rules(IDS, True, 3, 1), lambda _: Sequential(3, spelled), beams=95, slots=2
    )
    for text, plan in zip(texts, plans, strict=True):
        target, given = [IDS.start], set()
        for phrase in plan.phrases():
            opened = [*target, IDS.bok]
            best = (-math.inf, 0)
            with torch.no_grad():
                rows = torch.tensor([[*opened, token] for token in range(100)])
                out = model(input_ids=torch.tensor([text]).expand(100, -1), decoder_input_ids=rows).logits
            logprobs = out.log_softmax(-1)
            for token in set(range(2, 97)) - given:
                score = float(logprobs[token, -2, token] + logprobs[token, -1, IDS.eok])
                best = max(best, (score, token))
            assert phrase.ids == (best[1],)
            assert phrase.logprob == pytest.approx(best[0], abs=1e-4)
            given.add(phrase.ids[0])
            target = [*opened, *phrase.ids, IDS.eok]


def test_a_search_after_a_phrase_equals_one_after_a_known_phrase():
    """Scores after a phrase whose cache entries are kept equal those after the same phrase fed again."""
    model, texts = random_t5(6), random_texts(6, 3)

    class Twice(Ranked):
        first = None

        def proceed(self):
            if self.first is not None:
                return None
            self.first = min(self.found.values(), key=lambda phrase: (-phrase.score, phrase.ids))
            self.found = {}
            return self.first

    engine, rules = Engine(model), Rules(IDS, True, 4, 4)
    kept = search_phrases(engine, texts, rules, lambda _: Twice(4, spelled), beams=4)
    known = [[list(plan.first.ids)] for plan in kept]
    fed = search_phrases(engine, texts, rules, lambda _: Ranked(4, spelled), beams=4, known=known)
    for one, other in zip(kept, fed, strict=True):
        assert one.found and one.found.keys() == other.found.keys()
        for form, phrase in one.found.items():
            assert other.found[form].logprob == pytest.approx(phrase.logprob, abs=1e-4)


def test_repeats_are_skipped_whatever_their_spelling():
    plan = Sequential(3, lambda ids: "x" if ids[0] < 3 else str(ids))
    plan.offer(Phrase((1,), -1.0, -1.0))
    assert plan.satisfied(-1.5)
    assert plan.proceed().ids == (1,)
    plan.offer(Phrase((2,), -0.5, -0.5))  # the same phrase in other letters
    assert not plan.satisfied(-9.0)
    plan.offer(Phrase((7,), -3.0, -3.0))
    plan.offer(Phrase((8,), -4.0, -4.0))
    assert plan.proceed().ids == (7,)
    assert plan.proceed() is None  # nothing found here: what an earlier slot left over is the third
    assert [phrase.ids for phrase in plan.phrases()] == [(1,), (7,), (8,)]


def test_a_floor_ends_the_item_instead_of_padding_it():
    generator = KeyphraseGenerator(checkpoint("pusl"))
    text = documents(1)
    wide = {"strategy": "beam", "num_beams": 64}
    full = generator.generate(text, 6, **wide)[0]
    middle = full.scores[2]
    cut = generator.generate(text, 6, floor=full.scores[0] - middle + 1e-9, **wide)[0]
    assert cut.keyphrases == full.keyphrases[:3] and cut.exhausted
    assert generator.generate(text, 6, min_score=middle, **wide)[0].keyphrases == full.keyphrases[:3]
    assert len(generator.generate(text, 6, strategy="sequence", floor=-50.0)[0].keyphrases) == 1


def test_groov_ranking_sums_the_beams():
    beams = [(math.log(0.5), [Phrase((1,), 0), Phrase((2,), 0)]), (math.log(0.3), [Phrase((2,), 0), Phrase((2,), 0)])]
    ranked = sum_over_beams(beams, spelled)
    assert [(phrase.ids, pytest.approx(phrase.logprob)) for phrase in ranked] == [
        ((2,), math.log(0.8)),
        ((1,), math.log(0.5)),
    ]


def test_blank_texts_and_bad_settings():
    generator = KeyphraseGenerator(checkpoint("pusl"))
    assert generator.generate([], 3) == []
    blank, real = generator.generate(["  ", "red shoe"], 3)
    assert blank.keyphrases == [] and blank.exhausted and real.keyphrases
    for settings, said in (
        ({"k": 0}, "k is 0"),
        ({"k": 1, "strategy": "luck"}, "sequence, beam"),
        ({"k": 1, "vocabulary": "closed"}, "needs a universe"),
        ({"k": 1, "batch_size": 0}, "batch_size"),
        ({"k": 1, "temperature": -1.0}, "temperature"),
    ):
        with pytest.raises(InputError, match=said):
            generator.generate(["red shoe"], **settings)


def test_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).expand(3000, -1)
    uniform = torch.linspace(0, 1, 3001, dtype=torch.float64)[:-1]
    share = torch.bincount(sample(logits, uniform, 1.0, 1.0), minlength=3) / 3000
    assert share.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    assert set(sample(logits, uniform, 1.0, 0.6).tolist()) == {0, 1}


def test_calibration_gives_probabilities(tmp_path):
    chance = np.random.default_rng(0)
    scores = chance.uniform(-8, 0, 5000)
    right = chance.uniform(size=5000) < np.exp(scores / 4)
    curve = Calibration.fit(scores.tolist(), right.tolist())
    for score in (-6.0, -4.0, -2.0, -0.5):
        assert curve(score) == pytest.approx(math.exp(score / 4), abs=0.1)
    curve.save(tmp_path / "curve.json")
    assert Calibration.load(tmp_path / "curve.json") == curve
    generator = KeyphraseGenerator(checkpoint("pusl"))
    found = generator.generate(documents(2), 3)
    assert [len(one.keyphrases) for one in found] == [3, 3]
    assert hits(found, [[found[0].keyphrases[0].upper()], []])[1] == [True, *[False] * 5]
    assert all(
        0 <= score <= 1 for one in generator.generate(documents(2), 3, calibration=curve) for score in one.scores
    )


def test_explanations():
    marks = explain("Red SHOE for red shoes", ["red shoe", "boot"], {"boot"}, lambda phrase: phrase == "boot")
    assert marks[0] == {"present": True, "offsets": [[0, 8]], "seen": False, "in_universe": False}
    assert marks[1] == {"present": False, "offsets": [], "seen": True, "in_universe": True}
    assert WORDS and KeyphraseGenerator(checkpoint("pusl")).explain("a boot", ["boot"])[0]["seen"] is None


def test_groov_beams_are_summed_per_label():
    generator = KeyphraseGenerator(checkpoint("groov"))
    for one in generator.generate(documents(3), 4, strategy="beam", num_beams=3):
        assert one.keyphrases and len(set(one.keyphrases)) == len(one.keyphrases)
        assert one.scores == sorted(one.scores, reverse=True)
        assert math.exp(one.scores[0]) <= 1


@pytest.mark.parametrize(
    ("text", "options"),
    [("drone " * 3000, {}), ("drone " * 3000, {"long": "window"}), ("a drone", {"known": [["drone"]] * 40})],
    ids=["texts", "windows", "known"],
)
def test_a_time_limit_holds_before_the_search_too(monkeypatch, text, options):
    """Reading long texts and sorting out known keyphrases can take seconds."""
    generator = KeyphraseGenerator(checkpoint("pusl"))
    looks = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr("pusl.decoding.generator.find", lambda *_, **__: pytest.fail("the search has begun"))
        with pytest.raises(OutOfTime), time_limit(5.0, lambda: float(next(looks))):  # every look takes a second
            generator.generate([text] * 40, 1, **options)
    assert generator.generate(["a drone"], 1)[0].keyphrases
