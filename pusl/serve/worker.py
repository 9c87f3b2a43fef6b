"""Texts + options -> predictions, computed in a separate process.

The web process never runs the model; a worker does. So a long batch cannot delay health checks, and a
worker that dies or hangs is replaced. A message on the pipes is four bytes of length and then JSON. The
worker's first message says what it loaded, or why it failed; after that it answers each question. A question
without items asks only whether the worker still answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from pusl.devices import ends_process
from pusl.process import end_with_parent, prepare_process
from pusl.serve.batching import TooSlow, WorkerLost
from pusl_eval.files import InputError

HEADER = struct.Struct(">I")
LOAD_SECONDS = 900.0  # to load a model; a first start may build the index of a large universe
TextWithKnown = tuple[str, Sequence[str]]  # a text and the keyphrases it already has


class WorkerError(Exception):
    """The model failed in the worker. The message names the error and its place, never the text."""


class Worker:
    """A model process, as the web process sees it."""

    command: tuple[str, ...] = (sys.executable, "-m", "pusl.serve.worker")

    def __init__(
        self, settings: Mapping[str, Any], hang_after: float = 300.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.settings, self.hang_after, self.environment = dict(settings), hang_after, dict(environment or {})
        self.info: dict[str, Any] = {}
        self.usual, self.limit = 0.0, math.inf  # seconds that a text with the defaults takes, that any may take
        self.restarts = -1
        self.heard = 0.0  # when it last answered, or was asked after a silence
        self.attended = False  # the service is looking after it
        self.failures = 0  # starts that failed, one after the other
        self._loaded = False
        self._asked = 0  # questions without an answer
        self._process: asyncio.subprocess.Process | None = None
        self._reading = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process id, or None if it is not running."""
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def silent(self) -> float:
        """Seconds for which a question has had no answer; infinite if the process is dead or loads its model."""
        if self.pid is None or not self._loaded:
            return math.inf
        return time.monotonic() - self.heard if self._asked else 0.0

    def unheard(self, seconds: float) -> bool:
        """Whether nobody has asked or heard it for so long."""
        return self._loaded and not self._asked and time.monotonic() - self.heard > seconds

    async def start(self) -> dict[str, Any]:
        """Starts the process and waits until the model is loaded and warm."""
        self._loaded = False
        self._process = await asyncio.create_subprocess_exec(
            *self.command, json.dumps(self.settings),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, **self.environment},
            start_new_session=True,  # Ctrl-C must not reach it before the queue is empty
        )  # fmt: skip
        self.restarts += 1
        try:
            hello = await asyncio.wait_for(self._receive(), LOAD_SECONDS)
        except asyncio.TimeoutError:
            await self.stop()
            raise WorkerLost(f"the model was not loaded within {LOAD_SECONDS:g} s") from None
        if "error" in hello:
            await self.stop()
            raise InputError(hello["error"]) if hello["kind"] == "input" else WorkerError(hello["error"])
        self.info, self.usual, self.limit = hello["ready"], hello["usual"], hello["limit"]
        self._loaded, self.heard = True, time.monotonic()
        return self.info

    async def ask(
        self, items: Sequence[TextWithKnown], options: Mapping[str, Any], hang_after: float | None = None
    ) -> tuple[list[dict[str, Any]], float]:
        """Predictions for one batch and the seconds they took; WorkerLost if the process dies or hangs."""
        await self.restart_if_dead()
        started, limit = self.restarts, hang_after or self.hang_after
        # Several questions may wait in the pipe; answers come in the same order, and the lock is fair.
        self._write({"items": items, "options": options})
        if not self._asked:
            self.heard = time.monotonic()
        self._asked += 1
        try:
            async with self._reading:
                if started != self.restarts or self.pid is None:
                    raise WorkerLost("the model process ended")
                try:
                    answer = await asyncio.wait_for(self._receive(), limit)
                except (asyncio.TimeoutError, WorkerLost) as error:
                    await self.stop()
                    raise WorkerLost(str(error) or f"no answer within {limit:g} s") from None
                self.heard = time.monotonic()
        finally:
            self._asked -= 1
        if "error" not in answer:
            return answer["results"], answer["seconds"]
        if answer["kind"] == "slow":
            raise TooSlow(answer["seconds"])
        raise InputError(answer["error"]) if answer["kind"] == "input" else WorkerError(answer["error"])

    async def ping(self, hang_after: float) -> None:
        """Asks an idle process for a sign of life; one that gives none within the time is killed."""
        if self._asked == 0 and self.pid is not None:
            with contextlib.suppress(WorkerLost):
                await self.ask((), {}, hang_after)

    async def stop(self) -> None:
        """Kills the process; it has nothing to save."""
        self._loaded = False
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._process._transport.close()  # type: ignore[attr-defined]

    async def restart_if_dead(self) -> None:
        """Starts the process again if it has died."""
        if self.pid is not None:
            return
        async with self._reading:
            if self.pid is None:
                try:
                    await self.start()
                except (InputError, WorkerError) as error:
                    raise WorkerLost(f"the model could not be loaded again: {error}") from None

    def _write(self, question: dict[str, Any]) -> None:
        assert self._process and self._process.stdin
        body = json.dumps(question).encode()
        self._process.stdin.write(HEADER.pack(len(body)) + body)  # _receive notices if the process is dead

    async def _receive(self) -> dict[str, Any]:
        assert self._process and self._process.stdout
        try:
            (length,) = HEADER.unpack(await self._process.stdout.readexactly(HEADER.size))
            return dict(json.loads(await self._process.stdout.readexactly(length)))
        except asyncio.IncompleteReadError:
            raise WorkerLost("the model process ended") from None


def answer_all(settings: Mapping[str, Any], questions: BinaryIO, answers: BinaryIO) -> None:
    """Loads the model, reports it, and answers questions until the pipe closes."""

    def send(message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        answers.write(HEADER.pack(len(body)) + body)
        answers.flush()

    try:
        from pusl.decoding.deadline import OutOfTime
        from pusl.serve.inference import Inference

        model = Inference(**settings)
        send({"ready": model.info(), "usual": model.usual_seconds, "limit": model.seconds})
    except InputError as error:
        send({"error": str(error), "kind": "input"})
        return
    except Exception as error:
        send({"error": _where(error), "kind": "internal"})
        return
    while len(head := questions.read(HEADER.size)) == HEADER.size:
        question = json.loads(questions.read(HEADER.unpack(head)[0]))
        if not question["items"]:
            send({"results": [], "seconds": 0.0})
            continue
        try:
            begun = time.perf_counter()
            options, texts = question["options"], [text for text, _ in question["items"]]
            known = [phrases for _, phrases in question["items"]] if options.pop("complete") else None
            results = model.answer(texts, options, known)
            send({"results": results, "seconds": time.perf_counter() - begun})
        except OutOfTime:
            send({"error": "out of time", "kind": "slow", "seconds": model.seconds})
        except InputError as error:
            send({"error": str(error), "kind": "input"})
        except Exception as error:
            if ends_process(error):  # a CUDA error that stays: another process answers this question
                sys.stderr.write(f"pusl: the device is lost ({_where(error)}); the model process ends\n")
                return
            send({"error": _where(error), "kind": "internal"})


def _where(error: Exception) -> str:
    """`RuntimeError at generator.py:120`: enough to find the fault, and no user text."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"


def main() -> None:
    """Runs the worker process. Messages use stdin and stdout; anything printed goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(os.getppid())
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    prepare_process(settings.pop("threads", None), keep_memory=True)
    with contextlib.suppress(BrokenPipeError):
        answer_all(settings, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
