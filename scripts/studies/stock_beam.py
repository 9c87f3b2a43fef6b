"""python scripts/studies/stock_beam.py --model models/one2one --input test.jsonl --output stock.jsonl -k 15

One2One decoded by the standard beam search of transformers: `model.generate(num_beams=k, num_return_sequences=k)`.
By default it ranks sequences by their mean log-probability per token (`length_penalty` 1); `--length-penalty 0` ranks
by probability. It is a control for the tables, because `pusl generate` also ranks by probability but gives k different
phrases. It is slow because it uses none of our decoding code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pusl.checkpoint import load_checkpoint
from pusl.examples import read_examples
from pusl.tokenizer import encode_texts
from pusl_eval.errors import exit_code
from pusl_eval.files import InputError, check_input, write_rows
from pusl_eval.flags import add_force


def stock_beam(
    model: str | Path, source: str | Path, output: str | Path, k: int, *, length_penalty: float = 1.0,
    batch_size: int = 16, force: bool = False,
) -> None:  # fmt: skip
    """Writes the predictions of a One2One model for every item of `source`, repeated phrases included."""
    if k < 1 or batch_size < 1:
        raise InputError(f"-k {k}, --batch-size {batch_size}: expected at least 1")
    checkpoint = load_checkpoint(model)
    if checkpoint.paradigm.endless or checkpoint.paradigm.ends_itself:
        raise InputError(f"{model} is a {checkpoint.paradigm} model; expected one2one")
    examples, tokenizer = list(read_examples(source)), checkpoint.tokenizer
    defaults = checkpoint.defaults

    def rows() -> Iterator[dict[str, Any]]:
        for start in tqdm(range(0, len(examples), batch_size), "stock beam search", unit="batch", disable=None):
            part = examples[start : start + batch_size]
            ids = encode_texts(tokenizer, [one.text for one in part], defaults["max_source_length"])
            batch = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(checkpoint.model.device)
            with torch.inference_mode():
                found = checkpoint.model.generate(
                    **batch, num_beams=k, num_return_sequences=k, length_penalty=length_penalty, do_sample=False,
                    max_new_tokens=defaults["max_phrase_tokens"] + 1,
                )  # fmt: skip
            phrases = [text.strip() for text in tokenizer.batch_decode(found, skip_special_tokens=True)]
            for number, one in enumerate(part):
                yield {"id": one.id, "keyphrases": phrases[number * k : (number + 1) * k]}

    write_rows(output, rows(), force)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a One2One model")
    parser.add_argument("--input", type=Path, required=True, help="items")
    parser.add_argument("--output", type=Path, required=True, help="predictions")
    parser.add_argument("-k", "--k", type=int, required=True, help="beams, and keyphrases per item")
    parser.add_argument("--length-penalty", type=float, default=1.0, help="0: probability, 1: mean per token (default)")
    parser.add_argument("--batch-size", type=int, default=16)
    add_force(parser)
    args = parser.parse_args()
    stock_beam(
        args.model, check_input(args.input), args.output, args.k,
        length_penalty=args.length_penalty, batch_size=args.batch_size, force=args.force,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_code(main, "stock_beam"))
