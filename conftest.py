"""What every test relies on, doctests in the packages included."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

ROOT = Path(__file__).parent

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
