"""A small shop of colored things -> tiny models of every paradigm that have learned it, each in a second or two."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from decoding_models import WORDS, tokenizer
from transformers import T5Config, T5ForConditionalGeneration

from pusl import paradigms
from pusl.checkpoint import Checkpoint
from pusl.examples import Example
from pusl.tokenizer import encode_keyphrases, encode_texts, token_ids
from pusl.training.collate import Collator, TokenizedItem
from pusl.training.objective import with_loss, without_loss
from pusl.training.optimizer import Muon

COLORS, BRANDS, THINGS = WORDS[:3], WORDS[7:9], ("shoe", "boot", "drone", "camera", "phone", "case", "lamp", "table")
STEPS, ROWS = 90, 32


def shop_items(count: int, seed: int = 0) -> list[Example]:
    """Items whose text names colors, brands and things in any order; keyphrases combine them, the common ones first."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        color, brand = chance.choice(COLORS), chance.choice(BRANDS)
        thing, other = chance.sample(THINGS, 2)
        words = [color, brand, thing, *chance.choices(WORDS[9:], k=chance.randrange(3))]
        chance.shuffle(words)
        phrases = [thing, f"{color} {thing}", f"{brand} {thing}", f"{color} {brand} {thing}", f"{thing} {other}"]
        kept = [phrase for rank, phrase in enumerate(phrases) if chance.random() < 0.95 - 0.15 * rank]
        made.append(Example(str(number), " ".join(words), kept or [thing]))
    return made


@functools.cache
def trained(paradigm: str, feed_forward: str = "relu") -> Checkpoint:
    """A two-layer T5 trained with the paradigm's own targets and loss."""
    kind = paradigms.get(paradigm)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer()) + 3, d_model=64, d_kv=16, num_heads=4, d_ff=128, num_layers=2, dropout_rate=0.0,
        feed_forward_proj=feed_forward, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = with_loss(T5ForConditionalGeneration(config))
    marks = token_ids(tokenizer(), config)
    items = shop_items(400)
    sources = encode_texts(tokenizer(), [item.text for item in items], 64)
    phrases = [encode_keyphrases(tokenizer(), item.keyphrases, marks) for item in items]
    collator = Collator(kind, marks, order_free=kind.losses[0] == "order-free")
    optimizer = Muon(model, 1e-2)
    chance = random.Random(1)
    for step in range(STEPS):
        for group in optimizer.param_groups:  # the rate falls to zero
            group["lr"] *= 1 - 1 / (STEPS - step)
        rows = [
            TokenizedItem(sources[i], chance.sample(phrases[i], len(phrases[i])))
            for i in chance.sample(range(400), ROWS)
        ]
        batch: dict[str, Any] = {k: v for k, v in collator(rows).items() if isinstance(v, torch.Tensor)}
        optimizer.zero_grad()
        (model(**batch)["loss"] / len(batch["positions"])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    meta = {"defaults": {"max_phrase_tokens": 6}}
    return Checkpoint(without_loss(model).eval(), tokenizer(), kind, marks, meta)
