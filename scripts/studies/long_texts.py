"""python scripts/studies/long_texts.py TEST --model DIR [--join 8] [--texts 60] [--max-source-length 48] [-k 12]

Do windows find more in long texts than a cut? Joins the texts and keyphrases of several test items into one long text,
and compares `--long cut` with `--long window`: B@k, the paired 95% interval of the difference, processor time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np

from pusl import KeyphraseGenerator, read_examples
from pusl.decoding.windows import LONG
from pusl_eval.errors import InputError
from pusl_eval.normalize import normalize


def joined(path: Path, number: int, join: int, seed: int = 0) -> tuple[list[str], list[set[str]]]:
    """`number` long texts, each of `join` items, and their keyphrases."""
    items = [example for example in read_examples(path) if example.keyphrases]
    random.Random(seed).shuffle(items)
    groups = [items[i : i + join] for i in range(0, number * join, join) if i + join <= len(items)]
    if not groups:
        raise InputError(f"{path}: fewer than {join} items have keyphrases")
    texts = [" ".join(example.text for example in group) for group in groups]
    return texts, [{normalize(p) for example in group for p in example.keyphrases} for group in groups]


def main() -> int:
    """Prints one row for each way, and their difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", type=Path, metavar="TEST", help="items with keyphrases")
    parser.add_argument("--model", required=True, help="a model folder or user/model")
    parser.add_argument("--join", type=int, default=8, help="items in one long text (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=60, help="long texts (default: %(default)s)")
    parser.add_argument("--max-source-length", type=int, default=48, help="tokens that the model reads")
    parser.add_argument("-k", type=int, default=12, help="keyphrases per text")
    args = parser.parse_args()
    try:
        texts, references = joined(args.test, args.texts, args.join)
        generator = KeyphraseGenerator.from_pretrained(args.model)
        generator.max_source_length = args.max_source_length
        share = {}
        for way in LONG:
            start = time.process_time()
            found = generator.generate(texts, args.k, long=way)
            hits = [sum(normalize(p) in r for p in f.keyphrases) for f, r in zip(found, references, strict=True)]
            share[way] = 100 * np.array(hits) / args.k
            print(
                f"{way:<7} B@{args.k} {share[way].mean():5.1f}  {time.process_time() - start:6.1f} s of processor time"
            )
    except InputError as error:
        print(f"long_texts.py: {error}", file=sys.stderr)
        return 2
    gap = share["window"] - share["cut"]
    draws = np.random.default_rng(0).choice(gap, (2000, len(gap))).mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    print(f"window - cut {gap.mean():+.1f} [{low:.1f}, {high:.1f}], {len(texts)} texts of {args.join} items")
    return 0


if __name__ == "__main__":
    sys.exit(main())
