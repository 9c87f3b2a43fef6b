"""Labeled items + sources -> a fused model folder: what `pusl fuse` does.

Classifiers and neighbors see the training file only, so that their predictions for the dev items are honest;
the ranker learns on the dev items, and everything that is reported is measured on items held out from it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.model import BASELINES, baseline_class, load_baseline, save_baseline
from pusl.catalog.recipes import MODEL_FILES, NOT_MODEL_FILES
from pusl.checkpoint import save_labels
from pusl.decoding.generator import KeyphraseGenerator
from pusl.examples import Columns, read_examples
from pusl.fusion.features import CandidatePool, Pooler
from pusl.fusion.folder import FORMAT, FUSED, GENERATOR, PREDICTIONS, check_target, new_folder, read_fused
from pusl.fusion.fused import FusedGenerator, read_source
from pusl.fusion.held_out import measure
from pusl.fusion.memory import LabeledItem, Memory
from pusl.fusion.ranker import Ranker, fit_ranker
from pusl.fusion.sources import (
    BaselineSource,
    FileSource,
    GeneratorSource,
    NeighborSource,
    Query,
    Source,
    TextSource,
)  # fmt: skip
from pusl.hub import model_folder
from pusl_eval.files import InputError, check_outside, write_json
from pusl_eval.normalize import normalize

log = logging.getLogger(__name__)
LEAST_ITEMS = 50  # labeled dev items from which on a ranker is learned (docs/guides/fusing.md)
DEV_ITEMS = 2000  # more of them change little and cost time
TOLD_ITEMS = 1000  # tellings of dev items that the ranker for told items learns from
TELLINGS = 4  # of the same item, if there are few
TOLD_SHARES = (0.0, 0.2, 0.35, 0.5)  # of an item's keyphrases that it is told; at least one


@dataclasses.dataclass(frozen=True)
class SourceSpec:
    """One word of --sources: a name alone is trained here, NAME=PATH is a folder or a predictions file."""

    name: str
    kind: str
    path: Path | None = None


def parse_sources(words: Sequence[str]) -> list[SourceSpec]:
    """`pusl=models/pusl knn svm text llm=llm.jsonl` -> checked specs."""
    specs: list[SourceSpec] = []
    for word in words:
        name, equals, place = word.partition("=")
        if name in [spec.name for spec in specs]:
            raise InputError(f"--sources names {name!r} twice")
        if not name or not all(char.isalnum() or char in "-_+" for char in name):
            raise InputError(f"--sources {word!r}: a name is made of letters, digits, - and _")
        if not equals:
            if name not in ("text", *BASELINES):
                known = ", ".join(["text", *BASELINES])
                raise InputError(f"--sources {name!r} is unknown; expected NAME=DIR, NAME=FILE or one of: {known}")
            if name in BASELINES:
                baseline_class(name).check_installed()  # said now, not after the others were trained
            specs.append(SourceSpec(name, name))
            continue
        path = model_folder(place)
        if (path / "pusl.json").is_file():
            specs.append(SourceSpec(name, GENERATOR, path))
        elif (path / "baseline.json").is_file():
            specs.append(SourceSpec(name, _baseline_name(path), path))
        elif path.is_file():
            specs.append(SourceSpec(name, PREDICTIONS, path))
        else:
            raise InputError(
                f"--sources {word}: expected a model (folder or user/model), a saved baseline or predictions"
            )
    if not specs:
        raise InputError("--sources: name at least one source, e.g. --sources pusl=models/pusl knn text")
    return specs


def _baseline_name(folder: Path) -> str:
    found = load_baseline(folder)
    return next(name for name in BASELINES if isinstance(found, baseline_class(name)))


def fuse(
    train: str | Path,
    dev: str | Path | None,
    sources: Sequence[str],
    out: str | Path,
    *,
    columns: Columns | None = None,
    depth: int | None = None,
    dev_items: int = DEV_ITEMS,
    precision: str | None = None,
    device: str | None = None,
    seed: int = 0,
    ablate: bool = True,
    told_items: int = TOLD_ITEMS,
    force: bool = False,
) -> dict[str, Any]:
    """Trains what has to be trained, learns the ranker and writes the folder; returns what fusion.json holds.

    Args:
        train: labeled items; neighbors and classifiers learn from them.
        dev: other labeled items, for the ranker; None adds up reciprocal ranks instead.
        sources: as `--sources` of `pusl fuse`: `knn`, `svm`, `text`, `NAME=DIR`, `NAME=FILE`.
        out: folder for the fused model.
        columns: names of the files' columns, if they are not the usual ones.
        depth: candidates from each source (default: 3μ, between 15 and 50).
        dev_items: learn from at most as many (2,000).
        precision: of the models among the sources.
        device: of the models among the sources.
        seed: decides which dev items are taken, and what they are told.
        ablate: measure what each source is worth, by learning once more without it.
        told_items: dev items for a second ranker, for items that already have keyphrases (1,000). The same item may
            count several times, told other keyphrases. With 0 there is no second ranker.
        force: replace the folder.
    """
    specs = parse_sources(sources)
    check_target(out, force)
    check_outside(out, (train, dev, *(spec.path for spec in specs if spec.kind == PREDICTIONS)))
    items = read_labeled(train, columns)
    if not items:
        raise InputError(f"{train}: no item with keyphrases; fusing needs labeled items")
    mu = float(np.mean([len({*map(normalize, item[2])}) for item in items]))
    depth = depth or min(50, max(15, math.ceil(3 * mu)))
    labeled = read_labeled(dev, columns) if dev is not None else []
    with new_folder(out, force) as folder:
        memory = _timed("memory", lambda: Memory(items))
        memory.save(folder / "memory")
        save_labels(folder, memory.labels)
        made = [_make(spec, memory, folder, precision, device) for spec in specs]
        _check_coverage(specs, made, labeled, dev)
        pooler = Pooler(memory, made, depth)
        ranker, told, report = _learn(pooler, labeled, dev, dev_items, mu, seed, ablate, told_items)
        ranker.save(folder / "ranker.npz")
        if told is not None:
            told.save(folder / "told.npz")
        kept = [{"name": spec.name, "kind": spec.kind} for spec in specs]
        k = max(1, math.floor(2 * mu + 0.5))
        meta = {
            "format": FORMAT, "paradigm": FUSED, "sources": kept, "depth": depth, "memory": "memory",
            "defaults": {"k": k, "mu": mu},
        }  # fmt: skip
        report = {"sources": kept, "depth": depth, "learned": ranker.learned, **report}
        write_json(folder / "fusion.json", report)
        write_json(folder / "pusl.json", meta)
    return report


def update(folder: str | Path, train: str | Path, columns: Columns | None = None) -> tuple[int, int]:
    """Adds labeled items to the neighbor memory; returns how many items and labels it has now.

    Nothing is trained. A label that is new here can be proposed at once, by neighbors and by the text.
    """
    folder = Path(folder)
    meta = read_fused(folder)
    more = read_labeled(train, columns)
    if not more:
        raise InputError(f"{train}: no item with keyphrases to add")
    memory = Memory.load(folder / meta["memory"]).extended(more)
    number = int(meta["memory"].partition("-")[2] or 0) + 1
    name = f"memory-{number}"
    shutil.rmtree(folder / name, ignore_errors=True)  # left by a run that was killed
    memory.save(folder / name)
    save_labels(folder, memory.labels)
    write_json(folder / "pusl.json", {**meta, "memory": name}, force=True)
    shutil.rmtree(folder / meta["memory"], ignore_errors=True)
    return len(memory.items), len(memory.labels)


def read_labeled(path: str | Path, columns: Columns | None = None) -> list[LabeledItem]:
    """The items of a file that have keyphrases."""
    found = read_examples(path, columns=columns)
    return [(item.id, item.text, item.keyphrases) for item in found if any(map(str.strip, item.keyphrases))]


def _make(spec: SourceSpec, memory: Memory, folder: Path, precision: str | None, device: str | None) -> Source:
    """Trains or copies one source into the folder and loads it."""
    place = folder / "sources" / spec.name
    if spec.kind == "text":
        return TextSource(memory)
    if spec.kind == "knn" and spec.path is None:
        return NeighborSource(memory)
    if spec.kind == PREDICTIONS:
        assert spec.path is not None
        return FileSource(spec.name, read_source(spec.path))
    place.parent.mkdir(exist_ok=True)
    if spec.kind == GENERATOR:
        assert spec.path is not None
        model = KeyphraseGenerator.from_pretrained(spec.path, precision=precision, device=device)
        if not isinstance(model, KeyphraseGenerator):
            raise InputError(f"--sources {spec.name}={spec.path}: is a fused model itself; name its sources")
        place.mkdir()
        patterns = (*MODEL_FILES, "labels.txt.gz")
        for path in sorted({path for pattern in patterns for path in spec.path.glob(pattern)}):
            if path.name not in NOT_MODEL_FILES:
                _link(path, place / path.name)
        return GeneratorSource(spec.name, model)
    if spec.path is not None:
        shutil.copytree(spec.path, place)
        return BaselineSource(spec.name, load_baseline(place))
    baseline = baseline_class(spec.kind)()
    data = TrainingData([text for _, text, _ in memory.items], memory.labels, memory.matrix)
    _timed(spec.name, lambda: baseline.fit(data))
    save_baseline(place, spec.kind, baseline)
    return BaselineSource(spec.name, baseline)


def _check_coverage(specs: Sequence[SourceSpec], made: Sequence[Source], dev: Sequence[LabeledItem], name: Any) -> None:
    """Predictions made elsewhere have to be for the dev items: the ranker learns from what they say about these."""
    for spec, source in zip(specs, made, strict=True):
        if not isinstance(source, FileSource) or not dev:
            continue
        covered = sum(item in source.predictions for item, _, _ in dev)
        if not covered:
            raise InputError(
                f"{spec.path}: has predictions for none of the {len(dev):,} labeled items of {name}; the ranking is "
                f"learned there, so make predictions for its items"
            )
        if covered < len(dev):
            log.warning(
                f"{spec.path}: has predictions for only {covered:,} of the {len(dev):,} labeled items of {name}"
            )


def _link(source: Path, target: Path) -> None:
    """A hard link where the file system has them (model files are replaced, never changed), else a copy."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)


