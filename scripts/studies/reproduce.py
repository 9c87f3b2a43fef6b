"""python scripts/studies/reproduce.py DATA --out RUNS --model scratch:mini --seeds 0 1 2 --budget 240

Trains One2One, One2Seq, GROOV, PUSL, PUSL with the order-free loss, PUSL with restarts and PUSL+PT on one
data folder (train, dev and test as .jsonl or .jsonl.gz) with the same number of steps, generates keyphrases
with each, and writes RUNS/table.md in the form of the paper's Table 1: narrow and diverse items, #K@μ, #K@2μ,
B@μ, B@2μ, F1@O, mean and spread over seeds, next to kNN and SVM predictions if they are given. Every system is
asked for as many phrases as the richest test item has (at most 100), so that no item's F1@O is cut.

PUSL+PT is the finished PUSL model, post-trained by the paper's recipe: 50,000 items, half the learning rate,
3 epochs. With --post-share it gets no more steps than the others: that share of them is post-training.

If the folder has complete.jsonl (a simulated or thinned set), a second table scores the same predictions
against the complete labels, and a third (with RUNS/faithfulness.svg) shows which metric on the observed
labels ranks systems as the complete labels do.

The study can be stopped and continued: finished models, predictions and scores are reused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tables.registry import find_file

from pusl import paradigms
from pusl.catalog.run import generate_catalog
from pusl.examples import read_examples
from pusl.training import TrainConfig, TrainResult, train
from pusl.training.posttraining import Selection, mean_keyphrases, post_train
from pusl_eval.budgets import budgets
from pusl_eval.errors import exit_code
from pusl_eval.evaluation import evaluate
from pusl_eval.files import InputError, check_input, open_atomic, write_json
from pusl_eval.flags import integer, named_files
from pusl_eval.normalize import distinct

SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {  # name: title, its own training settings
    **{name: (paradigms.get(name).title, {"paradigm": name}) for name in ("one2one", "one2seq", "groov", "pusl")},
    "pusl-of": ("PUSL, order-free", {"paradigm": "pusl", "loss": "order-free"}),
    "pusl-re": ("PUSL, restarts .5", {"paradigm": "pusl", "restart": 0.5}),
    "pusl-re2": ("PUSL, restarts .2", {"paradigm": "pusl", "restart": 0.2}),
    "pusl-rich": ("PUSL, restarts .5, rich items", {"paradigm": "pusl", "restart": 0.5}),  # those with more than μ
    "one2one-rich": ("One2One, rich items", {"paradigm": "one2one"}),
    "one2seq-rich": ("One2Seq, rich items", {"paradigm": "one2seq"}),
    "pusl-bok": ("PUSL, <bok> learned", {"paradigm": "pusl", "learn_bok": True}),
    "pusl-pt": ("PUSL+PT", {"paradigm": "pusl"}),
    "pusl-pt-raw": ("PUSL+PT, raw", {"paradigm": "pusl"}),  # the paper's Table 6
    "pusl-pt-synthetic": ("PUSL+PT, synthetic", {"paradigm": "pusl"}),
    "pusl-re-pt": ("PUSL+PT, restarts .5", {"paradigm": "pusl", "restart": 0.5}),
    # Controls: the effect of selecting rich items alone (--post 'sources="raw"').
    "one2one-pt": ("One2One+PT", {"paradigm": "one2one"}),
    "one2seq-pt": ("One2Seq+PT", {"paradigm": "one2seq"}),
    "one2seq-pt-pusl": ("One2Seq+PT, PUSL's items", {"paradigm": "one2seq"}),  # the paper's Table 7
    # Models of other systems, decoded without our search.
    "one2one-stock": ("One2One, stock beam search", {}),
    "pusl-a1": ("PUSL, Algorithm 1", {}),
}
MODEL_OF = {"one2one-stock": "one2one", "pusl-a1": "pusl"}  # the system whose model it decodes, if not its own
# Post-trained systems: the system they start from, and their own settings of the selection.
POST: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name.removesuffix("-pt"), {}) for name in SYSTEMS if name.endswith("-pt")},
    "pusl-pt-raw": ("pusl", {"sources": "raw"}),
    "pusl-pt-synthetic": ("pusl", {"sources": "synthetic"}),
    "one2seq-pt-pusl": ("one2seq", {"generator": "pusl"}),  # a system's name stands for its model
}
ON_REQUEST = {"pusl-bok", "pusl-re2", *POST, *MODEL_OF} - {"pusl-pt"}  # and all on rich items only
DEFAULT_SYSTEMS = [name for name in SYSTEMS if name not in ON_REQUEST and not name.endswith("-rich")]
POST_EPOCHS = 3.0  # paper
MOST = 100  # phrases: O is cut there, in the paper and in `evaluate`


@dataclass(frozen=True)
class Study:
    """One data folder, one model shape, one budget."""

    data: Path
    out: Path
    model: str
    seeds: Sequence[int]
    steps: int  # of every system
    mu: float  # keyphrases per training item
    k: tuple[int, int]
    systems: Sequence[str]
    options: dict[str, Any]  # training settings of every system
    post: dict[str, Any]  # settings of post-training's selection
    post_share: float | None = None  # of the steps of a system with post-training; None: the paper's recipe
    depth: int = 0  # phrases to ask for; 0: 2μ

    def file(self, name: str) -> Path:
        """`test` -> the folder's test.jsonl or test.jsonl.gz."""
        return find_file(self.data, name)

    @property
    def asked(self) -> int:
        """Phrases that every system is asked for."""
        return max(self.depth, self.k[1])

    def folder(self, system: str, seed: int) -> Path:
        """The folder of a system's model and predictions."""
        return self.out / f"{system}-{seed}"


