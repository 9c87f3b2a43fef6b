"""python scripts/bench/decoding.py --shapes t5-small:64 --items 128 --rounds 3

Decoding speed, every engine in one interleaved run: random weights, phrases of realistic lengths (the
closing mark's logits are widened and phrases are cut at four tokens: two to four each), k = 10.

    generate        Hugging Face `generate` with Algorithm 1 as a logits processor, batch 32, fp32, all threads
    generate 2x1    its best layout: batch 64, two processes of one thread
    ctranslate2     the same number of tokens (it takes no custom rule), inter_threads=2, fp32 and int8
    pusl            our engine, Algorithm 1, 64 slots or more, two processes of one thread, fp32 and int8
    phrases         unique decoding: each strategy; `closed`: inside a universe of --universe phrases
    beam            One2One: `generate(num_beams=10)` and our search, fp32 and int8

`--device cuda` measures one GPU instead (decoding_device.py): ours in fp32, tf32 and bf16, `generate` in bf16, eager
and compiled with a static cache, and CTranslate2 in float16, as a table ready to paste. `--sets device` prints that
table for the CPU.

Printed: items/s (best round), the ratio to `generate`, seconds of processor time per item, and the share
of items whose tokens are exactly those of `generate`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pusl.process import prepare_process

SHAPES = {  # d_model, d_kv, heads, d_ff, layers, vocabulary
    "t5-small": (512, 64, 8, 2048, 6, 32128),
    "t5-base": (768, 64, 12, 3072, 12, 32128),
    "tiny": (128, 32, 4, 256, 2, 2003),
}
CAP, K, BEAMS = 4, 10, 10
OURS = "pusl"  # the engine of pusl.decoding, greedy
LAYOUT = {  # engine: processes, threads
    "generate": (1, 2), "generate 2x1": (2, 1), "ctranslate2": (1, 2), "ctranslate2 int8": (1, 2),
    OURS: (2, 1), f"{OURS} int8": (2, 1), "sequence": (2, 1), "beam": (2, 1), "closed beam": (2, 1),
    "generate beam": (1, 2), "pusl beam": (2, 1), "pusl beam int8": (2, 1),
}  # fmt: skip
SETS = {
    "greedy": ["generate", "generate 2x1", "ctranslate2", "ctranslate2 int8", OURS, f"{OURS} int8"],
    "phrases": [OURS, "sequence", "beam", "closed beam"],
    "beam": ["generate beam", "pusl beam", "pusl beam int8"],
}


def marks(vocabulary: int) -> Any:
    """The last ids of the vocabulary as marks."""
    from pusl.tokenizer import TokenIds

    return TokenIds(pad=0, eos=1, bok=vocabulary - 3, eok=vocabulary - 2, sep=vocabulary - 1, start=0)


def build_model(shape: str) -> Any:
    """A random T5 of the shape, the same in every process; closing marks win about every third time.

    Its head is untied: a tied random T5 repeats its last token for ever.
    """
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    d_model, d_kv, heads, d_ff, layers, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=vocabulary, d_model=d_model, d_kv=d_kv, num_heads=heads, d_ff=d_ff, num_layers=layers,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    head = torch.randn(vocabulary, d_model)
    ids = marks(vocabulary)
    head[[ids.eok, ids.eos]] *= 8.0
    model.lm_head.weight = torch.nn.Parameter(head)
    return model


def importable(name: str) -> bool:
    """Whether a package is installed."""
    from importlib.util import find_spec

    return find_spec(name) is not None


def convert(model: Any, folder: Path) -> None:
    """CTranslate2's copy of the model. Its converter wants a tokenizer, any will do."""
    from ctranslate2.converters import TransformersConverter

    from pusl.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(["a b c d e f g"] * 9, 300, marks=False)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    for name, quantization in (("ct2", "float32"), ("ct2-int8", "int8")):
        TransformersConverter(str(folder)).convert(str(folder / name), quantization=quantization, force=True)