def _timed(name: str, work: Any) -> Any:
    began = time.monotonic()
    result = work()
    log.info(f"{name}: {time.monotonic() - began:.1f} s")
    return result


def _learn(
    pooler: Pooler, labeled: list[LabeledItem], dev: Any, most: int, mu: float, seed: int, ablate: bool, told_items: int
) -> tuple[Ranker, Ranker | None, dict[str, Any]]:
    """The ranker, the ranker for items that are told some keyphrases, and what was measured."""
    plain = Ranker(pooler.names)
    if len(labeled) < LEAST_ITEMS:
        found = "no --dev" if dev is None else f"{dev} has {len(labeled)} labeled items"
        log.warning(
            f"{found}; at least {LEAST_ITEMS} are needed to learn. Fusing reciprocal ranks instead: "
            "scores order keyphrases, but are no probabilities"
        )  # fmt: skip
        return plain, None, {"dev_items": len(labeled)}
    chosen = np.sort(np.random.default_rng(seed).permutation(len(labeled))[:most])
    items = [labeled[number] for number in chosen]
    _refuse_overlap(pooler.memory, items, dev)
    pools = _timed("candidates of the dev items", lambda: collect(pooler, items))
    features, right, owner = training_rows(pools, [item[2] for item in items])
    if not 0 < right.sum() < len(right):
        log.warning("no candidate of a dev item is right (or all are). Fusing reciprocal ranks")
        return plain, None, {"dev_items": len(items)}
    ranker, held_out = _timed("ranker", lambda: fit_ranker(features, right, owner, pooler.names, seed=seed))
    report = measure(pooler, pools, [item[2] for item in items], held_out, mu, seed, ablate)
    return ranker, _learn_told(pooler, items, told_items, seed), {"dev_items": len(items), **report}


