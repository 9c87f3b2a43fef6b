"""python scripts/bench/blocking.py --model models/pusl --seconds 20

How long can one client's largest request delay everybody else? `pusl serve` runs at its defaults. One client sends the
heaviest requests that the limits allow, one after the other. Another one asks for three keyphrases of one short text
again and again. Its waiting times are the answer, by the clock and in processor time of the model process; the second
number does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pusl_eval.errors import exit_code
from pusl_eval.files import InputError, write_json

HEAVY: list[tuple[int, dict[str, Any]]] = [
    (6, {"k": 50, "strategy": "sequence", "num_beams": 64}),  # 19,200 of 20,000 units
    (100, {"k": 50, "strategy": "sequence"}),
    (256, {"k": 50, "strategy": "beam", "num_beams": 64}),
    (200, {"k": 50, "temperature": 1.0}),
]
TEXT = "Waterproof hiking boots for wide feet, with a red tent and a warm winter jacket. "


class Service:
    """`pusl serve` at its defaults, in another process."""

    def __init__(self, model: str, log: Any) -> None:
        command = [sys.executable, "-m", "pusl", "serve", "--model", model, "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        found = re.search(r":(\d+) ", self.process.stdout.readline())
        if not found:
            raise InputError(f"--model {model}: the service did not start")
        self.port = int(found[1])
        while self.ask("GET", "/readyz")[0] != 200:
            if self.process.poll() is not None:
                raise InputError(f"--model {model}: the service ended")
            time.sleep(0.2)
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        self.worker = int(" ".join(file.read_text() for file in children).split()[0])

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, parsed answer)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def worker_seconds(self) -> float:
        """Processor time of the model process so far."""
        fields = Path(f"/proc/{self.worker}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service(model: str) -> Iterator[Service]:
    """A running service."""
    with tempfile.TemporaryFile("w") as log:
        found = Service(model, log)
        try:
            yield found
        finally:
            found.process.send_signal(signal.SIGTERM)
            found.process.wait()


def measure(target: Service, count: int, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Heavy requests for so long, and the waiting times of small ones beside them."""
    stop, statuses, waits = threading.Event(), [], []
    texts = [f"{TEXT * 8} {number}" for number in range(count)]

    def heavy() -> None:
        while not stop.is_set():
            status, answer = target.ask("POST", "/v1/keyphrases", {"texts": texts, **options})
            statuses.append(f"{status} {answer['error']['code']}" if "error" in answer else str(status))

    thread = threading.Thread(target=heavy)
    thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        clock, worked = time.monotonic(), target.worker_seconds()
        status, answer = target.ask("POST", "/v1/keyphrases", {"texts": [TEXT], "k": 3})
        if status != 200:
            raise InputError(f"a small request got {status}: {answer['error']['message']}")
        waits.append((time.monotonic() - clock, target.worker_seconds() - worked))
        time.sleep(0.02)
    stop.set()
    thread.join()
    by_clock, by_work = sorted(wait for wait, _ in waits), sorted(work for _, work in waits)
    return {
        "texts": count, **options, "heavy": {name: statuses.count(name) for name in set(statuses)},
        "small_requests": len(waits), "median_s": round(by_clock[len(waits) // 2], 3),
        "longest_s": round(by_clock[-1], 3), "longest_processor_s": round(by_work[-1], 2),
    }  # fmt: skip


def main() -> int:
    """Measures every heavy kind and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a trained model")
    parser.add_argument("--seconds", type=float, default=20, help="for each kind of heavy request (default: 20)")
    parser.add_argument("--output", help="JSON file for the numbers")
    args = parser.parse_args()
    found = []
    with service(args.model) as target:
        strategies = target.ask("GET", "/v1/model")[1]["strategies"]
        for count, options in HEAVY:
            if options.get("strategy", next(iter(strategies))) in strategies:
                found.append(measure(target, count, options, args.seconds))
                print(json.dumps(found[-1]), flush=True)
    if args.output:
        write_json(args.output, {"model": args.model, "heavy": found}, force=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "blocking"))
