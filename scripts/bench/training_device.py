"""python scripts/bench/training.py --device cuda

Training speed on one GPU, as a table ready to paste: a random T5, PUSL targets of a simulated catalog, AdamW.
`--device cpu` prints the same table for the CPU, by default with a tiny model.

    pusl PRECISION        our batches and our loss, in fp32, tf32 and bf16 (autocast, float32 weights)
    pusl bf16 compiled    the same through torch.compile
    plain PRECISION       Hugging Face's loss and `DataCollatorForSeq2Seq`, 32 items a batch in random order

A row that fails says why. `loss` is the loss per token of the same 32 items before the first step: where two rows
compute the same, it is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peak_memory
import torch
from transformers import DataCollatorForSeq2Seq, T5Config, T5ForConditionalGeneration

from pusl.data.simulate import SimulateConfig, simulate
from pusl.devices import cuda_settings, has_bf16, resolve_device
from pusl.examples import read_examples
from pusl.paradigms import Pusl
from pusl.tokenizer import token_ids, train_tokenizer
from pusl.training.collate import BatchPlan, Collator, Draw, target_lengths
from pusl.training.data import PreparedData, prepare
from pusl.training.objective import IGNORED, with_loss

ROWS, RATE = 32, 2e-4
WARM, WARM_COMPILED = 3, 12  # steps that are not timed; a compiled model is compiled again for its first other lengths
SHAPES = {  # d_model, d_kv, heads, d_ff, layers
    "tiny": (64, 16, 4, 128, 2),
    "t5-small": (512, 64, 8, 2048, 6),
    "t5-base": (768, 64, 12, 3072, 12),
    "t5-large": (1024, 64, 16, 4096, 24),
}


class Data:
    """A simulated catalog as our batches and as the plain way's."""

    def __init__(self, folder: Path, items: int, file: str | None) -> None:
        if file is None:
            simulate(folder / "catalog", SimulateConfig(items=items))
            file = str(folder / "catalog" / "train.jsonl")
        texts = (text for item in read_examples(file) for text in (item.text, *item.keyphrases))
        self.tokenizer = train_tokenizer(texts, 2000)
        self.tokens = token_ids(self.tokenizer)
        limits = {"max_source_length": 256, "max_phrase_tokens": 48}
        prepare(read_examples(file), self.tokenizer, self.tokens, folder / "ids", **limits)
        self.items = PreparedData(folder / "ids", "shuffle")
        totals, counts = self.items.phrase_lengths()
        self.plan = BatchPlan(self.items.source_lengths(), target_lengths(totals, counts, Pusl(), 256), ROWS)
        self.collator = Collator(Pusl(), self.tokens)
        self.plain_collator = DataCollatorForSeq2Seq(self.tokenizer, pad_to_multiple_of=8)
        self.order = torch.randperm(len(self.items), generator=torch.Generator().manual_seed(0)).tolist()

    def ours(self) -> Iterator[tuple[dict[str, Any], int]]:
        for numbers in self.plan.epoch(0):
            yield self.our_batch(numbers.tolist()), len(numbers)

    def our_batch(self, numbers: list[int]) -> dict[str, Any]:
        made = self.collator([self.items[Draw(number, 0, 0)] for number in numbers])
        return {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}

    def plain(self) -> Iterator[tuple[dict[str, Any], int]]:
        for first in range(0, len(self.order), ROWS):
            numbers = self.order[first : first + ROWS]
            yield self.plain_batch(numbers), len(numbers)

    def plain_batch(self, numbers: list[int]) -> dict[str, Any]:
        rows = []
        for number in numbers:
            item = self.items[Draw(number, 0, 0)]
            labels, _ = Pusl().target(item.phrases, self.tokens, 256)
            labels = [token if token != self.tokens.bok else IGNORED for token in labels]  # the decoder writes it
            source = [int(token) for token in item.source]
            rows.append({"input_ids": source, "attention_mask": [1] * len(source), "labels": labels})
        made = dict(self.plain_collator(rows))
        inputs = [[self.tokens.start, *Pusl().target(self.items[Draw(n, 0, 0)].phrases, self.tokens, 256)[0][:-1]]
                  for n in numbers]  # fmt: skip
        width = made["labels"].shape[1]
        made["decoder_input_ids"] = torch.tensor([row + [0] * (width - len(row)) for row in inputs])
        return made


