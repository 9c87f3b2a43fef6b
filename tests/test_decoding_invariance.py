"""An item's keyphrases, order and scores do not depend on batch, neighbors, slots or threads."""

from __future__ import annotations

import pytest
import torch
from decoding_models import checkpoint, documents

from pusl import KeyphraseGenerator
from pusl.decoding import search
from pusl.decoding.cpu.linear import PRECISIONS, make_linear

pytestmark = pytest.mark.slow  # every strategy at several batch sizes

WAYS = {
    "sequence": {"strategy": "sequence"},
    "beam": {"strategy": "beam"},
    "repeats": {"allow_repeats": True},
    "sampled": {"temperature": 1.0, "top_p": 0.9, "seed": 7},
}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("way", WAYS)
def test_batches_change_nothing(way, precision):
    texts = documents(6, seed=3)
    generator = KeyphraseGenerator(checkpoint("pusl"), precision=precision)
    expected = generator.generate(texts, 4, batch_size=32, **WAYS[way])
    assert generator.generate(texts[::-1], 4, batch_size=3, **WAYS[way])[::-1] == expected
    assert generator.generate(texts[4:5], 4, **WAYS[way]) == expected[4:5]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_decoded_before_changes_nothing(way):
    """The memory of one call is used again by the next."""
    texts, others = documents(5, seed=6), documents(9, seed=7)
    fresh = KeyphraseGenerator(checkpoint("pusl"))
    expected = fresh.generate(texts, 4, **WAYS[way])
    used = KeyphraseGenerator(checkpoint("pusl"))
    used.generate([" ".join(others), *others], 9, **WAYS[way])
    assert used.engine.spare
    assert used.generate(texts, 4, **WAYS[way]) == expected


@pytest.mark.parametrize("paradigm", ["one2one", "one2seq", "groov"])
def test_batches_change_nothing_in_other_paradigms(paradigm):
    texts = documents(6, seed=4)
    generator = KeyphraseGenerator(checkpoint(paradigm))
    expected = generator.generate(texts, 4, batch_size=32)
    assert generator.generate(texts, 4, batch_size=2) == expected


@pytest.mark.parametrize("paradigm", ["pusl", "one2one"])
def test_longer_neighbors_change_nothing(paradigm):
    """A library may add up long rows in parts whose size depends on the longest text of the batch."""
    texts = [" ".join(documents(40, seed=seed)[: 3 * seed]) for seed in range(5, 13)]
    generator = KeyphraseGenerator(checkpoint(paradigm))
    generator.max_source_length = 1024
    lengths = [len(ids) for ids in generator.tokenizer(texts)["input_ids"]]
    assert min(lengths) < 256 < max(lengths) < 1024
    expected = generator.generate(texts, 40)
    for text, one in zip(texts, expected, strict=True):
        assert generator.generate([text], 40) == [one]
    assert generator.generate(texts, 40, batch_size=3) == expected


def test_a_wide_search_takes_fewer_items_at_a_time(monkeypatch):
    """64 items with 100 beams over 32,000 tokens took 7 GB."""
    texts, beams, taken = documents(6, seed=8), 24, []
    generator = KeyphraseGenerator(checkpoint("pusl"))
    expected = generator.generate(texts, 4, num_beams=beams)

    class Counted(search.Pool):
        def __init__(self, engine, slots, chain=False):
            taken.append(slots)
            super().__init__(engine, slots, chain)

    monkeypatch.setattr(search, "Pool", Counted)
    monkeypatch.setattr(search, "LOGITS", 2 * beams * generator.engine.vocab_size)
    assert generator.generate(texts, 4, num_beams=beams) == expected
    assert taken and max(taken) == 2


@pytest.mark.parametrize("way", ["beam", "repeats"])
def test_threads_change_nothing(way, two_threads):
    texts = documents(3, seed=5)
    generator = KeyphraseGenerator(checkpoint("pusl"))
    expected = generator.generate(texts, 3, **WAYS[way])
    torch.set_num_threads(1)
    assert generator.generate(texts, 3, **WAYS[way]) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(128, 384), (256, 128), (512, 64), (768, 3072)])
def test_a_row_of_a_product_does_not_depend_on_the_others(shape, precision, two_threads):
    torch.manual_seed(0)
    linear = make_linear(precision, torch.device("cpu"))(torch.randn(shape[1], shape[0]))
    x = torch.randn(256, shape[0])
    whole = linear(x)
    for rows in (8, 16, 24, 40, 64, 128):
        assert torch.equal(linear(x[:rows].clone()), whole[:rows])
    torch.set_num_threads(1)
    assert torch.equal(linear(x), whole)


def test_seeds_differ_and_repeat():
    generator = KeyphraseGenerator(checkpoint("pusl"))
    one, again, other = (
        generator.generate(documents(4), 4, temperature=1.0, seed=seed, allow_repeats=True) for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
