"""python scripts/bench/load.py --rounds 3 --steps 200 --seconds 40

What other load on the machine costs, with and without OMP_WAIT_POLICY=PASSIVE.

Training (scratch:tiny, steps/s) and decoding (a t5-small of random weights, items/s) run with torch's own number of
threads, each measurement in a fresh process: with OpenMP's default and with PASSIVE, as the machine is and beside one
busy loop per core. The four cells of a task follow each other in every round, and the best round counts, so that
what else runs on the machine disturbs the ratios less. A measurement ends after --seconds at the latest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLICIES = ("default", "PASSIVE")
TASKS = ("training", "decoding")
WORDS = ["red", "blue", "drone", "camera", "boots", "lamp", "hiking", "wide", "light", "small", "battery", "kitchen"]


def measure_training(steps: int, seconds: float) -> float:
    """Optimizer steps per second of a real run."""
    from pusl.data.simulate import SimulateConfig, simulate
    from pusl.training import TrainConfig, train

    with tempfile.TemporaryDirectory() as folder:
        data, out = f"{folder}/data", f"{folder}/model"
        simulate(data, SimulateConfig(items=4000, dev_items=10, test_items=10, seed=0))
        # SIGINT ends training after its current step.
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        config = TrainConfig(
            paradigm="pusl", model="scratch:tiny", train=f"{data}/train.jsonl", out=out, max_steps=steps, seed=0
        )
        result = train(config)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return result.steps / result.record["timings"]["train"]


def measure_decoding(items: int, seconds: float) -> float:
    """Texts per second, k = 10, beam."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from pusl import paradigms
    from pusl.checkpoint import Checkpoint
    from pusl.decoding.generator import KeyphraseGenerator
    from pusl.tokenizer import token_ids, train_tokenizer

    torch.manual_seed(0)
    texts = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(40)) for i in range(items)]
    tokenizer = train_tokenizer(texts, 300)
    model = T5ForConditionalGeneration(T5Config(vocab_size=32128, decoder_start_token_id=0)).eval()
    meta = {"paradigm": "pusl", "defaults": {"max_phrase_tokens": 4}}
    checkpoint = Checkpoint(model, tokenizer, paradigms.get("pusl"), token_ids(tokenizer, model.config), meta)
    generator = KeyphraseGenerator(checkpoint)
    generator.generate(texts[:1], 10)
    began, done = time.perf_counter(), 0
    while done < items and time.perf_counter() - began < seconds:
        done += len(generator.generate(texts[done : done + 4], 10))
    return done / (time.perf_counter() - began)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Other load: `count` processes that never rest."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def pace(task: str, policy: str, args: argparse.Namespace) -> float:
    """One measurement in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    if policy != "default":
        environment["OMP_WAIT_POLICY"] = policy
    if args.threads:
        environment["OMP_NUM_THREADS"] = str(args.threads)
    command = [sys.executable, __file__, "--child", task, "--steps", str(args.steps), "--items", str(args.items)]
    done = subprocess.run(
        [*command, "--seconds", str(args.seconds)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--steps", type=int, default=200, help="training steps of one measurement (default: 200)")
    parser.add_argument("--items", type=int, default=64, help="texts of one measurement (default: 64)")
    parser.add_argument("--seconds", type=float, default=40, help="limit of one measurement (default: 40)")
    parser.add_argument("--threads", type=int, help="threads of each measurement (default: torch's choice)")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--child", choices=TASKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure: Any = measure_training if args.child == "training" else measure_decoding
        print(measure(args.steps if args.child == "training" else args.items, args.seconds))
        return
    cores = os.cpu_count() or 1
    best: dict[tuple[str, str, str], float] = {}
    for number in range(args.rounds):
        for task in args.tasks:
            for load, loops in (("as it is", 0), (f"{cores} busy loops", cores)):
                with busy_loops(loops):
                    for policy in POLICIES:
                        found = pace(task, policy, args)
                        key = (task, load, policy)
                        best[key] = max(found, best.get(key, 0.0))
                        said = f"round {number + 1}: {task}, {load}, {policy}: {found:.2f}/s"
                        print(said, f"(load average {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
    print("| task | machine | default | PASSIVE | ratio |\n|---|---|---|---|---|")
    rows = []
    for task, load in dict.fromkeys((task, load) for task, load, _ in best):
        plain, passive = (best[task, load, policy] for policy in POLICIES)
        unit = "steps/s" if task == "training" else "items/s"
        rows.append({"task": task, "machine": load, "default": plain, "PASSIVE": passive, "unit": unit})
        print(f"| {task} | {load} | {plain:.2f} {unit} | {passive:.2f} {unit} | {passive / plain:.2f}x |")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