def make_texts(vocabulary: int, count: int, length: int, mixed: bool) -> list[list[int]]:
    """Source ids; `mixed` draws lengths between a quarter and all of `length`."""
    chance = np.random.default_rng(1)
    lengths = chance.integers(length // 4, length + 1, count) if mixed else np.full(count, length)
    return [[*chance.integers(3, vocabulary - 3, n - 1).tolist(), 1] for n in lengths]


def make_universe(vocabulary: int, phrases: int) -> Any:
    """Random phrases of 2 to 5 tokens."""
    from pusl.decoding.universe import Universe, _sorted, _tree

    chance = np.random.default_rng(2)
    rows = (chance.zipf(1.3, (phrases, 5)) % (vocabulary - 6) + 4).astype(np.uint16)
    rows[np.arange(5) >= chance.integers(2, 6, phrases)[:, None]] = 0
    return Universe(*_tree(_sorted([rows])), digests=np.zeros(0, dtype=np.uint64))


class Worker:
    """One process of one engine: loads, then decodes what it is given."""

    def __init__(self, engine: str, model: Any, folder: Path, threads: int, universe: int) -> None:
        ours = not engine.startswith(("generate", "ctranslate2"))
        prepare_process(threads, keep_memory=ours)
        self.kind = engine
        if engine.startswith("ctranslate2"):
            import ctranslate2

            name = "ct2-int8" if engine.endswith("int8") else "ct2"
            precision = "int8" if engine.endswith("int8") else "float32"
            self.translator = ctranslate2.Translator(
                str(folder / name), inter_threads=threads, intra_threads=1, compute_type=precision
            )
            self.pieces = json.loads((folder / name / "shared_vocabulary.json").read_text())
            return
        self.ids = marks(model.config.vocab_size)
        if engine.startswith("generate"):
            self.model = model
            return
        from pusl.decoding.cpu.engine import Engine
        from pusl.decoding.universe import UniverseRule

        self.engine = Engine(model, "int8" if engine.endswith("int8") else "fp32")
        self.rule = None
        if engine.startswith("closed"):
            whole = make_universe(self.engine.vocab_size, universe)
            self.rule = UniverseRule(whole, self.ids.eok, self.engine.vocab_size, None, self.engine.device)

    def __call__(self, texts: list[list[int]], tokens: int) -> list[Any]:
        if self.kind.startswith("ctranslate2"):
            return self._ctranslate2(texts, tokens)
        if self.kind.startswith("generate"):
            return self._generate(texts)
        return self._pusl(texts)

    def _ctranslate2(self, texts: list[list[int]], tokens: int) -> list[Any]:
        rows = [[self.pieces[token] for token in text] for text in texts]
        out = self.translator.translate_batch(
            rows, max_batch_size=32, beam_size=1, min_decoding_length=tokens, max_decoding_length=tokens
        )
        return [len(one.hypotheses[0]) for one in out]

    def _generate(self, texts: list[list[int]]) -> list[Any]:
        import torch
        from transformers import LogitsProcessorList

        from pusl.decoding.logits_processor import TopKKeyphrasesLogitsProcessor
        from pusl.paradigms import One2One, Pusl

        ids, found = self.ids, []
        size = 64 if self.kind.endswith("2x1") else 32
        rule = TopKKeyphrasesLogitsProcessor(
            bok=ids.bok, eok=ids.eok, eos=ids.eos, k=K, max_phrase_tokens=CAP, banned=[ids.sep]
        )
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            longest = max(map(len, batch))
            inputs = {
                "input_ids": torch.tensor([text + [0] * (longest - len(text)) for text in batch]),
                "attention_mask": torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in batch]),
            }
            if self.kind == "generate beam":
                out = self.model.generate(
                    **inputs, num_beams=BEAMS, num_return_sequences=BEAMS, length_penalty=0.0, max_new_tokens=CAP + 1,
                    do_sample=False, logits_processor=LogitsProcessorList([_whole_phrases(ids)]),
                )  # fmt: skip
                rows = [One2One().split(row.tolist(), ids)[0] for row in out]
                found += [rows[i : i + BEAMS] for i in range(0, len(rows), BEAMS)]
            else:
                out = self.model.generate(
                    **inputs, logits_processor=LogitsProcessorList([rule]), max_new_tokens=rule.max_new_tokens,
                    do_sample=False,
                )  # fmt: skip
                found += [Pusl().split(row.tolist(), ids) for row in out]
        return found

    def _pusl(self, texts: list[list[int]]) -> list[Any]:
        from pusl.decoding.generator import SEQUENCE_BEAMS
        from pusl.decoding.greedy import decode_sequences
        from pusl.decoding.plans import Ranked, Sequential
        from pusl.decoding.rules import Rules
        from pusl.decoding.search import search_phrases

        kind = self.kind.removesuffix(" int8")
        rules = Rules(self.ids, kind != "pusl beam", K, CAP)
        if kind == OURS:
            found = decode_sequences(self.engine, texts, rules, slots=64)
            return [[list(phrase.ids) for phrase in phrases] for phrases in found]
        plan = Sequential if kind == "sequence" else Ranked
        plans: Any = search_phrases(
            self.engine, texts, rules, lambda _: plan(K, str), slots=32, constraint=self.rule,
            beams=SEQUENCE_BEAMS if kind == "sequence" else BEAMS,
        )  # fmt: skip
        return [[list(phrase.ids) for phrase in one.phrases()] for one in plans]


