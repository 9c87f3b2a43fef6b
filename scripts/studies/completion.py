"""python scripts/studies/completion.py --items test.jsonl --truth complete.jsonl --models PUSL=DIR One2One=DIR -k 5

How much do an item's known keyphrases tell a model about the missing ones? `--items` has the observed
keyphrases, `--truth` all of them (or each item has them in the field `complete`, as `pusl data thin` writes
them). Each model is asked for k further keyphrases; the hidden ones are right. A PUSL or fused model is asked
twice: once told the known keyphrases (`pusl generate --complete`), and once not told, where known ones are dropped
afterwards. The table gives B@k with its 95% interval over items, and the paired difference from the last system.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from pusl import FusedGenerator, KeyphraseGenerator
from pusl.examples import Example, read_examples
from pusl.process import prepare_process
from pusl_eval.errors import exit_code
from pusl_eval.evaluation import compare
from pusl_eval.files import InputError, check_input
from pusl_eval.flags import named_files
from pusl_eval.normalize import normalize

BEAMS = 64


def hidden_labels(items: Sequence[Example], truth: str | None) -> dict[str, list[str]]:
    """Id -> the right keyphrases that were not observed; complete items are omitted."""
    whole = {one.id: one.keyphrases for one in read_examples(truth)} if truth else {}
    found = {}
    for one in items:
        complete = whole.get(one.id) if truth else one.extra.get("complete")
        if complete is None:
            where = f"{truth} does not have it" if truth else "no field 'complete'; name a file with --truth"
            raise InputError(f"item {one.id!r} has no complete labels: {where}")
        observed = set(map(normalize, one.keyphrases))
        missing = [phrase for phrase in complete if normalize(phrase) not in observed]
        if missing:
            found[one.id] = missing
    if not found:
        raise InputError("no item lacks a keyphrase, so there is nothing to find")
    return found


def further(generator: Any, items: Sequence[Example], k: int, told: bool) -> dict[str, list[str]]:
    """Id -> k keyphrases that the item does not have yet. The beam width is the same, told or not."""
    texts, known = [one.text for one in items], [one.keyphrases for one in items]
    beams = {} if isinstance(generator, FusedGenerator) else {"num_beams": BEAMS}
    if told:
        found = generator.generate(texts, k, known=known, **beams)
    else:
        found = generator.generate(texts, BEAMS * 3 // 4, **beams)
    rows = {}
    for one, given in zip(items, found, strict=True):
        observed = set(map(normalize, one.keyphrases))
        rows[one.id] = [phrase for phrase in given.keyphrases if normalize(phrase) not in observed][:k]
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", required=True, help="items with their observed keyphrases")
    parser.add_argument("--truth", help="the same ids with all right keyphrases")
    parser.add_argument(
        "--models", nargs="+", required=True, metavar="NAME=DIR", help="models; the last one is the reference"
    )
    parser.add_argument("-k", "--k", type=int, nargs="+", default=[5], help="further keyphrases per item (default: 5)")
    parser.add_argument("--limit", type=int, help="only the first N items")
    args = parser.parse_args()
    prepare_process(1, keep_memory=True)
    items = list(read_examples(check_input(args.items)))[: args.limit]
    truth = hidden_labels(items, args.truth)
    items = [one for one in items if one.id in truth]
    systems = {}
    for name, folder in named_files(args.models, "--models", "DIR").items():
        generator = KeyphraseGenerator.from_pretrained(folder)
        if isinstance(generator, FusedGenerator) or generator.paradigm.reads_known:
            systems[f"{name}, told"] = further(generator, items, max(args.k), told=True)
        systems[name] = further(generator, items, max(args.k), told=False)
    found = compare(truth, systems, k=args.k)
    last = list(systems)[-1]
    gaps = {pair["a"]: pair["scores"]["all"] for pair in found["comparisons"] if pair["b"] == last}
    print("| system | " + " | ".join(f"B@{k} | ahead of {last}" for k in args.k) + " |")
    print("|---" * (1 + 2 * len(args.k)) + "|")
    for name in systems:
        cells = []
        for metric in (f"B@{k}" for k in args.k):
            scored = found["systems"][name]
            low, high = scored["intervals"]["all"][metric]
            cells.append(f"{100 * scored['scores']['all'][metric]:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
            gap = gaps[name][metric] if name in gaps else None
            span = "[{:+.1f}, {:+.1f}]".format(*(100 * edge for edge in gap["interval"])) if gap else ""
            cells.append(f"{100 * gap['difference']:+.1f} {span}" if gap else "")
        print(f"| {name} | " + " | ".join(cells) + " |")
    known = sum(len(one.keyphrases) for one in items) / len(items)
    print(f"\n{len(items):,} items that lack a keyphrase; each has {known:.1f} on average.")


if __name__ == "__main__":
    sys.exit(exit_code(main, "completion"))
