"""What every test relies on, doctests in the packages included."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
# The files that take a minute or more come first: one that came last would keep the others waiting.
LONG = (
    "fuzz", "fault_injection", "gallery", "user_folder", "demo", "hub", "training", "ray", "ceiling_study",
    "eval_statistics", "serve_limits", "reproduce", "serve", "training_resume",
)  # fmt: skip

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models of a few thousand parameters are slower with two threads
with contextlib.suppress(ImportError):  # pusl_eval is also tested alone
    from pusl.process import prepare_process

    prepare_process()  # pytest is a process of ours: the workers and servers that tests start inherit its settings

# A shell's background jobs ignore Ctrl-C, and so does every program they start. Some tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skips modules without doctests: importing them would cost seconds and need every optional dependency."""
    if collection_path.suffix != ".py" or ROOT / "tests" in collection_path.parents:
        return None
    return True if ">>> " not in collection_path.read_text(encoding="utf-8") else None


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the order below: pytest-xdist would put the files with the most tests first."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, the others as they are."""
    places = {f"test_{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist asks; `-n auto` stands in pyproject.toml
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes for a run: 0, this one, where starting others would not pay. `-n 3` overrules it.

    Several files are spread over the processes, whole files at a time, so a file's fixtures are made once. Some tests
    wait for servers and time limits, so there is one process more than cores. Each loads torch, so four are the most.
    """
    named = config.option.file_or_dir
    one_file = len(named) == 1 and not Path(named[0].partition("::")[0]).is_dir()
    if one_file or config.option.capture == "no" or "PYTEST_XDIST_WORKER" in os.environ:  # -s shows what tests print
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + 1, 4) if cores > 1 else 0
