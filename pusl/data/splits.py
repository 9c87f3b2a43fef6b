"""Example files -> train, dev and test files in which no text occurs twice (Algorithm 2).

Merge all files, group by text, unite the keyphrases and add their counts, shuffle with a seed, cut.
Texts that differ only in case or spacing stay separate items but always share a split. With times,
the cut is a moment instead: what came later is either of texts seen in training or of unseen ones
(the paper's Appendix F), and a random part of the earlier texts is held out beside them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pusl.config import check, option
from pusl.data import duplicates
from pusl.data.duplicates import unite
from pusl.data.folders import writing_folder
from pusl.examples import Columns, Example, read_examples, write_examples
from pusl_eval.files import InputError
from pusl_eval.flags import SEED
from pusl_eval.normalize import normalize

MANIFEST = "split.json"
COUNT_SETS = ("test", "train")
STREAM = 0x5B117  # this module's own random numbers: `pusl data simulate` with the same seed draws others


@dataclass(frozen=True)
class SplitConfig:
    """How a data set is cut."""

    seed: int = option(0, SEED, minimum=0)
    dev: float = option(0.1, "dev items: a share of all items (below 1) or their number", minimum=0)
    test: float = option(0.1, "test items: a share of all items (below 1) or their number", minimum=0)
    by_time: bool = option(False, "split by time, not at random: test items are later than train and dev")
    cutoff: str | None = option(
        None, "with --by-time: the time at which test begins (default: the one that gives the share --test)"
    )
    uniform: float | None = option(
        None, "with --by-time: items of uniform_unseen.jsonl, a share or a number (default: as --dev)",
        minimum=0,
    )  # fmt: skip
    count_sets: str = option(
        "test", "where the items of the test_count files come from: test copies them from test.jsonl; train takes them "
        "out of train.jsonl (lines 10 and 11 of the paper's Algorithm 2)", choices=COUNT_SETS,
    )  # fmt: skip
    count_size: float | None = option(
        None, "with --count-sets train: items to take out for each number of keyphrases, as a share of the items "
        "that have it, or as a number (default: as --test)", minimum=0,
    )  # fmt: skip
    max_count: int = option(
        20, "N of the last test_count file; it also holds all items with more keyphrases", minimum=1
    )
    every_count: bool = option(False, "write a test_count file for every number that occurs, whatever --max-count says")
    duplicates: str = option("error", f"{duplicates.HELP}, in all files", choices=duplicates.WAYS)


def split(
    paths: Sequence[str | Path],
    out: str | Path,
    config: SplitConfig,
    columns: Columns | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Writes the split of the files to the folder `out` and returns what split.json says about it."""
    _check(config)
    with writing_folder(out, MANIFEST, force, paths) as (work, about):
        notes: dict[str, int] = {}
        rows = _rows(paths, columns, config.duplicates, notes)
        parts = split_by_time(rows, config) if config.by_time else split_uniformly(rows, config)
        counted = parts["test"]
        if config.count_sets == "train":
            parts["train"], counted = take_out_by_count(parts["train"], config)
        train = parts["train"]
        mu = sum(len(example.keyphrases) for example in train) / len(train)
        tests = {name: part for name, part in parts.items() if name not in ("train", "dev")}
        for name in [name for name in tests if name in ("test", "future_seen", "uniform_unseen")]:
            tests[f"{name}_narrow"] = [example for example in tests[name] if len(example.keyphrases) <= 2 * mu]
            tests[f"{name}_diverse"] = [example for example in tests[name] if len(example.keyphrases) > 2 * mu]
        most = max((len(example.keyphrases) for example in counted), default=1)
        tests.update(_by_count(counted, most if config.every_count else config.max_count, config.every_count))
        sizes = {}
        for name, part in {"train": train, "dev": parts["dev"], **tests}.items():
            if part or name in ("dev", "test", "test_narrow", "test_diverse"):
                sizes[name] = write_examples(work / f"{name}.jsonl", part)
        about.update(
            {
                "inputs": [Path(path).name for path in paths],
                "rows": len(rows),
                "items": len({example.text for example in rows}),
                "mu": mu,
                "sizes": sizes,
                "config": asdict(config),
            }
        )
        if config.by_time:
            about["out_of_time"] = out_of_time(parts)
        if notes:
            about["duplicates"] = notes
    return about


def _rows(paths: Sequence[str | Path], columns: Columns | None, way: str, notes: dict[str, int]) -> list[Example]:
    """All rows; with --duplicates, rows of one id agree on their text or are one row."""

    def note(what: str) -> None:
        notes[what] = notes.get(what, 0) + 1

    rows = _read_all(paths, columns, way == "error")
    if way == "merge":
        rows = duplicates.with_first_text(rows, note)
    elif way == "first":
        rows = duplicates.resolve(rows, way, note)
    return list(rows)


