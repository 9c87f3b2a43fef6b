"""Batches: token budget, padding, sharing between processes; One2One side by side equals repeated pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pusl import paradigms
from pusl.checkpoint import scratch_model
from pusl.paradigms import One2One
from pusl.paradigms.pusl import segments
from pusl.tokenizer import token_ids, train_tokenizer
from pusl.training import objective
from pusl.training.collate import BatchPlan, Collator, PlanSampler, TokenizedItem, target_lengths
from pusl.training.objective import IGNORED, with_loss, without_loss
from pusl_eval.files import InputError

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["red running shoe", "blue suede boot", "a drone with a camera"] * 20, 320)


def items(tokenizer, count=5, phrases=(1, 6), seed=0):
    random = np.random.default_rng(seed)
    size = len(tokenizer) - 3
    found = []
    for _ in range(count):
        source = [*random.integers(3, size, random.integers(2, 12)).tolist(), 1]
        words = [random.integers(3, size, random.integers(1, 5)).tolist() for _ in range(random.integers(*phrases))]
        found.append(TokenizedItem(source, words))
    return found


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 90)), min_size=12, max_size=200),
    rows=st.floats(1, 40), multiple=st.sampled_from([1, 2, 3, 4, 8]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_every_epoch_holds_every_item_once_in_the_same_number_of_batches(lengths, rows, multiple):
    sources, targets = (np.array(column) for column in zip(*lengths, strict=True))
    plan = BatchPlan(sources, targets, rows, multiple=multiple, seed=3)
    assert len(plan) % multiple == 0
    for epoch in range(3):
        batches = plan.epoch(epoch)
        assert len(batches) == len(plan)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        assert all(len(batch) for batch in batches)
        over = 0
        for batch in batches:
            longest = -(-sources[batch].max() // 4) * 4 + -(-targets[batch].max() // 4) * 4
            over += len(batch) > 1 and len(batch) * longest > plan.tokens
        # Only where the items are too few for the next multiple of batches may some be shared over budget.
        assert over == 0 or (over < multiple and len(plan) + multiple > len(lengths))


@pytest.mark.parametrize(("items", "multiple", "batches"), [(13, 2, 12), (15, 8, 8), (16, 8, 16), (9, 8, 8)])
def test_single_items_that_do_not_fill_a_step_share_batches(items, multiple, batches):
    ones = np.ones(items, dtype=np.int64)
    sizes = sorted(len(batch) for batch in BatchPlan(ones, ones, 1, multiple=multiple).epoch(0))
    assert len(sizes) == batches
    assert sizes == [1] * (2 * batches - items) + [2] * (items - batches)


def test_batches_hold_the_asked_number_of_items_on_average_and_little_padding():
    sources, targets = rng.integers(5, 60, 3000), rng.geometric(1 / 30, 3000)
    plan = BatchPlan(sources, targets, 32)
    assert 0.85 < 3000 / len(plan) / 32 < 1.15
    padded = sum(len(batch) * (sources[batch].max() + targets[batch].max()) for batch in plan.epoch(0))
    assert padded < 1.35 * (sources.sum() + targets.sum())


def test_the_plan_depends_on_seed_and_epoch_only():
    sources, targets = rng.integers(5, 60, 300), rng.integers(5, 60, 300)
    first, again, other = (BatchPlan(sources, targets, 16, seed=seed) for seed in (1, 1, 2))
    same = [[batch.tolist() for batch in plan.epoch(4)] for plan in (first, again)]
    assert same[0] == same[1]
    assert same[0] != [batch.tolist() for batch in other.epoch(4)]
    assert same[0] != [batch.tolist() for batch in first.epoch(5)]
    assert not np.array_equal(first.epoch(0)[0], sorted(first.epoch(0)[0])), "equals are shuffled"


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_share_the_micro_batches_of_a_step(world):
    sources, targets = rng.integers(5, 60, 300), rng.integers(5, 60, 300)
    plan = BatchPlan(sources, targets, 8, multiple=4)
    samplers = [PlanSampler(plan, rank, world) for rank in range(world)]
    for sampler in samplers:
        sampler.set_epoch(2)
    assert {len(sampler) for sampler in samplers} == {len(plan) // world}
    interleaved = [batch for group in zip(*samplers, strict=True) for batch in group]
    assert [draw[0].batch for draw in interleaved] == [2 * len(plan) + number for number in range(len(plan))]
    assert [[draw.index for draw in batch] for batch in interleaved] == [batch.tolist() for batch in plan.epoch(2)]


def test_every_step_mixes_lengths():
    sources, targets = rng.integers(5, 20, 2000), rng.geometric(1 / 30, 2000)
    plan = BatchPlan(sources, targets, 8, multiple=4)
    middle = np.median(targets)
    batches = plan.epoch(1)
    for step in range(0, len(batches), 4):
        means = [targets[batch].mean() for batch in batches[step : step + 4]]
        assert means == sorted(means) and means[0] <= middle and means[-1] > 2 * middle
    first = [batches[step] for step in range(0, len(batches), 4)]
    assert any(first[i].max() > first[i + 1].max() for i in range(5)), "the steps themselves are shuffled"


def test_too_few_items_for_a_step_is_an_input_error():
    with pytest.raises(InputError, match="--accumulation"):
        BatchPlan(np.ones(3, int), np.ones(3, int), 1, multiple=4)


def test_padding_goes_to_a_multiple_and_is_ignored(tokenizer):
    batch = Collator(paradigms.get("pusl"), token_ids(tokenizer), multiple=8, learn_bok=True)(items(tokenizer))
    for name in ("input_ids", "labels"):
        assert batch[name].shape[1] % 8 == 0
    assert ((batch["input_ids"] == 0) == (batch["attention_mask"] == 0)).all()
    for row in range(len(batch["labels"])):
        used = int((batch["labels"][row] != IGNORED).sum())
        assert batch["decoder_input_ids"][row, 0] == 0
        assert torch.equal(batch["decoder_input_ids"][row, 1:used], batch["labels"][row, : used - 1])


@pytest.mark.parametrize("paradigm", ["one2one", "one2seq", "groov", "pusl"])
def test_planned_target_lengths_are_the_real_ones(tokenizer, paradigm):
    batch = items(tokenizer, 20)
    totals = np.array([sum(map(len, item.phrases)) for item in batch])
    counts = np.array([len(item.phrases) for item in batch])
    labels = Collator(paradigms.get(paradigm), token_ids(tokenizer), multiple=1, learn_bok=True)(batch)["labels"]
    assert (labels != IGNORED).sum(1).tolist() == target_lengths(totals, counts, paradigms.get(paradigm), 256).tolist()


def naive_pairs(model, batch, tokens):
    """The document repeated for every keyphrase, through Hugging Face's own forward and loss."""
    total = 0.0
    for item in batch:
        for row, _ in One2One().sequences(item.phrases, tokens, 256):
            out = model(input_ids=torch.tensor([item.source]), labels=torch.tensor([row]))
            total = total + out.loss * len(row)
    return total


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one2one_side_by_side_equals_repeated_pairs(tokenizer, attention):
    tokens = token_ids(tokenizer)
    model = scratch_model("tiny", tokenizer, dropout=0.0, seed=0).double()
    model.set_attn_implementation(attention)
    batch = items(tokenizer, 2, (5, 8))
    expected = naive_pairs(model, batch, tokens)
    expected.backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model = with_loss(model).train()
    inputs = Collator(paradigms.get("one2one"), tokens)(batch)
    for name in ("batch_number", "items"):
        inputs.pop(name)
    loss = model(**inputs)["loss"]
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-5, atol=1e-5, msg=name)
    assert type(without_loss(model)).__name__ == "T5ForConditionalGeneration"


