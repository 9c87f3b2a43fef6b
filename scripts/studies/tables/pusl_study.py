"""A data folder -> trained systems, their predictions and scores, which the tables of the PUSL paper share.

Training, decoding and scoring are those of reproduce.py; models are kept in OUT/shared and trained once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pusl_eval.files import InputError, write_json
from tables.registry import Work

if TYPE_CHECKING:
    from reproduce import Study

    from pusl.examples import Example

STEPS = 600  # optimizer steps of every system, unless --steps says otherwise
SEEDS = (0, 1, 2)
SMOKE: dict[str, Any] = {"vocab_size": 400, "batch_size": 16, "dev_items": 8, "eval_every": 100_000}


def study_of(work: Work, systems: Sequence[str] = (), data: Path | None = None, runs: str = "runs") -> Study:
    """The study that reproduce.py would make of the data folder (or of `data`, with models in shared/`runs`)."""
    from reproduce import Study, find_file, mean_keyphrases, richest

    from pusl_eval.budgets import budgets

    folder = work.data if data is None else data
    mu = mean_keyphrases(find_file(folder, "train"))
    return Study(
        data=folder, out=work.shared / runs, model=work.options.model or "scratch:tiny", seeds=work.seeds(SEEDS),
        steps=work.options.steps or (4 if work.smoke else STEPS), mu=mu, k=budgets(mu), systems=systems,
        options=dict(SMOKE) if work.smoke else {}, post={"samples": 24} if work.smoke else {},
        depth=richest(folder),
    )  # fmt: skip


def title_of(system: str) -> str:
    """A system's name in the tables."""
    from reproduce import SYSTEMS

    return SYSTEMS[system][0]


def scored(work: Work, study: Study, system: str, truth: str = "test") -> list[dict[str, Any]]:
    """A system's whole evaluations, one per seed."""
    from reproduce import predict, scores

    found = []
    for seed in study.seeds:
        path = predict(study, system, seed)
        found.append(scores(study, path, truth, study.k, f"{system}-{seed}"))
    return found


def evaluated(study: Study, system: str, references: Path, items: str = "test") -> list[dict[str, Any]]:
    """The same against another file of references: with other groups, or of other items."""
    from reproduce import predict

    from pusl_eval.evaluation import evaluate

    return [
        dict(
            evaluate(
                references, predict(study, system, seed, items), k=study.k, train=study.file("train"), bootstrap=0,
                warn=False,
            )
        )
        for seed in study.seeds
    ]  # fmt: skip


def mean(values: Sequence[float | None], scale: float = 100.0) -> float | None:
    """The mean over seeds, in percent unless `scale` says otherwise."""
    known = [value for value in values if value is not None]
    return scale * sum(known) / len(known) if known else None


def metric_means(found: Sequence[dict[str, Any]], names: Sequence[str], part: str = "all") -> dict[str, float | None]:
    """Metrics of one part of the items, averaged over seeds; #K as it is, the others in percent."""
    means = {}
    for name in names:
        scale = 1.0 if name.startswith("K@") else 100.0
        means[f"#{name}" if scale == 1.0 else name] = mean([one["scores"][part][name] for one in found], scale)
    return means


def regrouped(work: Work, name: str, group_of: Callable[[Example], str | None]) -> Path:
    """The test file with other groups, in the shared folder."""
    from pusl.examples import read_examples, write_examples

    path = work.shared / f"{name}.jsonl"
    if not path.exists():
        write_examples(path, (replace(one, group=group_of(one)) for one in read_examples(work.file("test"))))
    return path


def hot_and_diverse(work: Work) -> Path:
    """The test file in hot/rare × diverse/narrow groups: its own groups, or those its counts give."""
    from pusl.data.grouping import GROUPS, GroupConfig, group
    from pusl.examples import read_examples

    test = work.file("test")
    if any(one.group in GROUPS for one in read_examples(test)):
        return test
    path = work.shared / "hot-and-diverse.jsonl"
    if not path.exists():
        group(test, path, GroupConfig())
    return path