def merge(examples: Iterable[Example]) -> list[Example]:
    """One example per text, in order of first appearance: keyphrases united, counts added.

    Keyphrases are the same if their normalized forms are; the first spelling stays. Counts stay only
    where every row of the text has them. A row gets a new id where another text has its id already.

    >>> merged = merge([Example("1", "t", ["a", "b"], [1, 2]), Example("2", "t", ["A", "c"], [5, 1])])
    >>> merged[0].keyphrases, merged[0].counts
    (['a', 'b', 'c'], [6, 2, 1])
    """
    by_text: dict[str, list[Example]] = {}
    for example in examples:
        by_text.setdefault(example.text, []).append(example)
    taken: set[str] = set()
    merged = []
    for group in by_text.values():
        name, suffix = group[0].id, 2
        while name in taken:
            name, suffix = f"{group[0].id}~{suffix}", suffix + 1
        taken.add(name)
        whole = unite(group, name)
        if len(group) > 1:
            whole.extra["merged_ids"] = list(dict.fromkeys(example.id for example in group))
        merged.append(whole)
    return merged


def split_uniformly(rows: list[Example], config: SplitConfig) -> dict[str, list[Example]]:
    """Merged items, shuffled by the seed, as train, dev and test; items without keyphrases apart."""
    merged = merge(rows)
    labeled = [example for example in merged if example.keyphrases]
    dev, test = _sizes(len(labeled), config)
    # Near-equal texts (case, spacing) move together: the unit of the shuffle is the normalized text.
    units: dict[str, list[Example]] = {}
    for example in labeled:
        units.setdefault(normalize(example.text), []).append(example)
    parts: dict[str, list[Example]] = {"test": [], "dev": [], "train": []}
    goals = {"test": test, "dev": dev, "train": len(labeled)}
    order = list(units.values())
    names = iter(parts)
    name = next(names)
    for index in _permutation(len(order), config.seed):
        while len(parts[name]) >= goals[name]:
            name = next(names)
        parts[name].extend(order[index])
    if not parts["train"]:
        raise InputError(f"--dev and --test leave nothing to train on ({len(labeled)} items with different texts)")
    return {**parts, "unlabeled": [example for example in merged if not example.keyphrases]}


def split_by_time(rows: list[Example], config: SplitConfig) -> dict[str, list[Example]]:
    """Rows before the cutoff as train, dev and a held-out part; later rows by whether training has their text.

    `uniform_unseen` are texts of the same time as training. `test` and `future_unseen` are the later texts
    that no earlier row has; `future_seen` the later rows of training texts, with what was observed later.
    Later rows of other earlier texts are left out.
    """
    times = np.array([_moment(example) for example in rows])
    cutoff = _cutoff(times, config)
    earlier = [example for example, time in zip(rows, times, strict=True) if time < cutoff]
    later = [example for example, time in zip(rows, times, strict=True) if time >= cutoff]
    if not earlier or not later:
        raise InputError(
            f"--cutoff {config.cutoff}: {len(earlier)} rows before it and {len(later)} from it on; both need some"
        )

    def share(value: float) -> float:  # of all rows -> of the earlier ones
        return value / (1 - config.test) if value < 1 and config.test < 1 else value

    held_out = config.dev if config.uniform is None else config.uniform
    parts = split_uniformly(earlier, SplitConfig(seed=config.seed, dev=share(config.dev), test=share(held_out)))
    parts["uniform_unseen"] = parts.pop("test")
    seen = {normalize(example.text) for example in parts["train"]}
    known = {normalize(example.text) for example in earlier}
    future = [example for example in merge(later) if example.keyphrases]
    unseen = [example for example in future if normalize(example.text) not in known]
    parts["test"] = parts["future_unseen"] = unseen
    parts["future_seen"] = [example for example in future if normalize(example.text) in seen]
    if not parts["future_seen"] and not unseen:
        raise InputError(
            "--by-time: no later row has keyphrases and a text outside dev, so there is nothing to test on"
        )
    return parts


def out_of_time(parts: dict[str, list[Example]]) -> dict[str, dict[str, float | int | None]]:
    """The test sets of a split by time, each with what it shares with the training part (Appendix F).

    `texts_shared`: share of its texts that training has. `items_unchanged`: of those, the share with exactly the
    keyphrases that training has for them; `labels_unchanged`: the share of training's keyphrases that came again.
    `labels_known`: share of its keyphrases that occur anywhere in training.
    """
    training: dict[str, set[str]] = {}
    for example in parts["train"]:
        training.setdefault(normalize(example.text), set()).update(map(normalize, example.keyphrases))
    known = set().union(*training.values())
    found: dict[str, dict[str, float | int | None]] = {}
    for name in ("uniform_unseen", "future_seen", "future_unseen"):
        part = [(normalize(example.text), set(map(normalize, example.keyphrases))) for example in parts[name]]
        both = [(training[text], labels) for text, labels in part if text in training]
        occurrences = [label for _, labels in part for label in labels]
        found[name] = {
            "items": len(part),
            "keyphrases_per_item": _share(len(occurrences), len(part)),
            "texts_shared": _share(len(both), len(part)),
            "items_unchanged": _share(sum(before == after for before, after in both), len(both)),
            "labels_unchanged": _share(
                sum(len(before & after) for before, after in both), sum(len(before) for before, _ in both)
            ),
            "labels_known": _share(sum(label in known for label in occurrences), len(occurrences)),
        }
    return found


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def take_out_by_count(train: list[Example], config: SplitConfig) -> tuple[list[Example], list[Example]]:
    """A training part -> what stays in it, and the items taken out: the same share or number for every count.

    Near-equal texts leave together, so that no text is in both.
    """
    size = config.test if config.count_size is None else config.count_size
    units: dict[str, list[Example]] = {}
    for example in train:
        units.setdefault(normalize(example.text), []).append(example)
    by_count: dict[int, list[str]] = {}
    for text, unit in units.items():
        by_count.setdefault(len(unit[0].keyphrases), []).append(text)
    taken: set[str] = set()
    for count, texts in sorted(by_count.items()):
        wanted = int(size) if size >= 1 else round(size * len(texts))
        wanted = max(wanted, int(config.every_count))  # a small share of few items is still a file
        taken.update(texts[index] for index in _permutation(len(texts), config.seed, count)[:wanted])
    if len(taken) == len(units):
        raise InputError(f"--count-sets train: --count-size {size:g} leaves nothing to train on ({len(train)} items)")
    stays = [example for text, unit in units.items() if text not in taken for example in unit]
    return stays, [example for text, unit in units.items() if text in taken for example in unit]