def _whole_phrases(ids: Any) -> Any:
    import torch
    from transformers import LogitsProcessor

    class WholePhrases(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            scores = scores.clone()
            scores[:, [ids.pad, ids.bok, ids.eok, ids.sep]] = -torch.inf
            if input_ids.shape[1] == 1:
                scores[:, ids.eos] = -torch.inf
            if input_ids.shape[1] == CAP + 1:
                closing = scores[:, ids.eos].clone()
                scores[:] = -torch.inf
                scores[:, ids.eos] = closing
            return scores

    return WholePhrases()


def serve(pipe: Any, engine: str, model: Any, folder: Path, threads: int, universe: int) -> None:
    """A worker process: answers (texts, tokens) with (result, processor seconds)."""
    worker = Worker(engine, model, folder, threads, universe)
    pipe.send("ready")
    while (task := pipe.recv()) is not None:
        before = time.process_time()
        result = worker(*task)
        pipe.send((result, time.process_time() - before))


class Team:
    """The processes of one engine."""

    def __init__(self, engine: str, model: Any, folder: Path, universe: int) -> None:
        self.engine = engine
        processes, threads = LAYOUT[engine]
        context = multiprocessing.get_context("fork")  # the model is built once and shared
        self.pipes, self.members = [], []
        for _ in range(processes):
            mine, theirs = context.Pipe()
            member = context.Process(target=serve, args=(theirs, engine, model, folder, threads, universe), daemon=True)
            member.start()
            self.pipes.append(mine)
            self.members.append(member)
        for pipe in self.pipes:
            pipe.recv()

    def run(self, texts: list[list[int]], tokens: int) -> tuple[list[Any], float, float]:
        """Results, wall seconds, processor seconds."""
        size = -(-len(texts) // len(self.pipes))
        start = time.perf_counter()
        for i, pipe in enumerate(self.pipes):
            pipe.send((texts[i * size : (i + 1) * size], tokens))
        parts = [pipe.recv() for pipe in self.pipes]
        wall = time.perf_counter() - start
        return [one for part, _ in parts for one in part], wall, sum(seconds for _, seconds in parts)

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for member in self.members:
            member.join()


def bench(shape: str, length: int, names: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """One shape, every engine, round by round."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.set_num_threads(1)  # a pool of threads would not survive the fork
        model = build_model(shape)
        if any(engine.startswith("ctranslate2") for engine in names):
            convert(model, folder)
        texts = make_texts(SHAPES[shape][-1], args.items, length, args.mixed)
        teams = [Team(engine, model, folder, args.universe) for engine in names]
        tokens = args.tokens
        rows: dict[str, dict[str, Any]] = {}
        for turn in range(args.rounds + 1):
            for team in teams:
                used = texts[: max(2, args.items // 8)] if turn == 0 else texts  # the first turn warms up
                result, wall, cpu = team.run(used, tokens)
                said = f"round {turn}: {team.engine}: {len(used)} items in {wall:.1f} s, {cpu:.1f} s of processor time"
                print(said, file=sys.stderr, flush=True)
                if turn == 0:
                    if team.engine in ("generate", OURS):
                        lengths = [sum(len(phrase) + 2 for phrase in phrases) for phrases in result]
                        tokens = round(sum(lengths) / len(lengths))
                    continue
                row = rows.setdefault(team.engine, {"engine": team.engine, "wall": wall, "cpu": cpu, "result": result})
                row["wall"], row["cpu"] = min(row["wall"], wall), min(row["cpu"], cpu)
        for team in teams:
            team.close()
    first = rows[names[0]]
    report = []
    for row in rows.values():
        same = np.mean([a == b for a, b in zip(row["result"], first["result"], strict=True)])
        report.append(
            {
                "shape": shape,
                "input": length,
                "engine": row["engine"],
                "items_per_s": args.items / row["wall"],
                "ratio": first["wall"] / row["wall"],
                "cpu_s_per_item": row["cpu"] / args.items,
                "cpu_ratio": first["cpu"] / row["cpu"],
                "same": None if row["engine"].startswith("ctranslate2") else float(same),
                "tokens_per_item": tokens,
            }
        )
    return report


def main() -> None:
    """Runs the chosen shapes and sets and prints one table each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["t5-small:64"], help="SHAPE:INPUT, e.g. t5-base:256 tiny:32")
    parser.add_argument("--sets", nargs="+", choices=[*SETS, "device"], default=["greedy"])
    parser.add_argument("--engines", nargs="+", help="only these; the first is the yardstick")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda, cuda:1, mps: one GPU (default: cpu)")
    parser.add_argument("--items", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=50, help="CTranslate2's tokens, if generate is not run")
    parser.add_argument("--mixed", action="store_true", help="texts of different lengths")
    parser.add_argument("--universe", type=int, default=1_000_000, help="phrases of the closed universe")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args = parser.parse_args()
    if args.device != "cpu" or "device" in args.sets:
        from decoding_device import bench_device

        from pusl_eval.files import InputError

        try:
            return bench_device(args)
        except InputError as error:
            raise SystemExit(f"{parser.prog}: {error}") from None
    if unknown := set(args.engines or ()) - set(LAYOUT):
        parser.error(f"--engines {', '.join(sorted(unknown))}: unknown; known: {', '.join(LAYOUT)}")
    everything = []
    for spec in args.shapes:
        shape, length = spec.split(":")
        for name in args.sets if not args.engines else ["chosen"]:
            names = args.engines or [e for e in SETS[name] if importable("ctranslate2") or "ctrans" not in e]
            report = bench(shape, int(length), names, args)
            everything += report
            print(f"\n{shape}, {length} tokens in, {report[0]['tokens_per_item']} out, {args.items} items: {name}")
            print(f"{'engine':<18}{'items/s':>9}{'ratio':>8}{'cpu s/item':>12}{'cpu ratio':>11}{'same':>7}")
            for row in report:
                same = "-" if row["same"] is None else f"{row['same']:.0%}"
                print(
                    f"{row['engine']:<18}{row['items_per_s']:>9.2f}{row['ratio']:>7.2f}x{row['cpu_s_per_item']:>12.3f}"
                    f"{row['cpu_ratio']:>10.2f}x{same:>7}"
                )
            sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(everything, indent=2))


if __name__ == "__main__":
    main()