def by_time(work: Work) -> Path:
    """The data folder split by time (Appendix F), from all rows that have a timestamp."""
    from pusl.data.splits import SplitConfig, split
    from pusl.examples import read_examples, write_examples

    folder = work.shared / "by-time"
    if not (folder / "split.json").exists():
        rows = [one for name in ("train", "dev", "test") for one in read_examples(work.file(name))]
        if any(one.timestamp is None for one in rows):
            raise InputError(f"{work.data}: an item has no timestamp, which {work.name} needs")
        if work.given is None:  # a simulated shop sees every item once: some come again, with half of their keyphrases
            half = [one for one in rows[:40] if len(one.keyphrases) > 1]
            rows += [
                replace(one, id=f"{one.id}-later", timestamp="2026-01-01", counts=None,
                        keyphrases=one.keyphrases[: len(one.keyphrases) // (1 + number % 2)])
                for number, one in enumerate(half)
            ]  # fmt: skip
        write_examples(work.shared / "all-rows.jsonl", rows, force=True)
        split([work.shared / "all-rows.jsonl"], folder, SplitConfig(by_time=True, test=0.2))
    return folder


@contextlib.contextmanager
def judging_settings(work: Work) -> Iterator[Any]:
    """Settings of the language model that judges; without --judge, a local endpoint that follows a rule."""
    from pusl.llm.endpoint import LLMSettings

    if work.options.judge:
        yield LLMSettings(model=work.options.judge, prompt="paper")
        return
    from http.server import ThreadingHTTPServer

    from pusl.llm.fake_endpoint import Handler

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield LLMSettings(model="rule", base_url=f"http://127.0.0.1:{server.server_port}/v1", prompt="paper")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def judged(work: Work, systems: Sequence[str], references: Path, name: str, **options: Any) -> dict[str, Any]:
    """{title: summary of `pusl judge`} for the first seed of every system, and for the language model itself."""
    from reproduce import predict

    from pusl.llm.judge_job import JudgeOptions
    from pusl.llm.judging import judge

    study = study_of(work, systems)
    universe = work.data / "universe.txt"
    more: dict[str, Any] = {
        "train": study.file("train"), "universe": universe if universe.exists() else None,
        "gold": work.optional_file("people"), "cache": work.shared / "answers.sqlite",
        "options": JudgeOptions(k=(study.k[1],), consistency=0, **options),
    }  # fmt: skip
    found: dict[str, Any] = {}
    with judging_settings(work) as settings:
        for system in systems:
            output = work.out / f"{name}-{system}.jsonl"
            predictions = predict(study, system, study.seeds[0])
            found[title_of(system)] = judge(references, predictions, output, settings, force=True, **more)
        predictions = zero_shot(work, output, study.k[1], settings)
        output = work.out / f"{name}-zero-shot.jsonl"
        found["language model, zero-shot"] = judge(references, predictions, output, settings, force=True, **more)
    write_json(work.out / f"{name}.summary.json", {"systems": found}, force=True)
    return found


def zero_shot(work: Work, verdicts: Path, k: int, settings: Any) -> Path:
    """The language model's own keyphrases for the items of a file of verdicts."""
    from pusl.catalog.run import generate_catalog
    from pusl.examples import read_examples, write_examples
    from pusl.llm.client import LLMSpec
    from pusl_eval.files import read_rows

    wanted = {row["id"] for _, row in read_rows(verdicts)}
    items, output = work.out / "zero-shot-items.jsonl", work.out / "zero-shot.jsonl"
    write_examples(items, (one for one in read_examples(work.file("test")) if one.id in wanted), force=True)
    spec = LLMSpec(settings, str(work.shared / "answers.sqlite"))
    generate_catalog(spec, items, output, k, workers=1, force=output.exists())
    return output