def _read_all(paths: Sequence[str | Path], columns: Columns | None, unique_ids: bool) -> Iterator[Example]:
    from tqdm import tqdm

    for path in paths:
        found = read_examples(path, columns=columns, unique_ids=unique_ids, fix=duplicates.FIX)
        for example in tqdm(found, desc=Path(path).name, unit=" rows", disable=None):
            if not example.text.strip():
                raise InputError(f"{path}: id {example.id!r} has a blank text; items are told apart by their texts")
            yield example


def _check(config: SplitConfig) -> None:
    check(config)
    for name in ("dev", "test", "uniform", "count_size"):
        value = getattr(config, name)
        if value is not None and (not math.isfinite(value) or (value >= 1 and value != int(value))):
            raise InputError(f"--{name.replace('_', '-')} {value}: expected a share below 1 or a number of items")
    if config.test == 0:
        raise InputError("--test 0: a split needs test items")
    if config.cutoff is not None and not config.by_time:
        raise InputError("--cutoff needs --by-time")
    if config.uniform is not None and not config.by_time:
        raise InputError("--uniform needs --by-time")
    if config.count_size is not None and config.count_sets != "train":
        raise InputError("--count-size needs --count-sets train")


def _sizes(count: int, config: SplitConfig) -> tuple[int, int]:
    def size(value: float) -> int:
        return int(value) if value >= 1 else (max(1, round(value * count)) if value else 0)

    dev, test = size(config.dev), size(config.test)
    if dev + test >= count:
        raise InputError(
            f"--dev and --test ask for {dev} + {test} of {count} items with keyphrases; none is left for train"
        )
    return dev, test


def _permutation(count: int, seed: int, *part: int) -> list[int]:
    """A shuffle that depends on the seed (and the part) alone, not on numpy's version of shuffling."""
    draw = np.random.default_rng([STREAM, seed, *part])
    return [int(index) for index in np.argsort(draw.random(count), kind="stable")]


def _by_count(test: list[Example], maximum: int, every: bool) -> dict[str, list[Example]]:
    width = len(str(maximum))
    parts: dict[int, list[Example]] = {}
    for example in test:
        if example.keyphrases:
            parts.setdefault(min(len(example.keyphrases), maximum), []).append(example)
    files: dict[str, list[Example]] = {}
    for count, part in sorted(parts.items()):
        last = count == maximum and not every
        files[f"test_count_{count:0{width}d}{'_plus' if last else ''}"] = part
    return files


def _moment(example: Example) -> float:
    """Seconds or whatever number the file uses; ISO dates become seconds."""
    value = example.timestamp
    if value is None:
        raise InputError(f"--by-time: id {example.id!r} has no timestamp. Name the column with --timestamp-column")
    try:
        return parse_time(value)
    except ValueError:
        raise InputError(
            f"--by-time: id {example.id!r} has the timestamp {value!r}; expected a number or a date such as 2025-03-14"
        ) from None


def parse_time(value: str | int | float) -> float:
    """A number, or an ISO date or time (UTC unless it says otherwise) as seconds since 1970.

    >>> parse_time("1970-01-02"), parse_time("17")
    (86400.0, 17.0)
    """
    try:
        number = float(value)
    except ValueError:
        moment = datetime.datetime.fromisoformat(str(value).strip().replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)).timestamp()
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _cutoff(times: np.ndarray, config: SplitConfig) -> float:
    if config.cutoff is not None:
        try:
            return parse_time(config.cutoff)
        except ValueError:
            raise InputError(f"--cutoff {config.cutoff!r}: expected a number or a date such as 2025-03-14") from None
    count = int(config.test) if config.test >= 1 else max(1, round(config.test * len(times)))
    if count >= len(times):
        raise InputError(f"--test {config.test:g}: only {len(times)} rows are there")
    return float(np.sort(times)[len(times) - count])