def _refuse_overlap(memory: Memory, items: Sequence[LabeledItem], dev: Any) -> None:
    """Dev items that are in the training file would teach the ranker to trust memory."""
    seen = {(name, text) for name, text, _ in memory.items}
    both = [name for name, text, _ in items if (name, text) in seen]
    if len(both) > len(items) / 100:
        raise InputError(f"{dev}: {len(both)} of {len(items)} items are in the training file too (e.g. {both[0]!r})")


def _learn_told(pooler: Pooler, items: Sequence[LabeledItem], most: int, seed: int) -> Ranker | None:
    """A ranker for `--complete`: items are told some of their keyphrases, and the others have to be found.

    Few items are told several times, other keyphrases each time: chance decides less (docs/log.md, 2026-11-19).
    """
    rich = [item for item in items if len(item[2]) > 1][:most]
    if len(rich) < LEAST_ITEMS:
        return None
    chance = np.random.default_rng(seed)
    known, hidden = [], []
    told_items = [rich[number % len(rich)] for number in range(min(most, TELLINGS * len(rich)))]
    for _, _, phrases in told_items:
        count = min(len(phrases) - 1, max(1, round(chance.choice(TOLD_SHARES) * len(phrases))))
        told = set(chance.permutation(len(phrases))[:count].tolist())
        known.append([phrase for number, phrase in enumerate(phrases) if number in told])
        hidden.append([phrase for number, phrase in enumerate(phrases) if number not in told])
    pools = _timed("candidates of told dev items", lambda: collect(pooler, told_items, known))
    features, right, telling = training_rows(pools, hidden)
    if not 0 < right.sum() < len(right):
        return None
    return fit_ranker(features, right, telling % len(rich), pooler.names, seed=seed)[0]


def collect(
    pooler: Pooler, items: Sequence[LabeledItem], known: Sequence[Sequence[str]] | None = None, chunk: int = 256
) -> list[CandidatePool]:
    """The pools of labeled items."""
    pools: list[CandidatePool] = []
    for start in range(0, len(items), chunk):
        part = items[start : start + chunk]
        told = None if known is None else known[start : start + chunk]
        pools += pooler.pool(Query([item[1] for item in part], told, [item[0] for item in part]))
    return pools


def training_rows(
    pools: Sequence[CandidatePool], references: Iterable[Sequence[str]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of all candidates, whether each is a reference of its item, and its item's number."""
    right = []
    for pool, phrases in zip(pools, references, strict=True):
        known = set(map(normalize, phrases))
        right += [form in known for form in pool.forms]
    owner = np.repeat(np.arange(len(pools)), [len(pool.forms) for pool in pools])
    return np.concatenate([pool.features for pool in pools]), np.array(right, float), owner


__all__ = ["FusedGenerator", "fuse", "parse_sources", "update"]
