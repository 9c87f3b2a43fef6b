"""Training file (or saved model) + items -> predictions file."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from pusl.baselines.label_matrix import read_training
from pusl.baselines.model import Baseline, baseline_class, check_new_folder, load_baseline, save_baseline
from pusl.examples import Columns, Example, read_examples
from pusl_eval.files import (
    InputError,
    Journal,
    Row,
    check_apart,
    check_input,
    check_output,
    check_outside,
    write_rows,
    written_together,
)

log = logging.getLogger(__name__)
CHUNK = 2048  # items ranked at once; limits memory


def run_baseline(
    name: str,
    config: Any = None,
    *,
    train: str | Path | None = None,
    model_folder: str | Path | None = None,
    save: str | Path | None = None,
    input: str | Path | None = None,
    output: str | Path | None = None,
    k: int = 10,
    columns: Columns | None = None,
    force: bool = False,
) -> Baseline:
    """Runs `pusl baseline NAME` and returns the fitted baseline. Checks all paths before any work."""
    if (train is None) == (model_folder is None):
        raise InputError("give either --train FILE to learn from, or --model DIR with a saved baseline")
    if (input is None) != (output is None):
        raise InputError("--input and --output go together")
    if output is None and save is None:
        raise InputError("nothing to do: give --input and --output, or --save")
    if k < 1:
        raise InputError(f"-k is {k}; it must be at least 1")
    if model_folder is not None and save is not None:
        raise InputError("--save stores a newly trained baseline; it cannot be combined with --model")
    for path in (train, input):
        if path is not None:
            check_input(path)
    targets = [path for path in (output, save) if path is not None]
    journal = Journal(targets[0])
    if output is not None:
        check_apart([output], {"--train": train, "--input": input})
        check_output(output, force or journal.owns(output))
    if save is not None:
        check_new_folder(save, force or journal.owns(save))
        check_outside(save, (train, input))

    if model_folder is not None:
        model = load_baseline(model_folder, name)
    else:
        assert train is not None
        start = time.monotonic()
        data = read_training(train, columns)
        model = baseline_class(name)(config)
        model.fit(data)
        spent = time.monotonic() - start
        log.info(f"{name}: {len(data.texts):,} items, {len(data.labels):,} labels, {spent:.1f} s")
    with written_together(targets, force) as places:
        if save is not None:
            save_baseline(places[-1], name, model)
        if input is not None and output is not None:
            items = read_examples(input, columns=columns, labeled=False)
            write_rows(places[0], prediction_rows(model, items, k))
    return model


def prediction_rows(model: Baseline, items: Iterable[Example], k: int) -> Iterator[Row]:
    """Streams one prediction per item, in input order."""
    with tqdm(unit=" items", desc="rank", disable=None) as bar:
        iterator = iter(items)
        while chunk := list(itertools.islice(iterator, CHUNK)):
            numbers, scores = model.rank([item.text for item in chunk], k)
            for item, row, values in zip(chunk, numbers, scores, strict=True):
                yield prediction_row(item.id, model.labels, row, values, k)
            bar.update(len(chunk))


def prediction_row(item: str, labels: list[str], numbers: np.ndarray, scores: np.ndarray, k: int) -> Row:
    """One line of a predictions file; a label number of -1 ends the list."""
    kept = numbers >= 0
    row: Row = {
        "id": item,
        "keyphrases": [labels[number] for number in numbers[kept]],
        "scores": [round(float(score), 6) for score in scores[kept]],
    }
    if len(row["keyphrases"]) < k:
        row["exhausted"] = True
    return row