def _summed(model, batch):
    inputs = {name: value for name, value in batch.items() if name not in ("batch_number", "items")}
    return model(**inputs)["loss"]


def test_restarted_sequences_side_by_side_equal_rows_of_their_own(tokenizer):
    tokens = token_ids(tokenizer)
    model = with_loss(scratch_model("tiny", tokenizer, dropout=0.0, seed=0).double())
    whole = items(tokenizer, 3, (4, 8), seed=3)
    alone = []
    for number, item in enumerate(whole):
        item.restarts = [(i + number) % 3 == 1 for i in range(len(item.phrases))]
        alone += [TokenizedItem(item.source, item.phrases[a:b]) for a, b in segments(item.restarts)]
    assert len(whole) < len(alone) < sum(len(item.phrases) for item in whole)
    losses, gradients = [], []
    for batch in (whole, alone):
        model.zero_grad()
        losses.append(_summed(model, Collator(paradigms.get("pusl"), tokens)(batch)))
        losses[-1].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*losses)
    older = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 15)  # T5's softmax rounds to float32 there
    torch.testing.assert_close(*gradients, **({"rtol": 1e-4, "atol": 2e-6} if older else {}))


def test_rows_looked_up_together_give_the_gradients_of_two_lookups(tokenizer, monkeypatch):
    tokens = token_ids(tokenizer)
    model = with_loss(scratch_model("tiny", tokenizer, dropout=0.0, seed=0).double())
    batch = Collator(paradigms.get("pusl"), tokens)(items(tokenizer, 3, (4, 8), seed=3))
    losses, gradients = [], []
    for few in (10**9, 0):
        monkeypatch.setattr(objective, "FEW_ROWS", few)
        model.zero_grad()
        assert set(model._embedded(batch["input_ids"], batch["decoder_input_ids"])[0]) == {
            "input_ids" if few else "inputs_embeds"
        }
        losses.append(_summed(model, batch))
        losses[-1].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert losses[0] == losses[1]
    torch.testing.assert_close(*gradients)


