"""python scripts/bench/serving.py --model models/pusl --texts data/test.jsonl --clients 100 --seconds 60

Load test of `pusl serve` on this machine, over real HTTP on 127.0.0.1.

1. Offline: the same model generates for the same texts in one process. Its answers are the expected ones and
   its texts/s the reference, measured before and after the service, because a machine's speed drifts.
2. Closed loop: N clients with one text per request; each sends the next request after the answer. Every
   answer is compared with the offline one. None may be lost, wrong or refused.
3. Overload: requests arrive at a multiple of the measured rate, answered or not. Refusals must be fast,
   accepted requests must be right, and memory must not grow.

The clients run on the same cores as the service, so the ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pusl.examples import read_examples
from pusl.process import prepare_process
from pusl_eval.errors import exit_code
from pusl_eval.files import InputError, write_json

SCORE_TOLERANCE = 1e-4
Answer = tuple[list[str], list[float]]


@dataclass
class Load:
    """The answers and latencies of one phase."""

    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0
    lost: int = 0

    async def send(self, connection: Connection, request: bytes, wanted: Answer) -> bool:
        """Sends one request, counts and checks its answer; False if the connection is lost."""
        start = time.monotonic()
        try:
            status, body = await connection.ask(request)
        except (OSError, EOFError):
            self.lost += 1
            connection.close()
            return False
        self.statuses[status] += 1
        self.latencies.setdefault(status, []).append(time.monotonic() - start)
        self.wrong += status == "200" and not right(body, wanted)
        return True

    def summary(self) -> dict[str, Any]:
        """Numbers for the report; latencies in milliseconds."""
        found: dict[str, Any] = {
            "seconds": round(self.seconds, 1), "statuses": dict(self.statuses), "lost": self.lost, "wrong": self.wrong,
            "answers_per_second": round(self.statuses["200"] / self.seconds, 1),
        }  # fmt: skip
        for status, times in sorted(self.latencies.items()):
            ordered = sorted(times)
            found[f"ms_{status}"] = {
                f"p{p:g}": round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))], 1)
                for p in (50, 90, 99, 99.9)
            } | {"max": round(1000 * ordered[-1], 1)}
        return found


class Connection:
    """One keep-alive HTTP connection, written by hand to keep the clients cheap."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[str, bytes]:
        """(status, body) of one request."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length, head
        return head[9:12].decode(), await reader.readexactly(int(length[1]))

    def close(self) -> None:
        """Closes the connection."""
        if self.streams:
            self.streams[1].close()


def make_request(text: str, k: int) -> bytes:
    """The bytes of POST /v1/keyphrases for one text."""
    body = json.dumps({"texts": [text], "k": k}).encode()
    head = "POST /v1/keyphrases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def right(body: bytes, wanted: Answer) -> bool:
    """Same phrases in the same order, scores equal within rounding."""
    (result,) = json.loads(body)["results"]
    close = all(abs(a - b) < SCORE_TOLERANCE for a, b in zip(result["scores"], wanted[1], strict=False))
    return result["keyphrases"] == wanted[0] and len(result["scores"]) == len(wanted[1]) and close


async def closed_loop(
    port: int, requests: Sequence[bytes], wanted: Sequence[Answer], clients: int, seconds: float
) -> Load:
    """N clients; each sends the next request as soon as it has its answer."""
    load, turn, begun = Load(), 0, time.monotonic()

    async def client() -> None:
        nonlocal turn
        connection = Connection(port)
        while time.monotonic() - begun < seconds:
            index = turn % len(requests)
            turn += 1
            if not await load.send(connection, requests[index], wanted[index]):
                connection = Connection(port)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.monotonic() - begun
    return load


async def open_loop(
    port: int, requests: Sequence[bytes], wanted: Sequence[Answer], rate: float, seconds: float, pids: Sequence[int]
) -> tuple[Load, list[list[int]]]:
    """Requests at a fixed rate, answered or not; measures the memory of the processes once a second."""
    load, begun, free = Load(), time.monotonic(), []
    memory: list[list[int]] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(index: int) -> None:
        connection = free.pop() if free else Connection(port)
        if await load.send(connection, requests[index], wanted[index]):
            free.append(connection)

    sent = 0
    while (now := time.monotonic() - begun) < seconds:
        if now >= len(memory):
            memory.append([resident_kib(pid) for pid in pids])
        while sent < now * rate:
            task = asyncio.ensure_future(one(sent % len(requests)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    load.seconds = time.monotonic() - begun  # includes the time to answer all accepted requests
    memory.append([resident_kib(pid) for pid in pids])
    for connection in free:
        connection.close()
    return load, memory


def resident_kib(pid: int) -> int:
    """Memory of a process, now."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


