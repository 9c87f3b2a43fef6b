"""python scripts/studies/fusion.py DATA --model MODEL --out RUNS [--sources knn svm plt text] [--sizes 50 100 200 500]

Fuses a trained model with other sources on DATA/{train,dev}.jsonl(.gz) and compares everything on all test items: each
source alone, reciprocal ranks, the fused ranking; B@μ, B@2μ and F1@O in percent, with paired 95% intervals of fused
against the best single source. With --sizes, fewer dev items are learned from (a learning curve). With --told, items
are told a fifth of their labels. With --beside NAME=PREDICTIONS, further systems are in the table, but not fused.
Nothing is chosen on test items. Every list is as long as F1@O needs: an item with more labels than the sources usually
propose is asked for as many as it has, at most 100.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pusl.fusion.features import CandidatePool, Pooler
from pusl.fusion.fused import FusedGenerator
from pusl.fusion.held_out import reliability
from pusl.fusion.learn import DEV_ITEMS, TOLD_ITEMS, collect, fuse, read_labeled, training_rows
from pusl.fusion.memory import LabeledItem
from pusl.fusion.ranker import Ranker, fit_ranker
from pusl.fusion.sources import GeneratorSource
from pusl_eval.evaluation import compare
from pusl_eval.files import write_json
from pusl_eval.normalize import distinct, normalize
from pusl_eval.records import read_predictions

Predictions = dict[str, list[str]]
MOST = 100  # O is cut there, in the paper and in `evaluate`


def file(data: Path, name: str) -> Path:
    """DATA/name.jsonl or .jsonl.gz."""
    plain = data / f"{name}.jsonl"
    return plain if plain.exists() else data / f"{name}.jsonl.gz"


def deep_pools(model: FusedGenerator, items: Sequence[LabeledItem]) -> list[CandidatePool]:
    """Candidates of each item: as many from each source as usual, or as many as the item has labels."""
    wanted = [min(MOST, len(distinct(phrases))) for _, _, phrases in items]
    rich = [number for number, count in enumerate(wanted) if count > model.depth]
    found: dict[int, CandidatePool] = {}
    if rich:
        deeper = Pooler(model.memory, model.sources, max(wanted))
        found.update(zip(rich, collect(deeper, [items[number] for number in rich]), strict=True))
    usual = [number for number in range(len(items)) if number not in found]
    found.update(zip(usual, collect(model.pooler, [items[number] for number in usual]), strict=True))
    return [found[number] for number in range(len(items))]


def ranked(pools: Sequence[CandidatePool], items: Sequence[LabeledItem], scores: np.ndarray, k: int) -> Predictions:
    """The k best candidates of each item by given scores; -inf is no candidate."""
    found, start = {}, 0
    for pool, item in zip(pools, items, strict=True):
        own = scores[start : start + len(pool.forms)]
        start += len(pool.forms)
        found[item[0]] = [pool.phrases[i] for i in np.argsort(-own, kind="stable")[:k] if own[i] > -np.inf]
    return found


def rankings(
    model: FusedGenerator, pools: Sequence[CandidatePool], items: Sequence[LabeledItem], k: int
) -> dict[str, Predictions]:
    """Every source alone, and reciprocal ranks."""
    features = np.concatenate([pool.features for pool in pools])
    found = {"reciprocal ranks": ranked(pools, items, Ranker(model.ranker.names).log_odds(features), k)}
    for source in model.sources:
        own = features[:, model.ranker.names.index(f"{source.name}:reciprocal_rank")]
        found[source.name] = ranked(pools, items, np.where(own > 0, own, -np.inf), k)
    return found


def generated(model: FusedGenerator, items: Sequence[LabeledItem], k: int, known: Any = None) -> Predictions:
    """What `pusl generate` gives."""
    found = model.generate([item[1] for item in items], k, known=known, ids=[item[0] for item in items])
    return {item[0]: one.keyphrases for item, one in zip(items, found, strict=True)}


def chosen(model: FusedGenerator, pools: Sequence[CandidatePool], items: Sequence[LabeledItem], k: int) -> Predictions:
    """The same from pools that are there already."""
    return {item[0]: model.choose(pool, k).keyphrases for pool, item in zip(pools, items, strict=True)}


def table(references: Any, systems: Mapping[str, Predictions], train: Path, seed: int = 0) -> dict[str, Any]:
    """Percent of every system, and fused against each other one."""
    done = compare(references, dict(systems), k=["mu", "2mu"], train=train, seed=seed)
    middle, wide = done["k"]
    names = (f"B@{middle}", f"B@{wide}", "F1@O")
    percent = {
        name: {metric: round(100 * found["scores"]["all"][metric], 2) for metric in names}
        for name, found in done["systems"].items()
    }
    gaps = {}
    for pair in done["comparisons"]:
        if "fused" in (pair["a"], pair["b"]):
            sign, other = (1, pair["b"]) if pair["a"] == "fused" else (-1, pair["a"])
            scores = pair["scores"]["all"]
            gaps[other] = {
                metric: [
                    round(100 * sign * value, 2)
                    for value in (
                        scores[metric]["difference"],
                        *sorted(scores[metric]["interval"], key=lambda x: sign * x),
                    )
                ]
                for metric in names
            }
    return {"k": done["k"], "percent": percent, "fused minus": gaps}


def shown(result: Mapping[str, Any]) -> str:
    """A Markdown table."""
    percent, gaps = result["percent"], result["fused minus"]
    names = list(percent["fused"])
    lines = [
        "| | " + " | ".join(names) + " | fused minus it, " + ", ".join(names) + " |",
        "|---|" + "---:|" * 3 + "---|",
    ]
    for system, row in percent.items():
        against = (
            "; ".join("{:+.1f} [{:.1f}, {:.1f}]".format(*gaps[system][name]) for name in names)
            if system in gaps
            else ""
        )
        lines.append(f"| {system} | " + " | ".join(f"{row[name]:.1f}" for name in names) + f" | {against} |")
    return "\n".join(lines)


def right_ones(item: LabeledItem, phrases: Sequence[str]) -> int:
    """How many of the phrases the item has."""
    return len(set(map(normalize, phrases)) & set(map(normalize, item[2])))


def unseen(items: Sequence[LabeledItem], predictions: Predictions, memory: Mapping[str, int], k: int) -> int:
    """Right keyphrases among the first k that no training item has."""
    return sum(right_ones(item, [p for p in predictions[item[0]][:k] if normalize(p) not in memory]) for item in items)


def left_out(
    items: Sequence[LabeledItem], alone: Predictions, fused: Predictions, memory: Mapping[str, int], k: int
) -> dict[str, list[int]]:
    """New phrases among a source's first k that the fused first k lack, and the last phrases that stand there instead.

    Each as [how many, how many of them are right]: whether fusing does well to leave the new ones out.
    """
    counts = {"new, left out": [0, 0], "instead of them": [0, 0]}
    for item in items:
        given = fused[item[0]][:k]
        taken = set(map(normalize, given))
        lost = [p for p in alone[item[0]][:k] if normalize(p) not in memory and normalize(p) not in taken]
        for name, phrases in zip(counts, (lost, given[len(given) - len(lost) :]), strict=True):
            counts[name][0] += len(phrases)
            counts[name][1] += right_ones(item, phrases)
    return counts


def told_half(items: Sequence[LabeledItem], share: float = 0.2) -> tuple[list[LabeledItem], list[list[str]]]:
    """Items with a part of their labels told; the rest stays to be found."""
    chance, rest, known = random.Random(0), [], []
    for name, text, phrases in items:
        count = max(1, round(share * len(phrases)))
        if len(phrases) > count:
            told = set(chance.sample(range(len(phrases)), count))
            known.append([phrase for i, phrase in enumerate(phrases) if i in told])
            rest.append((name, text, [phrase for i, phrase in enumerate(phrases) if i not in told]))
    return rest, known


def curve(
    model: FusedGenerator, data: Path, sizes: Sequence[int], test: Sequence[LabeledItem],
    pools: Sequence[CandidatePool], k: int, wide: Mapping[str, Predictions], train: Path,
) -> dict[str, Any]:  # fmt: skip
    """Fused by rankers that learned from fewer dev items."""
    dev = read_labeled(file(data, "dev"))
    order = np.random.default_rng(0).permutation(len(dev))[: max(sizes)]
    chosen = [dev[i] for i in order]
    learned = collect(model.pooler, chosen)
    features = np.concatenate([pool.features for pool in pools])
    found = {}
    for size in sizes:
        if size > len(chosen):
            continue
        rows = training_rows(learned[:size], [item[2] for item in chosen[:size]])
        ranker, _ = fit_ranker(*rows, model.ranker.names)
        systems = {"fused": ranked(pools, test, ranker.log_odds(features), k), **wide}
        found[size] = table({item[0]: item[2] for item in test}, systems, train)["percent"]["fused"]
        print(size, found[size], flush=True)
    return found


def main() -> None:
    """Runs the study and writes RUNS/NAME.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="a trained PUSL model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sources", nargs="+", default=["knn", "svm", "plt", "text"])
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--dev-items", type=int, default=DEV_ITEMS, help=f"learn from at most N (default: {DEV_ITEMS})")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16", "int8"), help="of the generator (default: fp32 on a CPU)"
    )
    parser.add_argument("--quick", action="store_true", help="do not learn once more without each source")
    parser.add_argument(
        "--beside", nargs="*", default=[], metavar="NAME=FILE", help="predictions to compare with, not to fuse"
    )
    parser.add_argument("--test-items", type=int, help="only the first N (default: all)")
    args = parser.parse_args()
    train, name = file(args.data, "train"), args.data.name
    folder = args.out / name
    if not (folder / "pusl.json").exists():
        args.out.mkdir(parents=True, exist_ok=True)
        told_items = TOLD_ITEMS if args.told else 0
        fuse(
            train, file(args.data, "dev"), [f"pusl={args.model}", *args.sources], folder, dev_items=args.dev_items,
            told_items=told_items, precision=args.precision, ablate=not args.quick,
        )  # fmt: skip
    model = FusedGenerator.load(folder, precision=args.precision)
    test = read_labeled(file(args.data, "test"))[: args.test_items]
    references = {item[0]: item[2] for item in test}
    began = time.perf_counter()
    pools = deep_pools(model, test)
    seconds = time.perf_counter() - began
    k = int(model.defaults["k"])
    generator = next(source for source in model.sources if isinstance(source, GeneratorSource))
    systems = rankings(model, pools, test, MOST)
    for other, _, path in (word.partition("=") for word in args.beside):
        systems[other] = {row.id: row.keyphrases for row in read_predictions(path, references)}
    fused = chosen(model, pools, test, MOST)
    result = table(references, {"fused": fused, **systems}, train)
    print(shown(result), flush=True)
    memory = model.memory.forms
    result["unseen labels found"] = {n: unseen(test, p, memory, k) for n, p in {"fused": fused, **systems}.items()}
    result["new labels left out"] = left_out(test, systems[generator.name], fused, memory, k)
    features, right, _ = training_rows(pools, [item[2] for item in test])
    scores = model.ranker.log_odds(features)
    result["gap of the scores"] = reliability(pools, right, scores, k, 0)
    chances = model.ranker.probabilities(scores)
    best = np.concatenate([np.argsort(np.argsort(-scores[a:b], kind="stable")) < k for a, b in spans(pools)])
    result["gap as served"] = served_gap(chances[best], right[best])
    result["items a second"] = round(len(test) / seconds, 1)
    for part in ("unseen labels found", "new labels left out", "gap as served", "items a second"):
        print(part, result[part], flush=True)
    if args.told:
        rest, known = told_half(test)
        alone = generator.generator.generate([item[1] for item in rest], k, known=known)
        untold = generated(model, rest, 2 * k)
        taken = {item[0]: set(map(normalize, phrases)) for item, phrases in zip(rest, known, strict=True)}
        told = {
            "fused": generated(model, rest, k, known),
            "fused, not told": {
                n: [p for p in found if normalize(p) not in taken[n]][:k] for n, found in untold.items()
            },
            "pusl, told": {item[0]: one.keyphrases for item, one in zip(rest, alone, strict=True)},
        }
        result["told"] = table({item[0]: item[2] for item in rest}, told, train)
        print(shown(result["told"]), flush=True)
    if args.sizes:
        result["dev items"] = curve(model, args.data, args.sizes, test, pools, MOST, {}, train)
    write_json(args.out / f"{name}.json", result, force=True)
    print(json.dumps({"written": str(args.out / f"{name}.json")}))


def spans(pools: Sequence[CandidatePool]) -> list[tuple[int, int]]:
    """Where each item's rows begin and end."""
    ends = np.cumsum([len(pool.forms) for pool in pools]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def served_gap(chances: np.ndarray, right: np.ndarray, bins: int = 20) -> float:
    """Mean distance between a score and the share of right ones among like scores, in points."""
    place = np.minimum((chances * bins).astype(int), bins - 1)
    total = sum(abs(chances[place == b].sum() - right[place == b].sum()) for b in range(bins))
    return round(100 * float(total) / len(chances), 2)


if __name__ == "__main__":
    main()
