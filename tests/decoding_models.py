"""Random T5 models whose phrases have realistic lengths, and a tokenizer learned offline."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from transformers import T5Config, T5ForConditionalGeneration

from pusl import paradigms
from pusl.checkpoint import Checkpoint, scratch_model
from pusl.tokenizer import TokenIds, token_ids, train_tokenizer

IDS = TokenIds(pad=0, eos=1, bok=97, eok=98, sep=99, start=0)
WORDS = ("red", "blue", "green", "shoe", "boot", "drone", "camera", "zeto", "bavix", "phone", "case", "lamp", "table")


def random_t5(seed: int, feed_forward: str = "relu", tied: bool = True, closing: float = 6.0) -> Any:
    """A tiny T5 over 100 ids; `closing` is how much the closing marks' logits vary, so that phrases end."""
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=100, d_model=32, d_kv=8, num_heads=4, d_ff=64, num_layers=2, feed_forward_proj=feed_forward,
        decoder_start_token_id=0, tie_word_embeddings=tied,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(100, 32))
    with torch.no_grad():
        model.lm_head.weight[[IDS.eos, IDS.eok, IDS.sep]] *= closing
    return model


def random_texts(seed: int, count: int = 9, longest: int = 40) -> list[list[int]]:
    """Source ids of different lengths."""
    chance = random.Random(seed)
    return [[chance.randrange(2, 97) for _ in range(chance.randrange(0, longest))] + [1] for _ in range(count)]


def padded_batch(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Source ids as `generate` wants them."""
    longest = max(map(len, texts))
    return {
        "input_ids": torch.tensor([text + [0] * (longest - len(text)) for text in texts]),
        "attention_mask": torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts]),
    }


@functools.cache
def tokenizer() -> Any:
    """A small SentencePiece vocabulary of WORDS."""
    chance = random.Random(0)
    return train_tokenizer([" ".join(chance.choices(WORDS, k=8)) for _ in range(300)], 320)


def documents(count: int, seed: int = 0) -> list[str]:
    """Texts of different lengths made of WORDS."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(1, 25))) for _ in range(count)]


@functools.cache
def checkpoint(paradigm: str = "pusl", seed: int = 0) -> Checkpoint:
    """A random `scratch:tiny` model with that tokenizer."""
    model = scratch_model("tiny", tokenizer(), seed=seed).eval()
    marks = token_ids(tokenizer(), model.config)
    with torch.no_grad():
        model.lm_head.weight[[marks.eos, marks.eok, marks.sep]] *= 3
    return Checkpoint(model, tokenizer(), paradigms.get(paradigm), marks, {"defaults": {"max_phrase_tokens": 5}})
