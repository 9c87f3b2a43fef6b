"""Several systems' predictions -> verdicts on all of them, from a language model or from people alone.

Every system is judged on the same items, and a keyphrase that two systems predict for an item is asked about
once, because all verdicts are stored in one place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pusl.llm.endpoint import LLMSettings
from pusl.llm.judge_job import JudgeOptions, prepare
from pusl.llm.judging import beside, cache_path, judged, people_scores, summary_path
from pusl_eval.files import (
    InputError,
    Row,
    check_apart,
    check_output,
    check_outputs,
    write_json,
    write_rows,
    written_together,
)


def output_of(output: str | Path, system: str) -> Path:
    """Where the verdicts on one of several systems go.

    >>> str(output_of("out/verdicts.jsonl.gz", "PUSL"))
    'out/verdicts.PUSL.jsonl.gz'
    """
    path = Path(output)
    if "/" in system:
        raise InputError(f"--predictions {system}=...: a system's name is part of a file name; write it without '/'")
    stem, dot, suffix = path.name.partition(".")
    return beside(path, f"{stem}.{system}{dot}{suffix}")


def judge_systems(
    references: str | Path, predictions: Mapping[str, str], output: str | Path, settings: LLMSettings, *,
    options: JudgeOptions, summary: str | Path | None = None, cache: str | Path | None = None, force: bool = False,
    universe: str | Path | None = None, train: str | Path | None = None, gold: str | Path | None = None,
    progress: bool = False,
) -> Row:  # fmt: skip
    """Judges every system; returns {"systems": {name: summary}}, which stands beside OUTPUT."""
    cache = cache_path(output, cache)
    targets = [summary_path(output, summary)]
    for name in predictions:
        targets += [output_of(output, name), summary_path(output_of(output, name))]
    files: dict[str, Any] = {"references": references, "predictions": None, "universe": universe, "train": train}
    files["gold"] = gold
    inputs = {**files, **{f"predictions {name}": path for name, path in predictions.items()}}
    check_apart((*targets, cache), {f"--{name}": path for name, path in inputs.items()})
    check_outputs(targets, force)
    found: dict[str, Row] = {}
    rows: dict[str, list[Row]] = {}
    left = settings
    for name, given in predictions.items():  # nothing is written before the last one is judged
        found[name], rows[name] = judged(
            {**files, "predictions": given}, left, cache, options=options, progress=progress
        )
        if left.max_cost is not None:  # one budget for all
            left = dataclasses.replace(left, max_cost=max(0.0, left.max_cost - (found[name]["usage"]["cost_usd"] or 0)))
    result: Row = {"systems": found}
    with written_together(targets, force) as (whole, *places):
        for name, verdicts, scores in zip(predictions, places[::2], places[1::2], strict=True):
            write_rows(verdicts, rows[name])
            write_json(scores, found[name])
        write_json(whole, result)
    return result


def score_people(
    references: str | Path, predictions: Mapping[str, str] | None, gold: str | Path, output: str | Path, *,
    options: JudgeOptions, universe: str | Path | None = None, train: str | Path | None = None, force: bool = False,
) -> Row:  # fmt: skip
    """People's verdicts alone: Hum@k of every system, written to `output` as JSON. Asks no endpoint."""
    check_apart([output], {"--references": references, "--universe": universe, "--train": train, "--gold": gold})
    check_apart([output], {f"--predictions {name}": path for name, path in (predictions or {}).items()})
    check_output(output, force)
    options = dataclasses.replace(options, needs_text=False, consistency=0)
    found: Row = {}
    systems: dict[str, str | None] = dict(predictions) if predictions else {"people": None}
    for name, path in systems.items():
        job = prepare(references, path, options, universe, train, gold)
        human = people_scores(job, options.seed)
        if not human["scores"]["all"] or not human["sizes"]["all"]["n_items"]:
            raise InputError(f"{gold}: no verdict on a keyphrase of {path or 'the items'}; nothing can be scored")
        found[name] = {"k": ["all" if cut is None else cut for cut in job.k], "mu": job.mu, "human": human}
    result: Row = {"systems": found}
    write_json(output, result, force)
    return result
