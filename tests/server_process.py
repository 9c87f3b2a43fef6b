"""A tiny model and a real `pusl serve` process for tests; all traffic stays on 127.0.0.1."""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

WORDS = [
    "red", "blue", "green", "waterproof", "leather", "boots", "shoes", "hiking", "trail", "running", "women", "men",
    "kids", "wide", "narrow", "electric", "kettle", "steel", "coffee", "tea", "travel", "mug", "bottle", "camping",
    "tent", "light", "warm", "winter", "summer", "jacket",
]  # fmt: skip
UNIVERSE = ("red tent", "leather shoes", "hiking boots", "winter jacket", "travel mug")
LABELS = ("hiking boots", "leather shoes", "travel mug", "winter jacket")


def make_text(seed: int, words: int = 12) -> str:
    """A text of the little world the tiny tokenizer knows."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def tiny_model(folder: Path) -> Path:
    """A random PUSL model of the smallest shape: its phrases mean nothing, but they are always the same."""
    from pusl.checkpoint import save_checkpoint, save_labels, scratch_model
    from pusl.tokenizer import train_tokenizer

    tokenizer = train_tokenizer([make_text(seed) for seed in range(200)], 400)
    defaults = {"k": 5, "mu": 3.0, "max_source_length": 48, "max_phrase_tokens": 6}
    model = scratch_model("tiny", tokenizer, seed=7)
    save_checkpoint(folder, model, tokenizer, {"paradigm": "pusl", "defaults": defaults})
    save_labels(folder, LABELS)
    return folder


@functools.cache
def shared_model() -> Path:
    """One tiny model for all tests of the service."""
    folder = Path(tempfile.mkdtemp(prefix="pusl-served-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return tiny_model(folder / "tiny")


@functools.cache
def shared_server() -> Server:
    """One roomy server with a universe: loading torch again in every file would cost more than all the tests."""
    universe = shared_model().parent / "universe.txt"
    universe.write_text("".join(f"{phrase}\n" for phrase in UNIVERSE))
    server = Server(shared_model(), "--timeout", "120", "--universe", str(universe))
    atexit.register(server.stop)
    return server


class Server:
    """`pusl serve` as a user starts it: another process, a free port, logs in a file."""

    def __init__(
        self, model: Path, *flags: str, environment: dict[str, str] | None = None, descriptors: int | None = None
    ) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in stop)
        command = [sys.executable, "-m", "pusl", "serve", "--model", str(model), "--port", "0"]
        command += ["--threads", "1", *flags]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command]
        settings = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=settings)
        assert self.process.stdout
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, f"no address in {line!r}; log: {self.read_log()}"
        self.port = int(found[1])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, seconds: float = 120) -> Server:
        """Returns when /readyz is 200."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.call("GET", "/readyz")[0] == 200:
                    return self
            except ConnectionError:
                pass
            assert self.process.poll() is None, self.read_log()
            time.sleep(0.1)
        raise AssertionError(f"not ready after {seconds} s: {self.read_log()}")

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 120
    ) -> tuple[int, Any, dict[str, str]]:
        """(status, parsed JSON or text, headers) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            given = {"Content-Type": "application/json", **(headers or {})} if raw is not None else headers or {}
            connection.request(method, path, raw, given)
            answer = connection.getresponse()
            content = answer.read().decode()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, json.loads(content) if content and "json" in found["content-type"] else content, found
        finally:
            connection.close()

    def ask(self, texts: Sequence[str], **options: Any) -> tuple[int, Any, dict[str, str]]:
        """POST /v1/keyphrases."""
        return self.call("POST", "/v1/keyphrases", {"texts": list(texts), **options})

    def metric(self, name: str) -> float:
        """One number from /metrics, by its full name with labels."""
        text = self.call("GET", "/metrics")[1]
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return 0.0

    def worker_pid(self) -> int:
        """The model process."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        if not tasks.exists():
            pytest.skip("needs /proc to find the model process")
        return int(" ".join(task.read_text() for task in tasks.glob("*/children")).split()[0])

    @contextlib.contextmanager
    def frozen_worker(self) -> Iterator[int]:
        """The model process stands still inside this block: a hang, or a load that cannot be mastered."""
        pid = self.worker_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):  # the service may have replaced it
                os.kill(pid, signal.SIGCONT)

    def read_log(self) -> str:
        """Everything on stderr so far."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode()  # seek() would move the server's own position too

    def log_lines(self) -> list[dict[str, Any]]:
        """The log, parsed: every line must be JSON."""
        return [json.loads(line) for line in self.read_log().splitlines()]

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30) -> int:
        """Sends the signal and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stdout
            self.process.stdout.close()
            if not self.log.closed and self.process.poll() is not None:
                self.last_log = self.read_log()
                self.log.close()
