"""A script and its words -> what it prints and its exit code, in this process: torch is not imported once more."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock


def run_here(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As `python script words` would run it, `if __name__ == "__main__"` included."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv, path = [str(script), *words], [str(script.parent), *sys.path]
    with contextlib.ExitStack() as changes:
        changes.enter_context(mock.patch("sys.argv", argv))
        changes.enter_context(mock.patch("sys.path", path))
        changes.enter_context(contextlib.redirect_stdout(out))
        changes.enter_context(contextlib.redirect_stderr(err))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())