def richest(data: Path) -> int:
    """The largest number of keyphrases of a test item, on complete labels too, at most 100."""
    files = [path for name in ("test", "complete") for path in list(_optional(data, name))]
    most = max(len(distinct(example.keyphrases)) for path in files for example in read_examples(path))
    return min(most, MOST)


def _optional(data: Path, name: str) -> list[Path]:
    try:
        return [find_file(data, name)]
    except InputError:
        return []


def config_of(study: Study, system: str, seed: int, **more: Any) -> TrainConfig:
    """The training settings that all systems share, and the system's own."""
    settings: dict[str, Any] = {
        "model": study.model, "train": str(study.file("train")), "dev": str(study.file("dev")),
        "out": str(study.folder(system, seed) / "model"), "max_steps": study.steps, "seed": seed, "patience": 0,
        **study.options, **SYSTEMS[system][1], **more,
    }  # fmt: skip
    if system.endswith("-rich"):
        settings["min_keyphrases"] = math.floor(study.mu) + 1
    return TrainConfig(**settings)


def train_system(study: Study, system: str, seed: int) -> Path:
    """Trains one system unless that is done; returns its model folder."""
    system = MODEL_OF.get(system, system)
    model = study.folder(system, seed) / "model"
    started = (model / "run.json").exists()
    result = post_train_system(study, system, seed) if system in POST else train(
        config_of(study, system, seed), resume=started
    )  # fmt: skip
    if not result.finished:
        raise KeyboardInterrupt
    return model


def post_train_system(study: Study, system: str, seed: int) -> TrainResult:
    """The system it starts from, then post-training: by the paper's recipe, or within the same number of steps."""
    start, chosen = POST[system]
    model = study.folder(system, seed) / "model"
    more: dict[str, Any]
    if study.post_share is None:
        base = train_system(study, start, seed)
        more = {"max_steps": None, "epochs": POST_EPOCHS, "lr": None}
    else:
        base = model.with_name("base")
        last = min(max(1, round(study.post_share * study.steps)), study.steps - 1)
        first = config_of(study, system, seed, out=str(base), max_steps=study.steps - last)
        result = train(first, resume=(base / "run.json").exists())
        if not result.finished:
            return result
        # Post-training's default of half the rate is for models that were trained for long (docs/log.md).
        more = {"max_steps": last, "lr": result.record["config"]["lr"]}
    settings = {**study.post, **chosen}
    if "generator" in settings:
        settings["generator"] = str(train_system(study, settings["generator"], seed))
    second, selection = config_of(study, system, seed, **more), Selection(selection_seed=seed, **settings)
    started = (model / "run.json").exists()
    return post_train(base, model, second, selection, resume=started, workers=1)[0]