def build(shape: str, data: Data, device: str) -> Any:
    """A random T5 of the shape."""
    d_model, d_kv, heads, d_ff, layers = SHAPES[shape]
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=max(len(data.tokenizer), 2048) if shape == "tiny" else 32128, d_model=d_model, d_kv=d_kv,
        num_heads=heads, d_ff=d_ff, num_layers=layers, decoder_start_token_id=0, dropout_rate=0.0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).to(device)


def summed_loss(model: Any, batch: dict[str, Any], plain: bool) -> Any:
    """The loss of a batch, summed over its target tokens."""
    if not plain:
        return model(**batch)["loss"]
    logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    labels = batch["labels"].flatten()
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels, ignore_index=IGNORED, reduction="sum"
    )


def measure(name: str, data: Data, shape: str, device: str, steps: int) -> tuple[float, float]:
    """Items/s and the first loss of one row of the table."""
    kind, precision, *rest = name.split()
    plain, cuda = kind == "plain", device.startswith("cuda")
    model = build(shape, data, device)
    model = model if plain else with_loss(model)
    model.train()
    warm = WARM_COMPILED if rest else WARM
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=cuda)
    run = torch.compile(model) if rest else model
    half = torch.autocast(device.partition(":")[0], torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    made = data.plain if plain else data.ours
    first = data.plain_batch(data.order[:ROWS]) if plain else data.our_batch(data.order[:ROWS])

    def moved(batch: dict[str, Any]) -> dict[str, Any]:
        if cuda:
            batch = {key: value.pin_memory() for key, value in batch.items()}
        return {key: value.to(device, non_blocking=True) for key, value in batch.items()}

    def forward(batch: dict[str, Any]) -> Any:
        tokens = int((batch["labels"] != IGNORED).sum())  # on the host, as the trainer counts them
        with half:
            return summed_loss(run, moved(batch), plain) / tokens

    with cuda_settings(precision):
        with torch.no_grad():
            start = float(forward(first))
        seen, begun, count = 0, 0.0, 0
        while count < steps + warm:
            for batch, items in made():
                if count == warm:
                    _wait(cuda)
                    begun, seen = time.perf_counter(), 0
                loss = forward(batch)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                seen, count = seen + items, count + 1
                if count == steps + warm:
                    break
        _wait(cuda)
    return seen / (time.perf_counter() - begun), start


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def rows(device: str) -> list[str]:
    """What can be measured on a device."""
    names = ["pusl fp32", "pusl tf32", "pusl bf16", "pusl bf16 compiled", "plain tf32", "plain bf16"]
    if not device.startswith("cuda"):
        # Elsewhere there is no tf32, and compiling for a CPU takes minutes.
        return ["pusl fp32", "pusl bf16", "plain fp32", "plain bf16"]
    return names if has_bf16(device) else [name for name in names if "bf16" not in name]


def bench_device(args: argparse.Namespace) -> None:
    """Prints the table."""
    device = resolve_device(args.device)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    shape = args.shape or ("tiny" if device == "cpu" else "t5-base")
    with tempfile.TemporaryDirectory() as folder:
        data = Data(Path(folder), args.items or (400 if device == "cpu" else 4000), args.data)
        print(f"\n{shape}, {ROWS} items a batch, {args.steps} steps; {name}, torch {torch.__version__}\n")
        print("| training | items/s | peak MiB | loss |\n|---|---|---|---|", flush=True)
        for row in args.engines or rows(device):
            peak_memory.restart(device)
            try:
                speed, loss = measure(row, data, shape, device, args.steps)
            except Exception as error:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                print(f"| {row} | failed: {reason[:90]} | | |", flush=True)
            else:
                memory = peak_memory.shown(peak_memory.peak(device))
                print(f"| {row} | {speed:,.1f} | {memory} | {loss:.4f} |", flush=True)
            gc.collect()
            torch._dynamo.reset()
