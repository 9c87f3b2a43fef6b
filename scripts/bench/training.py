"""python scripts/bench/training.py --data tate/train.jsonl.gz [--only batches packing memory] [--model FOLDER]

Speed and memory of training, ours against the plain Hugging Face way, in one run on one machine. The
model is a random t5-small. CPU seconds of this process are compared (wall seconds stand beside them),
so that other work on the machine disturbs the ratios less; use one thread for that (OMP_NUM_THREADS=1).

batches  PUSL targets: `Seq2SeqTrainer` with `DataCollatorForSeq2Seq` against `KeyphraseTrainer`.  goal: 1.5x
packing  15 keyphrases a document: repeated (document, keyphrase) pairs against one decoder row.   goal: 4x
weights  with --model FOLDER: PUSL from pretrained weights, as before 2026-11-18, now, and with a softmax over the
         tokens of the keyphrases and 1,000 others; in bf16 too, where the processor has it.       goal: 1.5x
memory   private memory while a file of 1,000,000 items is read, planned and batched.              goal: flat

`--device cuda` measures one GPU instead (training_device.py): ours in fp32, tf32, bf16 and compiled, and the plain way,
as a table ready to paste. It needs no file. `--device cpu` prints that table for a tiny model on the CPU.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainingArguments

from pusl.checkpoint import load_base, scratch_model
from pusl.devices import has_fast_bf16
from pusl.examples import Example, read_examples
from pusl.paradigms import One2One, Paradigm, Pusl
from pusl.process import keep_freed_memory
from pusl.tokenizer import TokenIds, token_ids, train_tokenizer
from pusl.training import objective
from pusl.training.collate import BatchPlan, Collator, Draw, PlanSampler, TokenizedItem, target_lengths
from pusl.training.data import PreparedData, prepare
from pusl.training.objective import IGNORED, with_loss, without_loss
from pusl.training.sampled_softmax import SampledSoftmax
from pusl.training.trainer import KeyphraseTrainer
from pusl_eval.files import InputError, write_json

ROWS = 32
SAMPLED = 1000  # other tokens of a sampled softmax


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="training file, e.g. tate/train.jsonl.gz; with --device it may be omitted")
    parser.add_argument(
        "--device", help="cuda, cuda:1, mps or cpu: one table of speeds there instead of the parts below"
    )
    parser.add_argument(
        "--items", type=int, help="items of the simulated catalog that --device trains on (4000, on a CPU 400)"
    )
    parser.add_argument("--engines", nargs="+", metavar="ROW", help="with --device only these, e.g. 'pusl bf16'")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="default: all that can run")
    parser.add_argument("--model", help="folder of a pretrained T5 checkpoint, for the part `weights`")
    parser.add_argument("--rows", type=int, default=8, help="items a step of the part `weights`")
    parser.add_argument(
        "--shape", help="tiny, mini or small (default); with --device tiny, t5-small, t5-base (default), ..."
    )
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of each trainer")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of the One2One comparison")
    parser.add_argument("--memory-items", type=int, default=1_000_000)
    parser.add_argument("--output", help="JSON file for the numbers")
    args = parser.parse_args()
    if args.device:
        from training_device import SHAPES, bench_device

        if args.shape not in (None, *SHAPES):
            parser.error(f"--shape {args.shape}: with --device it is one of {', '.join(SHAPES)}")
        try:
            return bench_device(args)
        except InputError as error:
            raise SystemExit(f"{parser.prog}: {error}") from None
    if not args.data:
        parser.error("--data FILE is missing (or --device)")
    args.shape = args.shape or "small"
    args.only = args.only or [part for part in PARTS if part != "weights" or args.model]
    if "weights" in args.only and not args.model:
        parser.error("the part 'weights' needs --model FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        data, tokenizer = _data(args, Path(folder))
        found = {part: PARTS[part](args, data, tokenizer, Path(folder)) for part in args.only}
    print(json.dumps(found, indent=2))
    if args.output:
        write_json(args.output, found, force=True)


def _data(args: argparse.Namespace, folder: Path) -> tuple[PreparedData, Any]:
    texts = (text for item in read_examples(args.data) for text in (item.text, *item.keyphrases))
    tokenizer = train_tokenizer(texts, args.vocab_size)
    tokens = token_ids(tokenizer)
    prepare(read_examples(args.data), tokenizer, tokens, folder / "d", max_source_length=256, max_phrase_tokens=48)
    return PreparedData(folder / "d", "shuffle"), tokenizer


def bench_batches(args: argparse.Namespace, data: PreparedData, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Examples per second of the two trainers, and the loss of the same items in both."""
    tokens = token_ids(tokenizer)
    plain = _PlainItems(data, tokens)
    collator = Collator(Pusl(), tokens)
    plan = _plan(data, Pusl(), 256)
    rates = {}
    for name in ("plain", "ours"):
        model = scratch_model(args.shape, tokenizer, seed=0)
        common: dict[str, Any] = {
            "output_dir": str(folder / name), "max_steps": args.steps, "learning_rate": 5e-4, "report_to": "none",
            "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no", "remove_unused_columns": False,
            "use_cpu": not torch.cuda.is_available(),
        }  # fmt: skip
        trainer: Any
        if name == "plain":
            settings = Seq2SeqTrainingArguments(per_device_train_batch_size=ROWS, **common)
            trainer = Seq2SeqTrainer(
                model=model, args=settings, train_dataset=plain, data_collator=DataCollatorForSeq2Seq(tokenizer, model)
            )
            items = ROWS * args.steps
        else:
            trainer = KeyphraseTrainer(
                plan=plan, score=None, keep=print, metric="B@2mu", patience=0, seed=0, model=with_loss(model),
                args=TrainingArguments(per_device_train_batch_size=1, **common), data_collator=collator,
                train_dataset=data,
            )  # fmt: skip
            items = sum(len(batch) for batch in plan.epoch(0)[: args.steps])
        loader = trainer.get_train_dataloader()
        trainer.compute_loss(trainer.model, dict(next(iter(loader)))).backward()  # warms up allocator and kernels
        trainer.model.zero_grad()
        wall, cpu = _timed(trainer.train)
        rates[name] = {"items": items, "items_per_cpu_second": items / cpu, "items_per_second": items / wall}
    ratio = {key: rates["ours"][key] / rates["plain"][key] for key in ("items_per_cpu_second", "items_per_second")}
    return {**rates, "ratio": ratio, "padding": _padding(plan, data, plain), **_same_loss(args, plain, data, tokenizer)}


