"""A function -> its outcome in a fork of this process: exit code, output, time, memory. Part of bench/fuzz.py."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADDRESSES = 6 << 30  # bytes of address space above the loaded process, so that the machine survives
SECONDS = 40.0  # processor time
WALL = 150.0  # a case that waits for something forever


@dataclasses.dataclass
class Outcome:
    """How a case ended; `problems` is empty after a clean answer."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    memory: int
    problems: list[str] = dataclasses.field(default_factory=list)


class Runner:
    """Runs commands in forks of this process."""

    def __init__(self) -> None:
        self.base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        self.addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    def call(
        self, function: Callable[[], Any], folder: Path, environment: str = "", wall: float = WALL, ready: str = ""
    ) -> Outcome:
        """The function's result as an exit code, from a fork whose working folder is `folder`.

        A service does not end by itself: once it has said `ready`, it gets a SIGTERM.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            sys.stdout.flush()
            sys.stderr.flush()
            began = time.monotonic()
            child = os.fork()
            if not child:
                self._child(function, folder, environment, out.fileno(), err.fileno())
            code, usage, late = self._wait(child, wall, (out.fileno(), err.fileno()), ready.encode())
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what the command may have started
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read(1 << 20).decode("utf-8", "replace"))
        found = Outcome(code, *texts, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)
        if late:
            found.problems.append(f"no answer after {time.monotonic() - began:.0f} s")
        elif code < 0:
            found.problems.append(f"ended by signal {-code}")
        return found

    def _wait(self, child: int, wall: float, said: tuple[int, int], ready: bytes) -> tuple[int, Any, bool]:
        end, pause = time.monotonic() + wall, 0.001
        while time.monotonic() < end:
            if ready and any(ready in os.pread(stream, 1 << 20, 0) for stream in said):
                os.kill(child, signal.SIGTERM)
                ready = b""
            done, status, usage = os.wait4(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status), usage, False
            time.sleep(pause)
            pause = min(0.02, pause * 1.3)
        os.killpg(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        return os.waitstatus_to_exitcode(status), usage, True

    def _child(self, function: Callable[[], Any], folder: Path, environment: str, out: int, err: int) -> None:
        code: Any = 70
        try:
            os.setsid()
            os.chdir(folder)
            os.dup2(out, 1)
            os.dup2(err, 2)
            sys.stdin = open(os.devnull)  # noqa: SIM115
            resource.setrlimit(resource.RLIMIT_AS, (self.addresses + ADDRESSES,) * 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS), int(SECONDS) + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _arrange(environment)
            encoding = "ascii" if environment == "ascii" else "utf-8"
            sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
            kind = {"encoding": encoding, "errors": "backslashreplace", "buffering": 1}
            sys.stderr = open(2, "w", closefd=False, **kind)  # noqa: SIM115
            if environment.startswith("closed"):
                _close(environment)
            try:
                code = function()
            except SystemExit as ended:
                code = ended.code
            if sys.stdout is not None:
                sys.stdout.flush()  # as Python does at its end
        except BaseException:
            code = 70
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _arrange(environment: str) -> None:
    """Makes the process as bad a place as the case asks for."""
    if environment == "broken pipe":
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
    elif environment == "full stdout":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif environment == "full disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
    elif environment == "few descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))


def _close(environment: str) -> None:
    """What Python does when it finds a standard stream closed at its start."""
    os.close(1 if environment == "closed stdout" else 2)
    setattr(sys, environment.split()[1], None)


def snapshot(folder: Path) -> dict[str, Any]:
    """What is in a folder: names, and what tells a changed file from an unchanged one."""
    found: dict[str, Any] = {}
    waiting = [(os.fspath(folder), "")]
    while waiting:
        path, prefix = waiting.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found[prefix + entry.name] = 0
                    waiting.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    about = entry.stat(follow_symlinks=False)
                    found[prefix + entry.name] = (about.st_mode, about.st_size, about.st_mtime_ns)
    return found