def predict(study: Study, system: str, seed: int, items: str = "test") -> Path:
    """Generates keyphrases for each item of the test file, or of another one, unless that is done."""
    model = train_system(study, system, seed)  # an InputError if it was trained with other settings
    output = study.folder(system, seed) / f"{'predictions' if items == 'test' else items}-{study.asked}.jsonl"
    if not output.exists():
        if system == "one2one-stock":
            from stock_beam import stock_beam

            stock_beam(model, study.file(items), output, study.asked)
        else:
            generate_catalog(model, study.file(items), output, study.asked, allow_repeats=system == "pusl-a1" or None)
    return output


def scores(study: Study, predictions: Path, truth: str, ks: Sequence[int], name: str) -> dict[str, Any]:
    """Scores of one prediction file, stored for the next run."""
    kept = study.out / "scores" / f"{name}-{truth}-{study.k[1]}-{study.asked}.json"
    if not kept.exists():
        found = evaluate(study.file(truth), predictions, k=ks, train=study.file("train"), bootstrap=1000)
        write_json(kept, dict(found))
    return dict(json.loads(kept.read_text(encoding="utf-8")))


def systems_of(study: Study, given: dict[str, Path]) -> Iterator[tuple[str, list[tuple[str, Path]]]]:
    """(title, [(run name, predictions file)]) for the given files and every trained system."""
    for title, path in given.items():
        yield title, [(title, path)]
    for system in study.systems:
        yield SYSTEMS[system][0], [(f"{system}-{seed}", predict(study, system, seed)) for seed in study.seeds]


