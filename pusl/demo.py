"""A simulated catalog -> models -> predictions -> scores on observed and complete labels -> a page.

Each step writes finished files, so a stopped demo continues where it was.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pusl import paradigms
from pusl.checkpoint import read_meta
from pusl.config import option
from pusl.process import PARENT
from pusl.training.record import RESUME_COMMAND, RunFolder
from pusl_eval.budgets import budget
from pusl_eval.errors import shown
from pusl_eval.files import InputError, check_folder, check_output, read_json, write_json
from pusl_eval.flags import SEED

log = logging.getLogger(__name__)
SETTINGS = "demo.json"
TRAINED = ("one2seq", "pusl")  # trained side by side; the last one shows its progress
# name of the predictions file -> its row in the table
SYSTEMS = {"knn": "kNN", **{name: paradigms.get(name).title for name in TRAINED}, "fused": "fused"}
LAZY, PROLIFIC = (SYSTEMS[name] for name in TRAINED)  # the two that the text under the table compares


@dataclass(frozen=True)
class DemoConfig:
    """Options of the demo. docs/results says how the defaults were chosen."""

    items: int = option(
        9000, "items of the simulated catalog; dev and test get 500 of them each, but at most a quarter",
        minimum=400,
    )  # fmt: skip
    epochs: float = option(4.0, "passes over the training items, for both models", minimum=0.01)
    model: str = option("scratch:tiny", "model to start from: scratch:tiny, scratch:mini, a folder or a Hub id")
    seed: int = option(0, SEED, minimum=0)


def demo(out: str | Path, config: DemoConfig | None = None, force: bool = False) -> dict[str, Any]:
    """Runs the whole job in `out` and returns the content of `metrics.json`."""
    config, out = config or DemoConfig(), Path(out)
    check_folder(out)
    _check(out, config, force)
    if force or not (out / SETTINGS).exists():
        _check_model(config.model)
    with RunFolder(out).locked():
        _check(out, config, force)  # another demo may have begun or ended here meanwhile
        _prepare(out, config, force)
        return _all_steps(out, config)


def _all_steps(out: Path, config: DemoConfig) -> dict[str, Any]:
    began = time.perf_counter()
    data = out / "data"
    with _step("1/6", "simulating a shop whose buyers label what they look at"):
        _simulate(data, config)
    with _step("2/6", f"training {' and '.join(SYSTEMS[name] for name in TRAINED)} side by side"):
        _train_all(out, config)
    k = budget(_mu(out), 2)
    with _step("3/6", "fusing PUSL, neighbors' labels and labels in the text: learned on the dev items"):
        _fuse(out, config)
    with _step("4/6", f"generating k = 2μ = {k} keyphrases for each test item"):
        for name in SYSTEMS:
            _predict(name, out, k)
    with _step("5/6", "scoring against observed and complete labels"):
        metrics = _evaluate(out, config)
    with _step("6/6", "writing the report"):
        _report(out, config)
    log.info(f"everything done in {time.perf_counter() - began:.0f} s")
    return metrics


def outcome(out: str | Path, config: DemoConfig, metrics: dict[str, Any]) -> str:
    """What a finished demo has to say."""
    mu = _mu(Path(out))
    verdict = _verdict(metrics, budget(mu, 2), mu) + _spread(config)
    return f"{verdict}\n\nEverything is in {out}/. Open {Path(out) / 'report.html'} in a browser."


def _mu(out: Path) -> float:
    """Keyphrases per training item."""
    return float(read_meta(out / "models" / "pusl")["defaults"]["mu"])


def _check(out: Path, config: DemoConfig, force: bool) -> None:
    """Accepts a new folder or an unfinished demo with the same settings; a finished demo needs --force."""
    settings = out / SETTINGS
    if not settings.exists():
        if out.is_dir() and any(out.iterdir()):
            raise InputError(f"{shown(out)}: is not empty and is not a demo; choose another folder with --out")
    elif force:
        check_output(settings, force)
    elif (out / "report.html").exists():
        raise InputError(f"{shown(out)}: holds a finished demo; pass --force to replace it, or choose another --out")
    elif read_json(settings, "pass --force to start again") != asdict(config):
        raise InputError(f"{shown(out)}: holds an unfinished demo with other settings; pass --force to replace it")


def _prepare(out: Path, config: DemoConfig, force: bool) -> None:
    """Removes an earlier demo if it may, and notes the settings of this one."""
    settings = out / SETTINGS
    if force and settings.exists():
        write_json(settings, {}, force=True)  # of no demo: after a kill, what is half-removed is not continued
        for name in ("data", "models", "predictions"):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in ("metrics.json", "report.html"):
            (out / name).unlink(missing_ok=True)
    write_json(settings, asdict(config), force=True)


def _check_model(name: str) -> None:
    """A model that cannot be trained is found before anything is written or removed."""
    from pusl.checkpoint import load_base
    from pusl.training.train_config import SCRATCH, check_scratch

    check_scratch(name)
    if not name.startswith(SCRATCH):
        load_base(name)


def _simulate(data: Path, config: DemoConfig) -> None:
    from pusl.data.simulate import SimulateConfig, simulate

    if not data.exists():
        held_out = min(500, config.items // 4)
        settings = SimulateConfig(items=config.items, dev_items=held_out, test_items=held_out, seed=config.seed)
        simulate(data, settings)


def _train_all(out: Path, config: DemoConfig) -> None:
    """One process per model, which share the cores: small models gain little from threads.

    The last model shows its progress on the terminal, the others write a log file.
    """
    threads = str(max(1, (os.cpu_count() or 1) // len(TRAINED)))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, RESUME_COMMAND: f"pusl demo --out {out}"}
    environment[PARENT] = str(os.getpid())
    (out / "models").mkdir(parents=True, exist_ok=True)
    *quiet, watched = TRAINED
    with ExitStack() as stack:
        running = {}
        for name in [*quiet, watched]:
            file = stack.enter_context(open(out / "models" / f"{name}.log", "ab")) if name in quiet else None
            command = _train_command(name, out, config)
            running[name] = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            codes = {name: process.wait() for name, process in running.items()}
        except KeyboardInterrupt:  # the children got the signal too; they save and stop
            for process in running.values():
                process.wait()
            raise
    for name, code in codes.items():
        if code:
            reason = f"training {SYSTEMS[name]} ended with exit code {code}; see {shown(out / 'models')}"
            raise InputError(reason) if code == 2 else RuntimeError(reason)


def _train_command(name: str, out: Path, config: DemoConfig) -> list[str]:
    folder = out / "models" / name
    command = [sys.executable, "-m", "pusl", "train", "--out", str(folder)]
    if (folder / "run.json").exists():
        return [*command, "--resume"]
    settings = {
        "paradigm": name, "model": config.model, "train": out / "data" / "train.jsonl",
        "dev": out / "data" / "dev.jsonl", "epochs": config.epochs, "seed": config.seed, "eval-every": 10**6,
    }  # fmt: skip
    if config.model == "scratch:tiny":
        settings["dropout"] = 0.0
    return [*command, *(word for flag, value in settings.items() for word in (f"--{flag}", str(value)))]


def _fuse(out: Path, config: DemoConfig) -> None:
    """Makes the model folder `models/fused`, unless an earlier run has finished it."""
    from pusl.fusion.held_out import describe
    from pusl.fusion.learn import fuse

    data, folder = out / "data", out / "models" / "fused"
    if not folder.exists():
        sources = [f"pusl={out / 'models' / 'pusl'}", "knn", "text"]
        report = fuse(data / "train.jsonl", data / "dev.jsonl", sources, folder, seed=config.seed, ablate=False)
        if "percent" in report:
            log.info(describe(report))


def _predict(name: str, out: Path, k: int) -> None:
    """Writes `predictions/NAME.jsonl`, unless an earlier run has finished it."""
    from pusl.baselines.predict import run_baseline
    from pusl.catalog.run import generate_catalog

    data, output = out / "data", out / "predictions" / f"{name}.jsonl"
    if output.exists():
        return
    if name == "knn":
        run_baseline("knn", train=data / "train.jsonl", input=data / "test.jsonl", output=output, k=k)
    else:
        generate_catalog(out / "models" / name, data / "test.jsonl", output, k)


def _evaluate(out: Path, config: DemoConfig) -> dict[str, Any]:
    """All systems side by side, on observed and on complete labels."""
    from pusl_eval.evaluation import compare

    shared: dict[str, Any] = {
        "k": ["mu", "2mu"], "train": out / "data" / "train.jsonl", "universe": out / "data" / "universe.txt",
        "seed": config.seed,
    }  # fmt: skip
    truths = {"observed": "test.jsonl", "complete": "complete.jsonl"}
    with _silenced("pusl_eval"):  # its warnings are in metrics.json, under provenance
        metrics = {
            truth: dict(compare(out / "data" / file, _predictions(out), **shared)) for truth, file in truths.items()
        }
    write_json(out / "metrics.json", metrics, force=True)
    return metrics


def _predictions(out: Path) -> dict[str, Path]:
    return {title: out / "predictions" / f"{name}.jsonl" for name, title in SYSTEMS.items()}


def _report(out: Path, config: DemoConfig) -> None:
    from pusl_eval.report import write_report

    data = out / "data"
    write_report(
        out / "report.html", data / "test.jsonl", _predictions(out),
        train=data / "train.jsonl", universe=data / "universe.txt", complete=data / "complete.jsonl",
        title="PUSL demo: a shop whose labels are incomplete", seed=config.seed, force=True,
        notes=f"A simulated catalog of {config.items:,} items; the models learned from the observed labels only.",
    )  # fmt: skip


def _verdict(metrics: dict[str, Any], k: int, mu: float) -> str:
    """A table, and what it says in words that follow the numbers."""
    middle = budget(mu)
    heads = (f"B@{middle}", f"B@{k}", f"P@{k}", f"true B@{k}")
    rows = [f"{'':<9}{'#K@' + str(k):>6}" + "".join(f"{head:>16}" for head in heads)]

    def shown(truth: str, title: str, metric: str) -> str:
        system = metrics[truth]["systems"][title]
        low, high = system["intervals"]["all"][metric]
        return f"{100 * system['scores']['all'][metric]:.1f} ({100 * low:.0f}–{100 * high:.0f})"

    def value(truth: str, title: str, metric: str) -> float:
        return float(metrics[truth]["systems"][title]["scores"]["all"][metric])

    for title in SYSTEMS.values():
        cells = [shown("observed", title, metric) for metric in heads[:3]] + [shown("complete", title, f"B@{k}")]
        rows.append(f"{title:<9}{value('observed', title, f'K@{k}'):>6.2f}" + "".join(f"{cell:>16}" for cell in cells))
    pair = (LAZY, PROLIFIC)
    few, many = (value("observed", title, f"K@{k}") for title in pair)
    seen = [100 * value("observed", title, f"B@{k}") for title in pair]
    true = [100 * value("complete", title, f"B@{k}") for title in pair]
    words = [
        f"Buyers left {mu:.1f} keyphrases per item. Asked for {k}, {LAZY} gave {few:.1f} different ones, "
        f"{PROLIFIC} {many:.1f}.",
        f"B@{k}, right ones among the {k} asked for, on observed labels: {seen[0]:.1f}% and {seen[1]:.1f}%.",
        f"Against all right keyphrases, which only a simulation knows: {true[0]:.1f}% and {true[1]:.1f}%.",
    ]
    precise = [[100 * value(truth, title, f"P@{k}") for title in pair] for truth in ("observed", "complete")]
    if all(first > second for first, second in precise) and true[0] < true[1]:
        right = [share * k / 100 for share in true]
        words += [
            f"What is traded: the few keyphrases that {LAZY} gives are right more often (P@{k} {precise[0][0]:.1f}% "
            f"against {precise[0][1]:.1f}% on observed labels,",
            f"{precise[1][0]:.1f}% against {precise[1][1]:.1f}% on complete ones). {PROLIFIC} finds {right[1]:.1f} "
            f"right keyphrases per item instead of {right[0]:.1f}.",
        ]
    fused = SYSTEMS["fused"]
    best = max((100 * value("complete", title, f"B@{k}"), title) for title in SYSTEMS.values() if title != fused)
    words.append(
        f"Fused ({PROLIFIC}, neighbors, the text): {100 * value('observed', fused, f'B@{k}'):.1f}% on observed, "
        f"{100 * value('complete', fused, f'B@{k}'):.1f}% on complete labels; the best single one is {best[1]} "
        f"with {best[0]:.1f}%."
    )
    return "\n" + "\n".join(rows) + "\n\n" + "\n".join(words)


def _spread(config: DemoConfig) -> str:
    """The range of stored runs (scripts/studies/demo_seeds.py); empty unless the settings are the same."""
    file = Path(__file__).with_name("demo_seeds.json")
    if not file.is_file():
        return ""
    stored = json.loads(file.read_text(encoding="utf-8"))
    if {**stored["settings"], "seed": config.seed} != asdict(config):
        return ""
    runs = stored["processors"]

    def values(title: str, name: str) -> list[float]:
        return [value for run in runs.values() for value in run["percent at 2μ"].get(title, {}).get(name, [])]

    def shown(title: str, name: str, digits: int) -> str:
        found = values(title, name)
        return f"{min(found):.{digits}f}–{max(found):.{digits}f}" if found else "–"

    heads = (("#K@2μ", "K", 2), ("B@2μ", "B", 1), ("true B@2μ", "true B", 1))
    rows = [f"{'':<9}{'runs':>6}" + "".join(f"{head:>16}" for head, _, _ in heads)]
    rows += [
        f"{title:<9}{len(values(title, 'B')):>6}"
        + "".join(f"{shown(title, name, digits):>16}" for _, name, digits in heads)
        for title in SYSTEMS.values()
    ]
    return (
        "\n\nHow much chance decides: earlier runs with several seeds on several processors, lowest to highest:\n"
        + "\n".join(rows)
    )


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def _step(number: str, what: str) -> Iterator[None]:
    log.info(f"[{number}] {what}")
    began = time.perf_counter()
    yield
    log.info(f"[{number}] done in {time.perf_counter() - began:.0f} s")