def _same_loss(args: argparse.Namespace, plain: Any, data: PreparedData, tokenizer: Any) -> dict[str, float]:
    """Per-item loss of 16 items: padded by Hugging Face's collator, and in our batch."""
    model = scratch_model(args.shape, tokenizer, seed=0).eval()
    chosen = list(range(0, len(data), len(data) // 16))[:16]
    batch = DataCollatorForSeq2Seq(tokenizer, model)([plain[number] for number in chosen])
    with torch.no_grad():
        logits = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).logits  # (B, T, V)
        flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
        theirs = flat.view(len(chosen), -1).sum(1) / (batch["labels"] != IGNORED).sum(1)  # (B,)
        model, collator, ours = with_loss(model), Collator(Pusl(), token_ids(tokenizer)), []
        for number in chosen:
            inputs = collator([data[Draw(number, 0, 0)]])
            count = (inputs["labels"] != IGNORED).sum()
            ours.append(
                model(**{k: v for k, v in inputs.items() if k not in ("items", "batch_number")})["loss"] / count
            )
    return {
        "largest_loss_difference": float((torch.stack(ours) - theirs).abs().max()),
        "mean_loss": float(theirs.mean()),
    }


class _PlainItems(torch.utils.data.Dataset[dict[str, Any]]):
    """The same items as the plain way has them: input_ids and labels."""

    def __init__(self, data: PreparedData, tokens: TokenIds) -> None:
        self.data, self.tokens = data, tokens

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> dict[str, Any]:
        item = self.data[Draw(int(number), 0, 0)]
        source = [int(token) for token in item.source]
        labels, _ = Pusl().target(item.phrases, self.tokens, 256)
        return {"input_ids": source, "attention_mask": [1] * len(source), "labels": labels}


def _plan(data: PreparedData, paradigm: Paradigm, limit: int) -> BatchPlan:
    totals, counts = data.phrase_lengths()
    return BatchPlan(data.source_lengths(), target_lengths(totals, counts, paradigm, limit), ROWS)


def _padding(plan: BatchPlan, data: PreparedData, plain: _PlainItems) -> dict[str, float]:
    """Share of padded places in a decoder batch, over a whole epoch."""
    totals, counts = data.phrase_lengths()
    lengths = target_lengths(totals, counts, Pusl(), 256)
    shuffled = np.random.default_rng(0).permutation(len(data))
    random_batches = [shuffled[i : i + ROWS] for i in range(0, len(shuffled), ROWS)]

    def share(batches: list[np.ndarray], multiple: int) -> float:
        places = sum(len(batch) * (-(-lengths[batch].max() // multiple) * multiple) for batch in batches)
        return float(1 - lengths.sum() / places)

    return {"plain": share(random_batches, 1), "ours": share(plan.epoch(0), 8)}


def bench_packing(args: argparse.Namespace, data: PreparedData, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Forward and backward of 8 documents with 15 keyphrases each."""
    tokens = token_ids(tokenizer)
    words = [phrase for number in range(200) for phrase in data[Draw(number, 0, 0)].phrases]
    draw = random.Random(0)
    items = [TokenizedItem(data[Draw(number, 0, 0)].source, draw.sample(words, 15)) for number in range(8)]
    pairs = [
        {"input_ids": [int(token) for token in item.source], "attention_mask": [1] * len(item.source), "labels": row}
        for item in items
        for row, _ in One2One().sequences(item.phrases, tokens, 256)
    ]
    model = scratch_model(args.shape, tokenizer, dropout=0.0, seed=0)
    total = sum(len(pair["labels"]) for pair in pairs)

    def naive() -> None:
        """All 120 pairs in batches of 32, as a plain trainer sees them."""
        plain = without_loss(model)
        for batch in DataLoader(pairs, 32, collate_fn=DataCollatorForSeq2Seq(tokenizer, plain)):  # type: ignore[arg-type]
            count = (batch["labels"] != IGNORED).sum()
            (plain(**batch).loss * count / total).backward()

    def packed() -> None:
        inputs = Collator(One2One(), tokens)(items)
        ours = {name: value for name, value in inputs.items() if name not in ("items", "batch_number")}
        (with_loss(model)(**ours)["loss"] / total).backward()

    seconds: dict[str, list[float]] = {"naive": [], "packed": []}
    gradients = {}
    for _ in range(args.rounds):
        for name, action in (("naive", naive), ("packed", packed)):
            model.zero_grad()
            seconds[name].append(_timed(action)[1])
            gradients[name] = {key: value.grad.clone() for key, value in model.named_parameters()}
    best = {name: min(values) for name, values in seconds.items()}
    found = {"cpu_seconds": best, "ratio": best["naive"] / best["packed"], "gradients_float32": _apart(gradients)}
    model.double()
    for name, action in (("naive", naive), ("packed", packed)):
        model.zero_grad()
        action()
        gradients[name] = {key: value.grad.clone() for key, value in model.named_parameters()}
    return {**found, "gradients_float64": _apart(gradients)}


def bench_weights(args: argparse.Namespace, data: PreparedData, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """CPU seconds and losses of the same steps of AdamW from the same pretrained weights."""
    paradigm = Pusl()
    model, tokenizer = load_base(args.model, 0.0, paradigm)
    tokens = token_ids(tokenizer, model.config)
    prepare(read_examples(args.data), tokenizer, tokens, folder / "w", max_source_length=96, max_phrase_tokens=48)
    items = PreparedData(folder / "w", "shuffle", 0, 0.5)
    totals, counts = items.phrase_lengths()
    plan = BatchPlan(items.source_lengths(), target_lengths(totals, counts, paradigm, 96), args.rows)
    collator = Collator(paradigm, tokens, 96)
    batches = [collator([items[draw] for draw in draws]) for draws in islice(PlanSampler(plan), args.steps + 1)]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    few, found = objective.FEW_ROWS, {}
    keep_freed_memory()
    sampled = SampledSoftmax.of_keyphrases(items.keyphrase_tokens(), tokens, model.lm_head.weight, SAMPLED)
    names = ["before", "float32", "float32, sampled softmax"]
    if has_fast_bf16("cpu"):
        names += ["bf16", "bf16, sampled softmax"]
    for name in names:
        # Before, encoder and decoder each had a gradient of the whole table.
        objective.FEW_ROWS = len(weights["shared.weight"]) if name == "before" else few
        model.load_state_dict(weights)
        learner = with_loss(model, sampled if "sampled" in name else None).train()
        found[name] = _steps(learner, batches, bf16="bf16" in name)
    before = found["before"]
    for row in found.values():
        row["ratio"] = before["cpu_seconds"] / row["cpu_seconds"]
        pairs = zip(row["losses"], before["losses"], strict=True)
        row["largest_loss_difference"] = max(abs(one - other) for one, other in pairs)
    return found


def _steps(model: Any, batches: list[dict[str, Any]], bf16: bool) -> dict[str, Any]:
    """Steps as Trainer makes them; the first one warms up and is not timed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0, fused=True)
    losses: list[float] = []

    def step(batch: dict[str, Any]) -> None:
        inputs = {name: value for name, value in batch.items() if name not in ("items", "batch_number")}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model(**inputs)["loss"] / len(batch["positions"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()
        losses.append(loss.item())

    step(batches[0])
    wall, cpu = _timed(lambda: [step(batch) for batch in batches[1:]])
    items = sum(batch["items"] for batch in batches[1:])
    return {"cpu_seconds": cpu, "seconds": wall, "items_per_cpu_second": items / cpu, "losses": losses}


def _apart(gradients: dict[str, dict[str, torch.Tensor]]) -> dict[str, float]:
    """How far two sets of gradients lie apart.

    In float32 a hidden unit next to ReLU's kink may flip: one row then differs by 1e-4, all others by 1e-8.
    Float64 tells such a flip from a mistake.
    """
    naive, packed = gradients["naive"], gradients["packed"]
    largest = max(float(value.abs().max()) for value in naive.values())
    difference = max(float((packed[key] - value).abs().max()) for key, value in naive.items())
    return {"largest_gradient": largest, "largest_difference": difference}


def bench_memory(args: argparse.Namespace, data: PreparedData, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Private memory (RssAnon) above the start, for growing files of the same labels."""
    tokens, found = token_ids(tokenizer), {}
    sample = list(islice(read_examples(args.data), 5000))
    for count in (args.memory_items // 100, args.memory_items // 10, args.memory_items):
        with _Peak() as peak:
            prepare(_many(sample, count), tokenizer, tokens, folder / "m", max_source_length=256, max_phrase_tokens=48)
            big = PreparedData(folder / "m", "shuffle")
            plan = _plan(big, Pusl(), 256)
            collator = Collator(Pusl(), tokens)
            for draws in islice(PlanSampler(plan), 100):
                collator([big[draw] for draw in draws])
        size = sum(file.stat().st_size for file in (folder / "m").iterdir())
        found[f"{count:,} items"] = {"peak_extra_MB": round(peak.extra, 1), "data_on_disk_MB": round(size / 2**20, 1)}
    return found


def _many(sample: list[Example], count: int) -> Iterator[Example]:
    for number in range(count):
        example = sample[number % len(sample)]
        yield Example(str(number), f"{example.text} {number}", example.keyphrases)


class _Peak:
    """Highest private memory while inside, in MB above the beginning."""

    def __enter__(self) -> _Peak:
        self.begin, self.highest, self._done = _private(), 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.extra = self.highest - self.begin

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.highest = max(self.highest, _private())


def _private() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def _timed(action: Callable[[], Any]) -> tuple[float, float]:
    """(wall seconds, CPU seconds of this process)."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


PARTS = {"batches": bench_batches, "packing": bench_packing, "weights": bench_weights, "memory": bench_memory}

if __name__ == "__main__":
    main()