def test_bfloat16_on_a_cpu_gives_about_the_same_loss(tokenizer):
    model = with_loss(scratch_model("tiny", tokenizer, dropout=0.0, seed=0))
    batch = Collator(paradigms.get("pusl"), token_ids(tokenizer))(items(tokenizer, 3, (4, 8), seed=3))
    exact = _summed(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = _summed(model, batch)
    rounded.backward()
    assert rounded != exact and rounded.item() == pytest.approx(exact.item(), rel=0.01)


def test_a_restarted_sequence_may_say_every_keyphrase_of_its_item(tokenizer):
    item = TokenizedItem([5, 1], [[10, 11], [12], [13]], restarts=[False, True, False])
    batch = Collator(paradigms.get("pusl"), token_ids(tokenizer), order_free=True, multiple=1)([item])
    labels, allowed = batch["labels"][0].tolist(), [sorted(set(row) - {-1}) for row in batch["allowed"].tolist()]
    assert batch["blocks"][0].tolist() == [0] * 4 + [1] * 6
    counted = [label for label in labels if label != IGNORED]
    assert [ids for label, ids in zip(counted, allowed, strict=True) if label in (10, 12, 13)] == [
        [10, 12, 13], [10, 12, 13], [10, 13],
    ]  # fmt: skip


@pytest.mark.parametrize(("paradigm", "learn_bok"), [("one2seq", False), ("pusl", True), ("pusl", False)])
def test_loss_at_target_positions_only_equals_hugging_face(tokenizer, paradigm, learn_bok):
    tokens = token_ids(tokenizer)
    model = scratch_model("tiny", tokenizer, dropout=0.0, seed=0)
    inputs = Collator(paradigms.get(paradigm), tokens, learn_bok=learn_bok)(items(tokenizer, 6))
    whole = Collator(paradigms.get(paradigm), tokens, learn_bok=True)(items(tokenizer, 6))["labels"]
    plain = model(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=inputs["labels"],
        decoder_input_ids=model._shift_right(whole),
    ).loss  # fmt: skip
    for name in ("batch_number", "items"):
        inputs.pop(name)
    loss = with_loss(model)(**inputs)["loss"] / (inputs["labels"] != IGNORED).sum()
    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order_free", [False, True])
@pytest.mark.parametrize("restarts", [None, [False, True]])
def test_bok_is_read_but_not_learned_unless_asked_for(tokenizer, order_free, restarts):
    tokens = token_ids(tokenizer)
    item = TokenizedItem([5, 1], [[10, 11], [12]], restarts=restarts)
    plain, paper = (
        Collator(paradigms.get("pusl"), tokens, order_free=order_free, multiple=1, learn_bok=learn)([item])
        for learn in (False, True)
    )
    assert paper["labels"][0].tolist() == [tokens.bok, 10, 11, tokens.eok, tokens.bok, 12, tokens.eok]
    assert plain["labels"][0].tolist() == [IGNORED, 10, 11, tokens.eok, IGNORED, 12, tokens.eok]
    assert torch.equal(plain["decoder_input_ids"], paper["decoder_input_ids"])
    assert (plain["decoder_input_ids"] == tokens.bok).sum() == 2
    if order_free:
        kept = paper["allowed"][(paper["labels"][0] != tokens.bok)]
        assert torch.equal(plain["allowed"], kept)


def test_order_free_batches_allow_at_least_the_label(tokenizer):
    for paradigm in ("groov", "pusl"):
        batch = Collator(paradigms.get(paradigm), token_ids(tokenizer), order_free=True)(items(tokenizer, 6, (2, 6)))
        labels = batch["labels"][batch["labels"] != IGNORED]  # (N,)
        assert batch["allowed"].shape[0] == len(labels)
        assert (batch["allowed"] == labels[:, None]).any(1).all()
        assert ((batch["allowed"] >= 0).sum(1) > 1).any(), "some position has a choice"


def test_long_targets_are_cut_to_whole_keyphrases(tokenizer):
    tokens = token_ids(tokenizer)
    item = TokenizedItem([5, 1], [[10, 11, 12]] * 10)
    for paradigm, each in (("one2one", 4), ("one2seq", 4), ("pusl", 5)):
        labels = Collator(paradigms.get(paradigm), tokens, max_target_length=22, multiple=1)([item])["labels"]
        assert labels.shape[1] == 22 // each * each