def table(study: Study, truth: str, given: dict[str, Path]) -> str:
    """The paper's Table 1: mean over seeds, ± their standard deviation."""
    middle, double = study.k
    metrics = [f"K@{middle}", f"K@{double}", f"B@{middle}", f"B@{double}", "F1@O"]
    names = ["#K@μ", "#K@2μ", "B@μ", "B@2μ", "F1@O"]
    groups = ("narrow", "diverse", "all")
    head = [f"{name} {group}" for group in groups for name in names]
    lines = ["| system | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for title, runs in systems_of(study, given):
        found = [scores(study, path, truth, [middle, double], run)["scores"] for run, path in runs]
        cells = [_mean([f[group][metric] for f in found], metric) for group in groups for metric in metrics]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(values: Sequence[float | None], metric: str) -> str:
    known = np.array([v for v in values if v is not None], dtype=float)
    if not len(known):
        return "–"
    scale, digits = (1.0, 2) if metric.startswith("K") else (100.0, 1)
    spread = f" ± {scale * known.std(ddof=1):.{digits}f}" if len(known) > 1 else ""
    return f"{scale * known.mean():.{digits}f}{spread}"


def faithful(study: Study, given: dict[str, Path]) -> str:
    """Does a metric on observed labels rank systems as the complete truth does? Table, and a plot over k."""
    from faithfulness import faithfulness

    ks = sorted({1, *(round(study.k[1] * part / 4) or 1 for part in range(1, 5)), *study.k})
    runs = [run for _, found in systems_of(study, given) for run in found]
    seen, full = (
        [scores(study, path, truth, ks, f"{name}-curve")["scores"]["all"] for name, path in runs]
        for truth in ("test", "complete")
    )
    return faithfulness([(seen, full)], ks, study.out / "faithfulness.svg")


def affordable_steps(study: Study, budget: float) -> int:
    """Steps that fit the budget in minutes, from 30 timed steps of each system (kept in seconds_per_step.json)."""
    kept = study.out / "seconds_per_step.json"
    seconds = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    models = dict.fromkeys(MODEL_OF.get(system, system) for system in study.systems)
    if study.post_share is None:  # post-training itself is not in the budget
        models = dict.fromkeys(POST[system][0] if system in POST else system for system in models)
    for system in models:
        if system not in seconds:
            probe = config_of(study, system, 0, out=str(study.out / "probe" / system), max_steps=30, dev=None)
            seconds[system] = train(probe, force=True).record["timings"]["train"] / 30
            write_json(kept, seconds, force=True)
    each = sum(seconds[system] for system in models)
    return max(10, round(0.75 * 60 * budget / (each * len(study.seeds))))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with train, dev and test files")
    parser.add_argument("--out", type=Path, required=True, help="folder for models, predictions and table.md")
    parser.add_argument("--model", default="scratch:tiny", help="model to start from (default: scratch:tiny)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run per seed (default: 0 1 2)")
    parser.add_argument("--steps", type=int, help="optimizer steps of every system (default: what --budget allows)")
    parser.add_argument("--budget", type=float, default=60, help="minutes for the whole study (default: 60)")
    parser.add_argument("-k", "--k", type=int, help="keyphrases per item (default: 2μ of the training labels)")
    parser.add_argument(
        "--predictions", nargs="*", default=[], metavar="NAME=FILE", help="predictions of other systems for the table"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="further training settings (JSON values)"
    )
    parser.add_argument(
        "--post", nargs="*", default=[], metavar="KEY=VALUE", help="settings of post-training's selection (JSON values)"
    )
    parser.add_argument(
        "--post-share", type=float, metavar="SHARE",
        help="share of a +PT system's steps that are post-training (default: post-training comes on top)",
    )  # fmt: skip
    parser.add_argument(
        "--depth",
        type=integer(1),
        help="phrases to ask for (default: as many as the richest test item has, at most 100)",
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=DEFAULT_SYSTEMS, help="systems to train")
    parser.add_argument("--train-only", action="store_true", help="train what is missing and stop")
    args = parser.parse_args()
    options, post = (
        {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
        for pairs in (args.set, args.post)
    )
    if args.steps is not None and args.steps < 2:
        parser.error(f"--steps {args.steps}: expected at least 2")
    if args.post_share is not None and not 0 < args.post_share < 1:
        parser.error(f"--post-share {args.post_share}: expected a share between 0 and 1")
    mu = mean_keyphrases(find_file(args.data, "train"))
    most = richest(args.data)
    double = args.k or 2 * mu
    k = budgets(double / 2)
    study = Study(
        data=args.data, out=args.out, model=args.model, seeds=args.seeds, steps=args.steps or 0, mu=mu, k=k,
        systems=args.systems, options=options, post=post, post_share=args.post_share,
        depth=args.depth or most,
    )  # fmt: skip
    if not args.steps:
        study = dataclasses.replace(study, steps=affordable_steps(study, args.budget))
    if args.train_only:
        for seed in study.seeds:
            for system in study.systems:
                train_system(study, system, seed)
        return
    given = {name: check_input(path) for name, path in named_files(args.predictions).items()}
    began = time.perf_counter()
    parts = [
        f"## {args.data.name}: {args.model}, {study.steps} steps, seeds {', '.join(map(str, args.seeds))}",
        f"μ = {mu:.2f}; k = {k[0]} and {k[1]}. Percent except #K; mean ± standard deviation over seeds.",
        f"{study.asked} phrases were asked for." + (f" F1@O is cut: O goes to {most}." * (study.asked < most)),
        f"`{' '.join(['python', *sys.argv])}`",
        table(study, "test", given),
    ]
    if any((args.data / f"complete{ending}").exists() for ending in (".jsonl", ".jsonl.gz")):
        parts += ["### Against the complete labels", table(study, "complete", given)]
        parts += ["### Which observed metric ranks systems as the truth does (Spearman)", faithful(study, given)]
    with open_atomic(args.out / "table.md", force=True) as stream:
        stream.write("\n\n".join(parts) + "\n")
    print("\n\n".join(parts))
    print(f"\n{time.perf_counter() - began:.0f} s; {args.out / 'table.md'}")


if __name__ == "__main__":
    sys.exit(exit_code(main, "reproduce"))
