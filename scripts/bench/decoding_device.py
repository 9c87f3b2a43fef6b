"""python scripts/bench/decoding.py --device cuda

Decoding speed on one GPU, as a table ready to paste: random weights, k = 10, phrases of two to four tokens.
`--device cpu --sets device` prints the same table for the CPU, to see it work.

    pusl PRECISION       Algorithm 1 on the device engine, in fp32, tf32 and bf16
    beam PRECISION       the default strategy, one phrase search with 12 beams
    generate bf16        Hugging Face `generate` with Algorithm 1 as a logits processor, batch 64
    generate bf16 static the same with a static cache; on a GPU transformers compiles it
    ctranslate2 float16  the same number of tokens (it takes no custom rule), if installed; on a CPU float32, int8

An engine that fails is a row with its reason. `same` is the share of items whose tokens are those of fp32.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peak_memory
import torch
from decoding import CAP, SHAPES, build_model, importable, make_texts, marks

K, BEAMS, BATCH = 10, 12, 64
Run = Callable[[list[list[int]]], list[Any]]


def ours(model: Any, ids: Any, precision: str, beam: bool) -> Run:
    """Our device engine."""
    from pusl.decoding.device.device_engine import DeviceEngine
    from pusl.decoding.plans import Ranked
    from pusl.decoding.rules import Rules
    from pusl.devices import cuda_settings

    engine, rules = DeviceEngine(model, precision), Rules(ids, True, K, CAP)

    def run(texts: list[list[int]]) -> list[Any]:
        with cuda_settings(precision):
            if beam:
                plans: Any = engine.search_phrases(texts, rules, lambda _: Ranked(K, str), beams=BEAMS, slots=BATCH)
                return [[one.ids for one in plan.phrases()] for plan in plans]
            return [[one.ids for one in found] for found in engine.decode_sequences(texts, rules, slots=BATCH)]

    return run


def stock(model: Any, ids: Any, static: bool) -> Run:
    """Hugging Face `generate` in bfloat16."""
    from transformers import LogitsProcessorList

    from pusl.decoding.logits_processor import TopKKeyphrasesLogitsProcessor
    from pusl.paradigms import Pusl

    half = model.bfloat16()
    rule = TopKKeyphrasesLogitsProcessor(
        bok=ids.bok, eok=ids.eok, eos=ids.eos, k=K, max_phrase_tokens=CAP, banned=[ids.sep]
    )
    options: dict[str, Any] = {"cache_implementation": "static"} if static else {}

    def run(texts: list[list[int]]) -> list[Any]:
        found = []
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            longest = max(map(len, batch))
            tokens = torch.tensor([text + [0] * (longest - len(text)) for text in batch])
            real = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in batch])
            out = half.generate(
                input_ids=tokens.to(half.device), attention_mask=real.to(half.device), do_sample=False,
                logits_processor=LogitsProcessorList([rule]), max_new_tokens=rule.max_new_tokens, **options,
            )  # fmt: skip
            found += [[tuple(one) for one in Pusl().split(row, ids)] for row in out.tolist()]
        return found

    return run


def ctranslate2(model: Any, precision: str, tokens: int, folder: Path, device: str) -> Run:
    """CTranslate2, made to write as many tokens."""
    import json

    import ctranslate2 as engine
    from decoding import convert

    convert(model.float().cpu(), folder)
    kind, _, number = device.partition(":")
    translator = engine.Translator(
        str(folder / "ct2"), device=kind, device_index=int(number or 0), compute_type=precision
    )
    pieces = json.loads((folder / "ct2" / "shared_vocabulary.json").read_text())

    def run(texts: list[list[int]]) -> list[Any]:
        rows = [[pieces[token] for token in text] for text in texts]
        out = translator.translate_batch(
            rows, max_batch_size=BATCH, beam_size=1, min_decoding_length=tokens, max_decoding_length=tokens
        )
        return [len(one.hypotheses[0]) for one in out]

    return run


def engines(device: str) -> list[str]:
    """The names of what can run here."""
    names = ["pusl fp32", "pusl tf32", "pusl bf16", "beam fp32", "beam tf32", "beam bf16"]
    names += ["generate bf16", "generate bf16 static"]
    if importable("ctranslate2"):
        names += {"cuda": ["ctranslate2 float16"], "cpu": ["ctranslate2 float32", "ctranslate2 int8"]}.get(
            device.partition(":")[0], []
        )
    return names if device.startswith("cuda") else [name for name in names if "tf32" not in name]


def measure(run: Run, texts: list[list[int]], rounds: int, device: str) -> tuple[list[Any], float]:
    """Results and the best round's seconds. The first two rounds warm up."""
    result, best = [], float("inf")
    for turn in range(rounds + 2):
        _wait(device)
        begun = time.perf_counter()
        result = run(texts)
        _wait(device)
        if turn > 1:
            best = min(best, time.perf_counter() - begun)
    return result, best


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def make(name: str, shape: str, device: str, tokens: int, folder: Path) -> Run:
    """The engine of this name with a model of its own."""
    model = build_model(shape).to(device)
    ids = marks(SHAPES[shape][-1])
    kind, _, rest = name.partition(" ")
    if kind == "ctranslate2":
        return ctranslate2(model, rest, tokens, folder, device)
    return stock(model, ids, rest.endswith("static")) if kind == "generate" else ours(model, ids, rest, kind == "beam")


def bench_device(args: argparse.Namespace) -> None:
    """One table for each shape."""
    from pusl.devices import resolve_device

    device = resolve_device(args.device)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    for spec in args.shapes:
        shape, length = spec.split(":")
        texts = make_texts(SHAPES[shape][-1], args.items, int(length), args.mixed)
        print(f"\n{shape}, {length} tokens in, k = {K}, {args.items} items; {name}, torch {torch.__version__}\n")
        print("| engine | items/s | peak MiB | same |\n|---|---|---|---|")
        first: dict[str, list[Any]] = {}
        tokens = args.tokens
        for engine in args.engines or engines(device):
            foreign = engine.startswith("ctranslate2") and device.startswith("cuda")
            with tempfile.TemporaryDirectory() as folder:
                try:
                    peak_memory.restart(device)
                    held = peak_memory.taken(device) if foreign else 0.0
                    run = make(engine, shape, device, tokens, Path(folder))
                    result, seconds = measure(run, texts, args.rounds, device)
                    memory = peak_memory.taken(device) - held if foreign else peak_memory.peak(device)
                except Exception as error:
                    reason = next(iter(str(error).splitlines()), type(error).__name__)
                    print(f"| {engine} | failed: {reason[:90]} | | |", flush=True)
                    continue
            kind = "beam" if engine.startswith("beam") else "greedy"
            whole = first.setdefault(kind, result)
            same = sum(a == b for a, b in zip(result, whole, strict=True)) / len(result)
            shown = "" if engine.startswith("ctranslate2") else f"{same:.1%}"
            print(f"| {engine} | {len(texts) / seconds:,.1f} | {peak_memory.shown(memory)} | {shown} |", flush=True)
            if kind == "greedy" and not engine.startswith("ctranslate2"):
                tokens = round(sum(len(phrase) + 2 for found in result for phrase in found) / len(result))
            del run
            gc.collect()
    sys.stdout.flush()
