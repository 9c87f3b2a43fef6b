"""A trained model + its training file -> rich items and self-completed items -> the model trained again.

PUSL+PT. (1) raw: training items with more keyphrases than the mean μ. (2) synthetic: for items with
few keyphrases the model generates more; they are added to the originals, repeats are dropped, and the
item is KEPT only if it now has more than μ (rejection sampling); others are tried in place of the rejected
until there are enough. Then the model trains on both with half the learning rate. Every step leaves a
finished file or nothing, so that a killed run can resume.
With a dev file the model is scored before its first step, and kept if training never beats it.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pusl.checkpoint import load_labels, read_meta
from pusl.config import option
from pusl.decoding.arguments import threshold
from pusl.examples import Example, read_examples, write_examples
from pusl.hub import model_folder
from pusl.training.record import SELECTION_FOLDER, RunFolder, check_base
from pusl.training.train_config import PRETRAINED_RATE, TrainConfig, resolve
from pusl_eval.budgets import budget
from pusl_eval.columns import STANDARD, Columns, ItemFile
from pusl_eval.files import InputError, file_digest, hash_rank, read_json, sample_by_hash, write_json
from pusl_eval.normalize import distinct

if TYPE_CHECKING:
    from pusl.training import TrainResult

SOURCES = ("raw", "synthetic")


@dataclass
class Selection:
    """How the items of post-training are chosen."""

    sources: str = option("raw,synthetic", "where items come from: raw, synthetic or raw,synthetic")
    samples: int = option(
        50_000, "items to train on, half from each source if both have enough; a synthetic item that is rejected is "
        "replaced by another while there are any", minimum=1,
    )  # fmt: skip
    generator: str | None = option(None, "model folder that completes the synthetic items (default: --model itself)")
    k: int | None = option(None, "phrases to ask the model for, per synthetic item (default: 2μ)", minimum=1)
    min_score: float | None = option(None, "drop generated phrases with a score below this, before items are rejected")
    strategy: str | None = option(
        None, "decoding strategy for synthetic items: sequence or beam (default: the model's own)"
    )
    allow_repeats: bool = option(
        True,
        "decode as in the paper: a model may repeat itself, and items that stay short are rejected; with "
        "--no-allow-repeats every item gets --k new phrases and none is rejected",
    )
    selection_seed: int = option(0, "seed that decides which items are drawn if there are more than --samples")


def mean_keyphrases(path: str | Path) -> float:
    """μ: different keyphrases per item of a training file.

    Items without any keyphrase count, as they do in `pusl_eval`.
    """
    total = items = 0
    for example in read_examples(path):
        total += len(distinct(example.keyphrases))
        items += 1
    return total / items


def parse_sources(text: str) -> list[str]:
    """`"raw,synthetic"` -> `["raw", "synthetic"]`; an unknown or missing source is an InputError."""
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in chosen if part not in SOURCES]
    if unknown or not chosen:
        raise InputError(f"--sources is {text!r}; expected raw, synthetic or raw,synthetic")
    return [source for source in SOURCES if source in chosen]


def draw(examples: Iterable[Example], count: int, seed: int) -> list[Example]:
    """`count` examples in file order, drawn by a hash of seed and id: one pass, `count` items of memory."""
    return sample_by_hash(examples, count, lambda example: hash_rank(f"{seed}\0{example.id}", 16))


def complete_example(example: Example, generated: Iterable[str], mu: float) -> Example | None:
    """The example with the generated phrases added, or None if it still has at most μ (rejected).

    >>> complete_example(Example("a", "t", ["drone"]), ["Drone", "toy"], 1.5).keyphrases
    ['drone', 'toy']
    >>> complete_example(Example("a", "t", ["drone"]), ["Drone"], 1.5) is None
    True
    """
    merged = distinct([*example.keyphrases, *generated])
    if len(merged) <= mu:
        return None
    return Example(example.id, example.text, merged, extra={"source": "synthetic", "observed": example.keyphrases})


def post_train(
    model: str | Path,
    out: str | Path,
    train_config: TrainConfig,
    options: Selection,
    *,
    resume: bool = False,
    force: bool = False,
    workers: int | None = None,
    callbacks: Sequence[Any] = (),
) -> tuple[TrainResult, dict[str, Any]]:
    """Selects items in `out/selection`, then trains `model` on them; `out` holds the best model.

    Args:
        model: the folder of a finished training.
        out: the folder of the new model.
        train_config: the training file and settings of your own. The others follow the first run: its paradigm, loss,
            order and restarts, and half its learning rate.
        options: which items are chosen.
        resume: continue the unfinished run in `out`.
        force: replace the run in `out`.
        workers: processes that complete items.
        callbacks: as in `train`.
    """
    from pusl.training import train

    out = Path(out)
    folder = model_folder(model)
    meta, labels = read_meta(folder), load_labels(folder)
    threshold(options.min_score, "log-probability", "--min-score", hint="")
    RunFolder(out).admit(resume, force)  # a finished run is refused before the slow part
    check_base(model, out)
    config = dataclasses.replace(
        train_config, model=str(model), paradigm=meta["paradigm"], loss=meta.get("loss"), order=meta.get("order"),
        out=str(out), max_source_length=meta.get("defaults", {}).get("max_source_length", 256),
        **_from_first_run(folder, meta, train_config),
    )  # fmt: skip
    resolve(config)  # and so is what is wrong with the settings
    if options.generator is not None:
        read_meta(model_folder(options.generator))
    own = Columns(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Columns)})
    if config.dev:
        next(iter(read_examples(ItemFile(config.dev, own))))  # a bad dev file too
    selection = out / SELECTION_FOLDER
    with RunFolder(out).locked():
        RunFolder(out).admit(resume, force)  # another run may have begun or ended here meanwhile
        is_new = not selection.exists()
        try:
            report = select(folder, ItemFile(str(train_config.train), own), selection, options, workers, config.device)
        except InputError:
            if is_new and not list(selection.glob("generated*")):  # nothing that took time to make
                shutil.rmtree(selection, ignore_errors=True)
            raise
    # The selected items have the standard columns, and so has the dev file: `pusl train --resume` knows no others.
    config = dataclasses.replace(
        config, train=str(selection / "selected.jsonl"), mu=report["mu"],
        dev=_standard_dev(config.dev, own, selection), **dataclasses.asdict(STANDARD),
    )  # fmt: skip
    # What the model invented for itself is not a training label.
    result = train(config, resume=resume, force=force, labels=labels, score_first=True, callbacks=callbacks)
    return result, report


def _standard_dev(dev: str | None, columns: Columns, folder: Path) -> str | None:
    """The dev file, or a copy of it with the standard columns if its columns have other names."""
    if dev is None or columns == STANDARD:
        return dev
    copy = folder / "dev.jsonl"
    write_examples(copy, read_examples(ItemFile(dev, columns)), force=True)
    return str(copy)


def _from_first_run(model: str | Path, meta: dict[str, Any], asked: TrainConfig) -> dict[str, Any]:
    """Restarts and marks as the model learned them, its optimizer at half its rate (paper) unless asked otherwise."""
    record = RunFolder(model).record()
    first = record["config"] if record else {}
    same = {name: meta.get(name, default) for name, default in (("restart", 0.0), ("learn_bok", False))}
    own = first.get("optimizer", "adamw")
    optimizer = asked.optimizer or own
    rate = float(first.get("lr", PRETRAINED_RATE)) / 2 if asked.lr is None and optimizer == own else asked.lr
    return {**same, "optimizer": optimizer, "lr": rate}


def select(
    model: str | Path,
    train: str | Path,
    folder: str | Path,
    options: Selection,
    workers: int | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Writes `folder/selected.jsonl` (what to train on) and returns the kept/rejected report.

    A finished selection with the same settings is used again; an unfinished generation is continued.
    """
    folder = Path(folder)
    selected, report_file = folder / "selected.jsonl", folder / "selection.json"
    sources = parse_sources(options.sources)
    settings = {"model": str(model), "train": str(train), **dataclasses.asdict(options)}
    if selected.exists() and report_file.exists():
        report = read_json(report_file, "delete it, and the selection is made again")
        if report.get("settings") == settings:
            return report
    mu = mean_keyphrases(train)
    report = {"mu": mu, "settings": settings}
    rich: list[Example] = []
    made: list[Example] = []
    if "raw" in sources:
        rich = draw(_split(train, mu, rich=True), options.samples, options.selection_seed)
    if "synthetic" in sources:
        quota = max(options.samples // len(sources), options.samples - len(rich))  # a source that is short is made up
        made, report["synthetic"] = _synthesize(
            options.generator or model, train, mu, quota, folder, options, workers, device
        )
    if "raw" in sources:
        rich = draw(rich, options.samples - len(made), options.selection_seed)
        report["raw"] = {"kept": len(rich)}
    parts = [Example(e.id, e.text, distinct(e.keyphrases), extra={"source": "raw"}) for e in rich] + made
    if not parts:
        raise InputError(f"{train}: no item qualifies for post-training (μ = {mu:.2f}); try --sources raw,synthetic")
    write_examples(selected, parts, force=True)
    write_json(report_file, report, force=True)
    return report


def _split(train: str | Path, mu: float, rich: bool) -> Iterator[Example]:
    for example in read_examples(train):
        size = len(distinct(example.keyphrases))
        if (size > mu) == rich and size:
            yield example


def _synthesize(
    model: str | Path,
    train: str | Path,
    mu: float,
    quota: int,
    folder: Path,
    options: Selection,
    workers: int | None,
    device: str,
) -> tuple[list[Example], dict[str, int]]:
    """`quota` completed items: sparse ones in the order of their draw, in rounds, until enough are kept.

    A round is as large as the share kept so far asks for. That depends on results alone, so that a run that was
    killed chooses the same items.
    """
    ranks = [
        (hash_rank(f"{options.selection_seed}\0{example.id}", 16), number)
        for number, example in enumerate(_split(train, mu, rich=False))
    ]
    order = [number for _, number in sorted(ranks)]  # of the draw
    kept: dict[int, Example] = {}
    tried = turn = 0
    while tried < len(order) and len(kept) < quota:
        turn += 1
        missing, rate = quota - len(kept), max(len(kept) / tried if tried else 1.0, 0.05)
        chosen = order[tried : tried + math.ceil(missing / rate)]
        wanted = set(chosen)
        sparse = {n: e for n, e in enumerate(_split(train, mu, rich=False)) if n in wanted}
        completed = _complete(model, sparse, mu, folder, turn, options, workers, device)
        for number in chosen:  # in the order of the draw: what is over the quota was never tried
            if len(kept) == quota:
                break
            tried += 1
            if (example := completed[number]) is not None:
                kept[number] = example
    made = [kept[number] for number in sorted(kept)]
    added = sum(len(example.keyphrases) - len(distinct(example.extra["observed"])) for example in made)
    return made, {
        "available": len(order),
        "candidates": tried,
        "kept": len(made),
        "rejected": tried - len(made),
        "phrases_added": added,
    }


def _complete(
    model: str | Path, sparse: dict[int, Example], mu: float, folder: Path, turn: int, options: Selection,
    workers: int | None, device: str,
) -> dict[int, Example | None]:  # fmt: skip
    """Generates for the sparse items as `pusl generate` does, so that a kill loses one shard at most."""
    from pusl.catalog.run import generate_catalog
    from pusl_eval.records import read_predictions

    source, predictions = folder / f"sparse-{turn}.jsonl", folder / f"generated-{turn}.jsonl"
    done = folder / f"generated-{turn}.json"
    k = options.k or budget(mu, 2)
    write_examples(source, list(sparse.values()), force=True)  # the same bytes as in a run that was killed
    settings = {
        "model": str(model), "source": file_digest(source), "k": k, "strategy": options.strategy,
        "allow_repeats": options.allow_repeats, "min_score": options.min_score,
    }  # fmt: skip
    finished = predictions.exists() and done.exists() and read_json(done, "delete it") == settings
    if not finished:
        generate_catalog(
            model, source, predictions, k=k, strategy=options.strategy, allow_repeats=options.allow_repeats,
            min_score=options.min_score, workers=workers, device=device, force=predictions.exists(),
        )  # fmt: skip
        write_json(done, settings, force=True)
    by_id = {prediction.id: prediction.keyphrases for prediction in read_predictions(predictions)}
    return {number: complete_example(example, by_id.get(example.id, []), mu) for number, example in sparse.items()}
