"""python scripts/bench/cost_model.py --shape t5-base --input 64 -k 10

What an item costs by arithmetic: FLOPs, bytes per decoder step, and what they allow on an accelerator.
Nothing here is measured; docs/guides/millions.md sets measured figures beside it. `--check` compares the encoder
and decoder FLOPs with torch's own counter on a random model of the shape.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A T5 model: width, heads x head width, feed-forward width, layers on each side, vocabulary, gated or not."""

    d_model: int
    inner: int
    d_ff: int
    layers: int
    vocabulary: int
    gated: bool = False

    @property
    def feed_forward(self) -> int:
        """Weights of one feed-forward block."""
        return (3 if self.gated else 2) * self.d_model * self.d_ff

    @property
    def attention(self) -> int:
        """Weights of one attention: query, key, value, output."""
        return 4 * self.d_model * self.inner

    @property
    def encoder(self) -> int:
        """Weights an input token passes in the encoder."""
        return self.layers * (self.attention + self.feed_forward)

    @property
    def cross_keys(self) -> int:
        """Weights that make the cross-attention's keys and values from an input token, once per item."""
        return self.layers * self.attention // 2

    @property
    def step(self) -> int:
        """Weights a generated token passes: self-attention, half of cross-attention, feed-forward, output layer."""
        return self.layers * (self.attention * 3 // 2 + self.feed_forward) + self.d_model * self.vocabulary


SHAPES = {
    "scratch:tiny": Shape(128, 128, 256, 2, 2003),
    "t5-small": Shape(512, 512, 2048, 6, 32128),
    "t5-base": Shape(768, 768, 3072, 12, 32128),
    "t5-large": Shape(1024, 1024, 4096, 24, 32128),
}


@dataclass(frozen=True)
class Work:
    """What is asked: input tokens, keyphrases, tokens per keyphrase with its end mark, beams in the phrase search."""

    input: int = 64
    k: int = 10
    phrase: int = 5
    beams: int = 10

    def rows_and_steps(self, strategy: str) -> tuple[int, int]:
        """Decoder rows per item and sequential steps: one long sequence, or a beam over the first phrase."""
        return (1, self.k * self.phrase) if strategy == "sequence" else (self.beams, self.phrase + 1)


def encoder_flops(shape: Shape, length: int) -> float:
    """Two per weight and token, and the two products of attention; cross keys and values included."""
    return 2.0 * length * (shape.encoder + shape.cross_keys) + 4.0 * shape.layers * length * length * shape.inner


def decoder_flops(shape: Shape, work: Work, strategy: str) -> float:
    """All rows over all steps, each looking at its own past and at the input."""
    rows, steps = work.rows_and_steps(strategy)
    looked_at = work.input + (steps + 1) / 2
    return rows * steps * (2.0 * shape.step + 4.0 * shape.layers * shape.inner * looked_at)


def bytes_per_step(shape: Shape, work: Work, strategy: str, batch: int, size: int) -> tuple[float, float]:
    """(weights, caches) read in one decoder step of a whole batch; beams of an item share its cross cache."""
    rows, steps = work.rows_and_steps(strategy)
    position = 2.0 * shape.layers * shape.inner * size
    return float(shape.step * size), batch * position * (work.input + rows * (steps + 1) / 2)


def items_per_second(
    shape: Shape, work: Work, strategy: str, batch: int, *, flops: float, bandwidth: float, size: int = 2
) -> float:
    """The roof: every step takes the longer of computing and reading; nothing overlaps, nothing is lost."""
    _, steps = work.rows_and_steps(strategy)
    encoding = batch * encoder_flops(shape, work.input) / flops
    computing = batch * decoder_flops(shape, work, strategy) / steps / flops
    reading = sum(bytes_per_step(shape, work, strategy, batch, size)) / bandwidth
    return batch / (encoding + steps * max(computing, reading))


def check(shape: Shape, length: int) -> None:
    """Counts one encoder pass and one decoder step of a random model with torch."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import T5Config, T5ForConditionalGeneration

    heads = shape.inner // 64 or 4
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=shape.vocabulary, d_model=shape.d_model, d_kv=shape.inner // heads, num_heads=heads,
            d_ff=shape.d_ff, num_layers=shape.layers, decoder_start_token_id=0,
            attn_implementation="eager",  # fused attention is not counted on CPU
        )
    ).eval()  # fmt: skip
    ids = torch.ones(1, length, dtype=torch.long)
    with torch.no_grad(), FlopCounterMode(display=False) as encoding:
        encoded = model.encoder(input_ids=ids)
    with torch.no_grad(), FlopCounterMode(display=False) as decoding:
        model(encoder_outputs=encoded, decoder_input_ids=ids[:, :1], use_cache=False)
    cross = 2.0 * length * shape.cross_keys
    expected = encoder_flops(shape, length) - cross
    print(f"encoder: computed {expected / 1e9:.3f} GFLOP, torch counts {encoding.get_total_flops() / 1e9:.3f}")
    step = cross + 2.0 * shape.step + 4.0 * shape.layers * shape.inner * (length + 1)
    print(f"first decoder step: computed {step / 1e9:.3f} GFLOP, torch counts {decoding.get_total_flops() / 1e9:.3f}")


def main() -> None:
    """Prints the table of one shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="t5-base", help="model (default: t5-base)")
    parser.add_argument("--input", type=int, default=64, help="input tokens (default: 64)")
    parser.add_argument("-k", "--k", type=int, default=10, help="keyphrases per item, and beams (default: 10)")
    parser.add_argument("--batch", type=int, default=512, help="items at once (default: 512)")
    parser.add_argument("--tflops", type=float, default=312.0, help="peak of the device (default: A100, bf16)")
    parser.add_argument("--bandwidth", type=float, default=2.0, help="TB/s (default: A100 80 GB)")
    parser.add_argument("--check", action="store_true", help="compare with torch's counter")
    args = parser.parse_args()
    shape, work = SHAPES[args.shape], Work(args.input, args.k, beams=args.k)
    if args.check:
        return check(shape, args.input)
    print(f"{args.shape}, {args.input} input tokens, k = {args.k}, {work.phrase} tokens per phrase, bf16")
    print(f"encoder: {encoder_flops(shape, args.input) / 1e9:.2f} GFLOP per item")
    for strategy in ("sequence", "beam"):
        rows, steps = work.rows_and_steps(strategy)
        weights, caches = bytes_per_step(shape, work, strategy, args.batch, 2)
        rate = items_per_second(
            shape, work, strategy, args.batch, flops=args.tflops * 1e12, bandwidth=args.bandwidth * 1e12
        )
        print(
            f"{strategy}: {rows} x {steps} steps, {decoder_flops(shape, work, strategy) / 1e9:.2f} GFLOP per item; "
            f"a step of {args.batch} items reads {weights / 1e6:.0f} MB weights + {caches / 1e6:.0f} MB caches; "
            f"roof {rate:,.0f} items/s = {1e9 / rate / 3600:,.0f} h per billion items"
        )


if __name__ == "__main__":
    main()
