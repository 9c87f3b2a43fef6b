"""python scripts/bench/scoring.py --shape small --items 20 --candidates 50

What scoring given phrases costs: `KeyphraseGenerator.score` (a text encoded once, all candidates in one decoder row)
against a plain loop of (text, phrase) pairs through the Hugging Face model, one pair at a time and all pairs of an
item in one batch. Random weights; the scores are compared.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import torch

WORDS = 400


def syllables(chance: random.Random) -> str:
    """A pronounceable word."""
    return "".join(chance.choice("bdfgklmnprst") + chance.choice("aeiou") for _ in range(chance.randrange(2, 4)))


def make(shape: str, vocabulary: int) -> tuple[Any, list[str]]:
    """A random PUSL model of a named shape, and the words of its little world."""
    from pusl.checkpoint import Checkpoint, scratch_model
    from pusl.tokenizer import token_ids, train_tokenizer

    chance = random.Random(0)
    words = [syllables(chance) for _ in range(WORDS)]
    tokenizer = train_tokenizer([" ".join(chance.choices(words, k=12)) for _ in range(2000)], 1000)
    model = scratch_model(shape, tokenizer, seed=0).eval()
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return Checkpoint(model, tokenizer, "pusl", token_ids(tokenizer, model.config)), words


@torch.inference_mode()
def plain_scores(checkpoint: Any, text: str, phrases: list[str], at_once: int) -> list[float]:
    """Pairs through the Hugging Face model, `at_once` in a batch."""
    tokens, tokenizer = checkpoint.tokens, checkpoint.tokenizer
    source = torch.tensor([tokenizer(text)["input_ids"]])
    found: list[float] = []
    for start in range(0, len(phrases), at_once):
        ids = [tokenizer(p, add_special_tokens=False)["input_ids"] for p in phrases[start : start + at_once]]
        longest = max(map(len, ids)) + 1
        labels = torch.tensor([[*row, tokens.eok, *[tokens.pad] * (longest - len(row) - 1)] for row in ids])
        marks = torch.tensor([[tokens.start, tokens.bok]]).expand(len(ids), -1)
        inputs = torch.cat([marks, labels[:, :-1]], 1)
        logits = checkpoint.model(input_ids=source.expand(len(ids), -1), decoder_input_ids=inputs).logits[:, 1:]
        taken = logits.log_softmax(-1).gather(2, labels[:, :, None])[:, :, 0]
        counted = torch.arange(longest) <= torch.tensor([len(row) for row in ids])[:, None]
        found += (taken * counted).sum(1).tolist()
    return found


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds and the result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def main() -> None:
    """Prints one line per way of scoring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small", choices=("tiny", "mini", "small"))
    parser.add_argument("--vocabulary", type=int, default=32128, help="rows of the embedding (default: T5's 32,128)")
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--words", type=int, default=60, help="words of a text (default: 60)")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    from pusl import KeyphraseGenerator

    checkpoint, words = make(args.shape, args.vocabulary)
    chance = random.Random(1)
    texts = [" ".join(chance.choices(words, k=args.words)) for _ in range(args.items)]
    phrases = [
        [" ".join(chance.choices(words, k=chance.randrange(1, 4))) for _ in range(args.candidates)] for _ in texts
    ]
    generator = KeyphraseGenerator(checkpoint)
    generator.score(texts[:1], phrases[:1])
    few = max(1, min(4, args.items))  # the loop is slow
    own, scores = timed(lambda: generator.score(texts, phrases))
    alone, one = timed(lambda: [plain_scores(checkpoint, texts[i], phrases[i], 1) for i in range(few)])
    together, many = timed(
        lambda: [plain_scores(checkpoint, texts[i], phrases[i], args.candidates) for i in range(few)]
    )
    pairs, part = args.items * args.candidates, few * args.candidates
    print(f"{args.shape}, {args.candidates} candidates an item, texts of {args.words} words, {args.threads} thread(s)")
    for name, seconds, count in (
        ("score()", own, pairs), ("pairs, one at a time", alone, part), ("pairs, an item's in a batch", together, part),
    ):  # fmt: skip
        print(f"  {name:<28}{1000 * seconds / count:8.3f} ms a pair{(seconds / count) / (own / pairs):8.1f} x")
    for name, other in (("one at a time", one), ("in a batch", many)):
        worst = max(abs(a - b) for x, y in zip(other, scores, strict=False) for a, b in zip(x, y.scores, strict=True))
        print(f"  largest difference from pairs {name}: {worst:.1e}")


if __name__ == "__main__":
    main()
