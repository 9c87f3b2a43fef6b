"""python scripts/studies/ceiling.py --out RUNS --seeds 0 1 2

Can a model of keyphrase sequences beat a model of single keyphrases? This study uses a small world in which the
best possible answer is known exactly. A text names a kind and a detail, but not which of the kind's senses the
item has. Keyphrases belong to a sense or to the detail, so an item's keyphrases depend strongly on each other.
All outcomes are enumerated. This gives, for each text, the probability of every keyphrase, alone and given one
known keyphrase, and the largest B@k that any system can expect: the ceiling.

One2One and PUSL learn from samples of that world and are decoded by the same search. Their expected B@k is
computed from the enumeration, so there is no sampling noise: (1) nothing known, (2) one keyphrase known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pusl import KeyphraseGenerator
from pusl.examples import Example, write_examples
from pusl.process import prepare_process
from pusl.training import TrainConfig, train
from pusl_eval.errors import exit_code

KINDS, DETAILS, SENSES, OWN, SHARED = 12, 12, 3, 5, 3  # keyphrases of a sense, and of a detail
CHANCES = (0.5, 0.3, 0.2)  # of a kind's senses
SYSTEMS = {  # title: its own training settings
    "One2One": {"paradigm": "one2one"},
    "PUSL": {"paradigm": "pusl"},
    "PUSL, restarts .2": {"paradigm": "pusl", "restart": 0.2},
}


@dataclass(frozen=True)
class Text:
    """One text of the world and every possible set of labels of an item with it."""

    text: str
    labels: list[str]
    sets: np.ndarray  # (outcomes, labels) of 0 and 1: which labels an outcome has
    chance: np.ndarray  # (outcomes,)

    def marginals(self) -> np.ndarray:
        """Probability of each label. (labels,)"""
        return self.chance @ self.sets

    def joint(self) -> np.ndarray:
        """Row c: the probability that c is the known label (drawn from the item's own) and that l is another one."""
        drawn = self.sets * (self.chance / self.sets.sum(1))[:, None]  # (outcomes, labels)
        both = drawn.T @ self.sets  # (labels, labels)
        np.fill_diagonal(both, 0.0)
        return both


def outcomes(own: np.ndarray, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inclusion probabilities (SENSES, OWN) and (SHARED,) -> all non-empty label sets and their probabilities."""
    sets, chances = [], []
    subsets = (np.arange(2 ** (OWN + SHARED))[:, None] >> np.arange(OWN + SHARED)) & 1  # (256, 8)
    for sense, weight in enumerate(CHANCES):
        included = np.concatenate([own[sense], shared])
        chances.append(weight * np.where(subsets, included, 1 - included).prod(1))
        row = np.zeros((len(subsets), SENSES * OWN + SHARED))
        row[:, sense * OWN : (sense + 1) * OWN] = subsets[:, :OWN]
        row[:, SENSES * OWN :] = subsets[:, OWN:]
        sets.append(row)
    together, chance = np.concatenate(sets), np.concatenate(chances)
    some = together.any(1)
    return together[some], chance[some] / chance[some].sum()


def world(seed: int) -> list[Text]:
    """Every text of one world."""
    random = np.random.default_rng(seed)
    words = _words(random, KINDS * (1 + SENSES * OWN) + DETAILS * (1 + SHARED))
    kinds, details = [words.pop() for _ in range(KINDS)], [words.pop() for _ in range(DETAILS)]
    own_words = [[words.pop() for _ in range(SENSES * OWN)] for _ in kinds]
    shared_words = [[words.pop() for _ in range(SHARED)] for _ in details]
    own, shared = random.uniform(0.5, 0.95, (KINDS, SENSES, OWN)), random.uniform(0.2, 0.9, (DETAILS, SHARED))
    return [
        Text(f"{kind} {detail}", [*own_words[i], *shared_words[j]], *outcomes(own[i], shared[j]))
        for i, kind in enumerate(kinds)
        for j, detail in enumerate(details)
    ]


def _words(random: np.random.Generator, count: int) -> list[str]:
    """Different invented words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(random.choice(list("bdfgklmnprstvz")) + random.choice(list("aeiou")) for _ in range(3))] = None
    return list(found)


def draw(texts: Sequence[Text], items: int, seed: int) -> list[Example]:
    """Training items: a text, and one of its outcomes."""
    random = np.random.default_rng((seed, 1))
    found = []
    for number, place in enumerate(random.integers(0, len(texts), items)):
        text = texts[place]
        row = text.sets[random.choice(len(text.chance), p=text.chance)]
        found.append(Example(str(number), text.text, [text.labels[i] for i in np.flatnonzero(row)]))
    return found


def ceilings(texts: Sequence[Text], k: int) -> dict[str, float]:
    """The largest expected B@k: nothing known; one label known but not told to the system; one label told.

    A system that is not told gives the same ranking whatever is known; the known label is skipped afterwards.
    """
    free, blind, told = [], [], []
    for text in texts:
        joint = text.joint()
        free.append(np.sort(text.marginals())[::-1][:k].sum() / k)
        told.append(np.sort(joint, axis=1)[:, ::-1][:, :k].sum() / k)
        worth = joint.sum(0)[:, None] + joint  # (labels, next labels): its own gain, and that of its replacement
        np.fill_diagonal(worth, 0.0)
        blind.append(np.sort(worth, axis=0)[::-1][:k].sum(0).max() / k)
    return {"nothing known": _mean(free), "one known, not told": _mean(blind), "one known, told": _mean(told)}


def expected(texts: Sequence[Text], model: Path, k: int) -> dict[str, float | None]:
    """The expected B@k of a model's own rankings, by the same enumeration."""
    generator = KeyphraseGenerator.from_pretrained(model)
    joints = [dict(zip(text.labels, text.joint(), strict=True)) for text in texts]
    free, blind, told = 0.0, 0.0, None
    for text, joint, one in zip(texts, joints, generator.generate([t.text for t in texts], k + 1), strict=True):
        free += _worth(text, text.marginals(), one.keyphrases[:k])
        for label, further in joint.items():
            blind += _worth(text, further, [word for word in one.keyphrases if word != label][:k])
    if generator.paradigm.reads_known:
        pairs = [
            (text, label, further)
            for text, joint in zip(texts, joints, strict=True)
            for label, further in joint.items()
        ]
        answers = generator.generate([text.text for text, _, _ in pairs], k, known=[[label] for _, label, _ in pairs])
        told = sum(_worth(pair[0], pair[2], one.keyphrases) for pair, one in zip(pairs, answers, strict=True))
    sums = {"nothing known": free, "one known, not told": blind, "one known, told": told}
    return {column: None if value is None else value / k / len(texts) for column, value in sums.items()}


def _worth(text: Text, chances: np.ndarray, words: Sequence[str]) -> float:
    """The summed probabilities of those words that are labels of the text."""
    return float(sum(chances[text.labels.index(word)] for word in words if word in text.labels))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def study(out: Path, seed: int, k: int, items: int, steps: int) -> dict[str, dict[str, float | None]]:
    """Ceilings and systems of one world; finished models are reused."""
    texts = world(seed)
    folder = out / f"seed-{seed}-{items}"
    source = folder / "train.jsonl"
    if not source.exists():
        write_examples(source, draw(texts, items, seed))
    rows: dict[str, dict[str, float | None]] = {"ceiling": dict(ceilings(texts, k))}
    for number, (title, settings) in enumerate(SYSTEMS.items()):
        model = folder / f"model-{number}"
        config = TrainConfig(
            model="scratch:tiny", train=str(source), out=str(model), max_steps=steps, batch_size=64, dropout=0.0,
            seed=seed, vocab_size=500, **settings,
        )  # fmt: skip
        if not train(config, resume=(model / "run.json").exists()).finished:
            raise KeyboardInterrupt
        rows[title] = expected(texts, model, k)
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the worlds and their models")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="one world and its models per seed (default: 0 1 2)"
    )
    parser.add_argument("-k", "--k", type=int, default=5, help="keyphrases per text (default: 5)")
    parser.add_argument("--items", type=int, default=20_000, help="training items (default: 20000)")
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps of each model (default: 1000)")
    args = parser.parse_args()
    if args.k < 1:
        parser.error(f"-k {args.k}: expected at least 1")
    prepare_process(1, keep_memory=True)
    runs = [study(args.out, seed, args.k, args.items, args.steps) for seed in args.seeds]
    columns = list(runs[0]["ceiling"])
    print(f"| expected B@{args.k} | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for title in runs[0]:
        cells = []
        for column in columns:
            values = [value for run in runs if (value := run[title][column]) is not None]
            tops = [top for run in runs if (top := run["ceiling"][column]) is not None]
            if not values:
                cells.append("cannot be told")
                continue
            shares = [value / top for value, top in zip(values, tops, strict=True)]
            spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            share = f" ({100 * _mean(shares):.1f}% of it)" if title != "ceiling" else ""
            cells.append(f"{100 * _mean(values):.1f}{spread}{share}")
        print(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(exit_code(main, "ceiling"))