@contextlib.contextmanager
def service(args: argparse.Namespace, log: Path) -> Iterator[tuple[int, list[int]]]:
    """A running `pusl serve`: its port, and the ids of the web process and the model processes."""
    command = [
        sys.executable, "-m", "pusl", "serve", "--model", args.model, "--port", "0", "--threads", str(args.threads),
        "--workers", str(args.workers), "--max-batch", str(args.max_batch), "--max-queue", str(args.max_queue),
        "--max-texts", "1", "--precision", args.precision, "--log-level", args.log_level,
    ]  # fmt: skip
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True)
    try:
        assert process.stdout
        found = re.search(r":(\d+) ", process.stdout.readline())
        if not found:
            raise InputError(f"the service did not start: {log.read_text().strip()}")
        port = int(found[1])
        while not asyncio.run(is_ready(port)):
            if process.poll() is not None:
                raise InputError(f"the service ended: {log.read_text().strip()}")
            time.sleep(0.2)
        children = Path(f"/proc/{process.pid}/task").glob("*/children")
        yield port, [process.pid, *(int(pid) for file in children for pid in file.read_text().split())]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert process.stdout
        process.stdout.close()


async def is_ready(port: int) -> bool:
    """Whether /readyz says 200."""
    connection = Connection(port)
    try:
        return (await connection.ask(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == "200"
    except OSError:
        return False
    finally:
        connection.close()


def offline(args: argparse.Namespace, texts: Sequence[str]) -> tuple[list[Answer], float]:
    """(answers, texts/s) of one process without a service, in the same batches and threads."""
    from pusl.decoding.generator import KeyphraseGenerator

    prepare_process(args.threads, keep_memory=True)
    generator = KeyphraseGenerator.from_pretrained(args.model, precision=args.precision)
    generator.generate(texts[: args.max_batch], args.k, batch_size=args.max_batch)
    begun, found, done = time.monotonic(), [], 0
    while time.monotonic() - begun < args.offline_seconds or not found:
        answers = generator.generate(texts, args.k, batch_size=args.max_batch)
        found = found or [(one.keyphrases, one.scores) for one in answers]
        done += len(texts)
    return found, done / (time.monotonic() - begun)


def main() -> int:
    """Runs the three parts and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a trained model")
    parser.add_argument("--texts", required=True, help="file of examples with the texts")
    parser.add_argument("--limit", type=int, default=1000, help="different texts used (default: 1000)")
    parser.add_argument("-k", "--k", type=int, default=10, help="keyphrases per text (default: 10)")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60, help="length of the closed loop (default: 60)")
    parser.add_argument("--offline-seconds", type=float, default=10, help="length of each offline measurement")
    parser.add_argument("--overload", type=float, default=3.0, help="arrival rate, as a multiple of the measured rate")
    parser.add_argument("--overload-seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per process (default: 1)")
    parser.add_argument("--workers", type=int, default=1, help="model processes of the service")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "int8"))
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument(
        "--max-queue", type=int, default=256, help="queue length; small, so that overload fills it soon"
    )
    parser.add_argument("--log-level", default="info", help="of the service; info writes a line per request")
    parser.add_argument("--output", help="JSON file for the numbers")
    args = parser.parse_args()

    texts = [example.text for example, _ in zip(read_examples(args.texts), range(args.limit), strict=False)]
    requests = [make_request(text, args.k) for text in texts]
    wanted, before = offline(args, texts)
    log = Path(tempfile.gettempdir()) / f"bench_serving_{os.getpid()}.log"
    with service(args, log) as (port, pids):
        asyncio.run(closed_loop(port, requests, wanted, args.clients, 3))  # warm-up, not counted
        steady = asyncio.run(closed_loop(port, requests, wanted, args.clients, args.seconds))
        rate = args.overload * steady.statuses["200"] / steady.seconds
        flood, memory = asyncio.run(open_loop(port, requests, wanted, rate, args.overload_seconds, pids))
    _, after = offline(args, texts)
    reference = (before + after) / 2
    numbers = {
        "settings": {key: value for key, value in vars(args).items() if key != "output"},
        "offline_texts_per_second": {"before": round(before, 1), "after": round(after, 1)},
        "closed_loop": steady.summary(),
        "ratio_to_offline": round(steady.statuses["200"] / steady.seconds / reference, 3),
        "overload": {"arrivals_per_second": round(rate, 1), **flood.summary()},
        "memory_mib": {
            name: [round(sample[i] / 1024, 1) for sample in memory]
            for i, name in enumerate(["web", *(f"worker{n}" for n in range(1, len(pids)))])
        },
    }
    print(json.dumps(numbers, indent=2))
    if args.output:
        write_json(args.output, numbers, force=True)
    log.unlink()
    failed = steady.lost or steady.wrong or flood.lost or flood.wrong or set(steady.statuses) != {"200"}
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "serving"))
