"""python scripts/bench/precision.py --model MODEL --references test.jsonl --items 300

What a precision changes: a trained model's keyphrases in fp32 and in another precision, side by side.

Printed: the share of items whose first keyphrase is the same, the mean overlap of the first k, the largest difference
of a score that both give, and B@k against the references in both.
"""

from __future__ import annotations

import argparse
import itertools

from pusl import KeyphraseGenerator
from pusl.examples import read_examples
from pusl.process import prepare_process
from pusl_eval.metrics import budget_accuracy


def main() -> None:
    """Generates twice and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--references", required=True, metavar="FILE", help="items with keyphrases")
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--strategies", nargs="+", default=["beam", "sequence"])
    args = parser.parse_args()
    prepare_process(1, keep_memory=True)
    items = list(itertools.islice(read_examples(args.references), args.items))
    texts, gold = [item.text for item in items], [item.keyphrases for item in items]
    whole = KeyphraseGenerator.from_pretrained(args.model, device=args.device, precision="fp32")
    half = KeyphraseGenerator.from_pretrained(args.model, device=args.device, precision=args.precision)
    columns = ["strategy", "first the same", f"overlap of {args.k}", "score, largest difference"]
    columns += [f"B@{args.k} fp32", f"B@{args.k} {args.precision}"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for strategy in args.strategies:
        one, other = (generator.generate(texts, args.k, strategy=strategy) for generator in (whole, half))
        first = sum(a.keyphrases[:1] == b.keyphrases[:1] for a, b in zip(one, other, strict=True)) / len(items)
        overlap = sum(
            len(set(a.keyphrases) & set(b.keyphrases)) / max(1, len(a.keyphrases))
            for a, b in zip(one, other, strict=True)
        ) / len(items)  # fmt: skip
        pairs = [
            abs(score - dict(zip(b.keyphrases, b.scores, strict=True))[phrase])
            for a, b in zip(one, other, strict=True)
            for phrase, score in zip(a.keyphrases, a.scores, strict=True)
            if phrase in b.keyphrases
        ]
        found = [
            100 * float(budget_accuracy(gold, [a.keyphrases for a in given], args.k).mean()) for given in (one, other)
        ]
        print(f"| {strategy} | {first:.1%} | {overlap:.3f} | {max(pairs):.3f} | {found[0]:.2f} | {found[1]:.2f} |")


if __name__ == "__main__":
    main()
